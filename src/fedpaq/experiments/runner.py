"""Runner: from a figure to its finished curves, resuming where an earlier run was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedpaq import problems
from fedpaq.arrays import Float64
from fedpaq.errors import DivergedError
from fedpaq.experiments import tuning
from fedpaq.experiments.claims import open_settings
from fedpaq.experiments.curve import Curve, CurveSettings, curve_settings, rounded
from fedpaq.experiments.figures import Figure, PaperSetting
from fedpaq.experiments.following import following
from fedpaq.experiments.output import Output
from fedpaq.hardware.devices import require_device
from fedpaq.problems import Problem
from fedpaq.run.history import History

Progress = Callable[[PaperSetting, int], None]  # setting, gradient computations done since the last call


def run_figure(
    figure: Figure, output: Output, *, data_dir: Path | None = None, progress: Progress | None = None
) -> dict[PaperSetting, Curve]:
    """Return every curve of the figure, computing and storing those that are not there yet.

    Then the curves of rows that are undecided get more seeds, until none is or their settings have no more.
    Raises DatasetError if the figure's data is needed and cannot be found or fetched.
    """
    problem = cache(lambda: following(load_problem(figure, data_dir).to(require_device(output.device))))
    all_settings = {settings.setting: settings for settings in curve_settings(figure, output.device)}
    curves: dict[PaperSetting, Curve] = {}
    for setting, settings in all_settings.items():
        curve = output.load(figure, settings)
        if curve is None:
            curve = run_curve(problem(), settings, progress)
            output.save(figure, curve)
        curves[setting] = curve
    while more := to_extend(figure, curves):
        for setting in more:
            curves[setting] = extended(problem(), curves[setting], progress)
            output.save(figure, curves[setting])
    return curves


def to_extend(figure: Figure, curves: dict[PaperSetting, Curve]) -> list[PaperSetting]:
    """Return whose seeds to add to: curves of open rows, those behind first, while there are seeds left."""
    if figure.beside is not None or figure.prices:  # prices are put on the paper's curves as they are
        return []
    wanted = open_settings(figure, curves)
    left = [s for s in figure.settings if s in wanted and curves[s].num_seeds < len(curves[s].settings.seeds)]
    fewest = min((curves[s].num_seeds for s in left), default=0)
    return [s for s in left if curves[s].num_seeds == fewest]


def run_curve(problem: Problem, settings: CurveSettings, progress: Progress | None = None) -> Curve:
    """Tune the step size on the tuning seeds, then run the first of the curve's own seeds."""
    step_size, losses = tuning.tune(problem, settings, _advance(settings, progress))
    empty = np.zeros((0, settings.num_rounds + 1))
    curve = Curve(settings, problem.dimension, losses, step_size, empty, empty, empty.astype(np.int64), empty)
    return extended(problem, curve, progress)


def extended(problem: Problem, curve: Curve, progress: Progress | None = None) -> Curve:
    """Return the curve with its next seeds run."""
    settings, done = curve.settings, curve.num_seeds
    seeds = settings.seeds[done : done + settings.first_seeds]
    histories = tuning.run(problem, settings, [curve.step_size], seeds, _advance(settings, progress))
    for history in histories:
        if history.diverged is not None:
            raise DivergedError(f"{settings.problem}, {settings.setting.slug}: {history.diverged}")
    added: dict[str, Any] = {name: _column(histories, name) for name in ("loss", "accuracy", "computation_seconds")}
    added["payload_bytes"] = np.array([[record.payload_bytes for record in h.records] for h in histories])
    joined: dict[str, Any] = {name: np.concatenate([getattr(curve, name), rows]) for name, rows in added.items()}
    return replace(curve, **joined)


def _advance(settings: CurveSettings, progress: Progress | None) -> tuning.Advance:
    def advance(steps: int) -> None:
        if progress is not None:
            progress(settings.setting, steps * settings.setting.clients_per_round)

    return advance


def load_problem(figure: Figure, data_dir: Path | None) -> Problem:
    """Return the figure's problem, the same for all its curves."""
    settings = curve_settings(figure)[0]
    return problems.load(
        figure.problem, num_clients=settings.num_clients, seed=settings.problem_seed, data_dir=data_dir
    )


def expected_gradients(settings: CurveSettings) -> int:
    """Return how many local steps a curve takes in all, unless its grid is widened or seeds are added."""
    fine = (len(settings.fine) + 1) * len(settings.tuning_seeds) - settings.coarse_seeds
    trials = len(settings.coarse) * settings.coarse_seeds + fine + settings.first_seeds
    return trials * settings.total_steps * settings.setting.clients_per_round


def _column(histories: list[History], name: str) -> Float64:
    """Return one value of every round, to the digits that a curve keeps: (seeds, K + 1)."""
    return np.array([rounded([getattr(record, name) for record in history.records]) for history in histories])
