"""Runner: from a figure to its finished curves, resuming where an earlier run was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpaq import problems
from fedpaq.errors import DivergedError
from fedpaq.experiments import tuning
from fedpaq.experiments.curve import Curve, CurveSettings, Float64, curve_settings, rounded
from fedpaq.experiments.figures import Figure, PaperSetting
from fedpaq.experiments.output import Output
from fedpaq.problems import Problem
from fedpaq.run.history import History

Progress = Callable[[PaperSetting, int], None]  # setting, gradient computations done since the last call


def run_figure(
    figure: Figure, output: Output, *, data_dir: Path | None = None, progress: Progress | None = None
) -> dict[PaperSetting, Curve]:
    """Return every curve of the figure, computing and storing those that are not there yet.

    Raises DatasetError if the figure's data is needed and cannot be found or fetched.
    """
    problem: Problem | None = None
    curves: dict[PaperSetting, Curve] = {}
    for settings in curve_settings(figure):
        curve = output.load(figure, settings)
        if curve is None:
            problem = problem or load_problem(figure, data_dir)
            curve = run_curve(problem, settings, progress)
            output.save(figure, curve)
        curves[settings.setting] = curve
    return curves


def run_curve(problem: Problem, settings: CurveSettings, progress: Progress | None = None) -> Curve:
    """Tune the step size on the tuning seeds, then run the curve's own seeds."""
    clients = settings.setting.clients_per_round

    def advance(steps: int) -> None:
        if progress is not None:
            progress(settings.setting, steps * clients)

    step_size, losses = tuning.tune(problem, settings, advance)
    histories = tuning.run(problem, settings, [step_size], settings.seeds, advance)
    for history in histories:
        if history.diverged is not None:
            raise DivergedError(f"{settings.problem}, {settings.setting.slug}: {history.diverged}")
    return Curve(
        settings=settings,
        dimension=problem.dimension,
        tuning=losses,
        step_size=step_size,
        loss=_column(histories, "loss"),
        accuracy=_column(histories, "accuracy"),
        payload_bytes=np.array([[record.payload_bytes for record in history.records] for history in histories]),
        computation_seconds=_column(histories, "computation_seconds"),
    )


def load_problem(figure: Figure, data_dir: Path | None) -> Problem:
    """Return the figure's problem, the same for all its curves."""
    settings = curve_settings(figure)[0]
    return problems.load(
        figure.problem, num_clients=settings.num_clients, seed=settings.problem_seed, data_dir=data_dir
    )


def expected_gradients(settings: CurveSettings) -> int:
    """Return how many local steps a curve takes in all, unless its grid must be widened."""
    fine = (len(settings.fine) + 1) * len(settings.tuning_seeds) - settings.coarse_seeds
    trials = len(settings.coarse) * settings.coarse_seeds + fine + len(settings.seeds)
    return trials * settings.total_steps * settings.setting.clients_per_round


def _column(histories: list[History], name: str) -> Float64:
    """Return one value of every round, to the digits that a curve keeps: (seeds, K + 1)."""
    return np.array([rounded([getattr(record, name) for record in history.records]) for history in histories])
