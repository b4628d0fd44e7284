"""Both theorems checked against runs: Theorem 1 over rounds, Theorem 2 over T."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpaq.arrays import Float64
from fedpaq.config import require_int
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem
from fedpaq.theory import Estimates, HeterogeneousBound, NonConvexBound, StronglyConvexBound, Variant
from fedpaq.theory.assumptions import VARIANTS
from fedpaq.theory.verification.check import BoundCurve, Check, CheckSetting, fit_slope
from fedpaq.theory.verification.measurement import mean_squared_gradients, squared_errors, with_seeds

POINTS = 60  # of a curve that is kept


def check_strongly_convex(
    problem: Problem,
    estimates: Estimates,
    setting: CheckSetting,
    *,
    num_rounds: int | None = None,
    from_first_round: bool = False,
    covered_only: bool = False,
) -> Check:
    """Measure E||x_k - x*||^2 under Theorem 1's schedule, and the bounds on it.

    Where the clients' losses differ, there is a fourth bound, which covers that; with ``covered_only`` it is alone.

    The paper's schedule runs ``num_rounds`` rounds (default: 4 k0) and each bound starts from the error
    measured at its k0. With ``from_first_round`` the schedule begins at k0 instead, where x_0 is
    known, so the bounds are known before any run.
    """
    if estimates.optimum is None:
        raise ConfigError(f"problem={problem.name!r} has no unique optimum; use check_non_convex")
    beyond = heterogeneous_bound(problem, estimates, setting)
    stated = [strongly_convex_bound(problem, estimates, setting, variant) for variant in VARIANTS]
    if covered_only and not estimates.are_clients_equal:
        stated = []
    bounds: list[StronglyConvexBound | HeterogeneousBound] = [*stated, *([] if beyond is None else [beyond])]
    if not bounds:
        raise ConfigError(f"problem={problem.name!r}: clients' losses differ, and no bound is known that covers it")
    latest = max(bound.first_round for bound in bounds)
    start = latest if from_first_round else 0
    if num_rounds is None:
        num_rounds = 4 * latest
    require_int("num_rounds", num_rounds, latest - start + 1)
    config = setting.config(num_rounds * setting.local_steps, bounds[0].step_size(start))
    errors = squared_errors(
        problem, with_seeds(config, setting.num_seeds), estimates.optimum, quantizer=setting.quantizer
    )
    return _compare_errors(problem, setting, bounds, errors, start)


def _compare_errors(
    problem: Problem,
    setting: CheckSetting,
    bounds: Sequence[StronglyConvexBound | HeterogeneousBound],
    errors: Float64,
    start: int,
) -> Check:
    mean = errors.mean(axis=0)
    rounds = np.arange(start, start + errors.shape[1])
    kept = np.unique(np.geomspace(1, len(rounds), POINTS).astype(np.int64)) - 1
    earliest = min(bound.first_round for bound in bounds)
    later = kept[rounds[kept] >= earliest]
    curves = []
    for bound in bounds:
        since = max(bound.first_round, start)
        values = np.full(len(rounds), np.nan)
        values[since - start :] = bound.curve(since, float(mean[since - start]), len(rounds) - 1 - (since - start))
        curves.append(
            BoundCurve(
                variant=bound.variant,
                first_round=bound.first_round,
                values=values[kept],
                worst_ratio=_worst_ratio(mean, values),
            )
        )
    steps = rounds * setting.local_steps + 1
    return Check(
        theorem=1,
        problem=problem.name,
        setting={**setting.to_dict(), "num_clients": problem.num_clients, "start": start},
        steps=steps[kept],
        mean=mean[kept],
        standard_error=errors.std(axis=0, ddof=1)[kept] / np.sqrt(len(errors)),
        bounds=curves,
        slope=None if start else fit_slope(steps[later], errors[:, later]),
    )


def check_non_convex(
    problem: Problem, estimates: Estimates, setting: CheckSetting, total_steps: Sequence[int]
) -> Check:
    """Measure the averaged squared gradient norm for each T, and Theorem 2's bounds on it."""
    gradients = np.empty((setting.num_seeds, len(total_steps)))
    curves: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for column, steps in enumerate(total_steps):
        bounds = [non_convex_bound(problem, estimates, setting, steps, variant) for variant in VARIANTS]
        config = setting.config(steps, bounds[0].step_size)
        gradients[:, column] = mean_squared_gradients(
            problem, with_seeds(config, setting.num_seeds), quantizer=setting.quantizer
        )
        for bound in bounds:
            gap = estimates.initial_gap.value
            curves[bound.variant].append(bound.at(gap) if bound.holds and estimates.are_clients_equal else float("nan"))
    mean = gradients.mean(axis=0)
    return Check(
        theorem=2,
        problem=problem.name,
        setting={**setting.to_dict(), "num_clients": problem.num_clients},
        steps=np.array(total_steps, np.int64),
        mean=mean,
        standard_error=gradients.std(axis=0, ddof=1) / np.sqrt(setting.num_seeds),
        bounds=[
            BoundCurve(
                variant=variant,
                first_round=None,
                values=np.array(values),
                worst_ratio=_worst_ratio(mean, np.array(values)),
            )
            for variant, values in curves.items()
        ],
        slope=fit_slope(np.array(total_steps), gradients) if len(total_steps) > 1 else None,
    )


def _worst_ratio(mean: Float64, bounds: Float64) -> float | None:
    """Return the largest mean / bound where there is a bound, None if there is none: the theorem is silent."""
    covered = ~np.isnan(bounds)
    return float((mean[covered] / bounds[covered]).max()) if covered.any() else None


def strongly_convex_bound(
    problem: Problem, estimates: Estimates, setting: CheckSetting, variant: Variant
) -> StronglyConvexBound:
    """Return Theorem 1 for a problem and a setting."""
    return StronglyConvexBound(**_given(problem, estimates, setting), variant=variant)


def heterogeneous_bound(problem: Problem, estimates: Estimates, setting: CheckSetting) -> HeterogeneousBound | None:
    """Return the bound for clients whose losses differ; None where they do not, or their L_i are not known."""
    if estimates.are_clients_equal or estimates.client_smoothness is None or estimates.strong_convexity is None:
        return None
    given = _given(problem, estimates, setting)
    given["assumptions"] = replace(given["assumptions"], smoothness=estimates.client_smoothness.value)
    return HeterogeneousBound(**given, heterogeneity=estimates.heterogeneity.value)


def non_convex_bound(
    problem: Problem, estimates: Estimates, setting: CheckSetting, total_steps: int, variant: Variant
) -> NonConvexBound:
    """Return Theorem 2 for a problem and a setting."""
    return NonConvexBound(**_given(problem, estimates, setting), total_steps=total_steps, variant=variant)


def _given(problem: Problem, estimates: Estimates, setting: CheckSetting) -> dict[str, Any]:
    """Return what both theorems are given."""
    return {
        "assumptions": estimates.assumptions(setting.quantizer.variance_bound(problem.dimension)),
        "num_clients": problem.num_clients,
        "clients_per_round": setting.clients_per_round,
        "local_steps": setting.local_steps,
        "batch_size": setting.batch_size,
    }
