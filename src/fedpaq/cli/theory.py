"""``fedpaq theory``: what the theorems say about a setting, and how a run compares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpaq.cli import options
from fedpaq.cli.printing import at_work, show, table
from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from fedpaq.problems import Problem
    from fedpaq.theory import Estimate, Estimates
    from fedpaq.theory.verification import Check, CheckSetting

MOST_ROUNDS = 20_000  # that --measure runs
SYMBOLS = {
    "smoothness": "L",
    "strong_convexity": "mu",
    "gradient_variance": "sigma^2",
    "initial_gap": "f(x_0) - f*",
    "initial_error": "||x_0 - x*||^2",
    "heterogeneity": "zeta^2",
    "client_smoothness": "largest L_i",
}
LABELS = {"unmet": "conditions not met"}  # where a JSON key would not explain itself


def theory(
    problem: options.ProblemName,
    clients_per_round: options.ClientsPerRound = 25,
    local_steps: options.LocalSteps = 5,
    total_steps: options.TotalSteps = 10_000,
    quantizer: options.QuantizerText = None,
    levels: options.Levels = None,
    batch_size: options.BatchSize = 10,
    num_clients: options.NumClients = 50,
    seed: options.DataSeed = 0,
    regularization: Annotated[
        float | None, typer.Option(help="lambda, which is mu for a convex loss. Default: the problem's own.")
    ] = None,
    partition: Annotated[
        str,
        typer.Option(help="How samples are split: iid, dirichlet, by-label; shared gives every client all of them."),
    ] = "iid",
    measure: Annotated[int, typer.Option(metavar="SEEDS", help="Also run with this many seeds and compare.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the measured curve and the bounds to this file (.png, .svg, .pdf).")
    ] = None,
    data_dir: options.DataDir = None,
    json: options.AsJson = False,
) -> None:
    """Show the constants, conditions and bounds of Theorems 1 and 2 for a problem and a setting.

    PROBLEM is what to learn; `fedpaq data list` shows all problems.

    Each bound comes in three variants: as the paper states it, as its proof derives it, and
    corrected where a step of the proof fails (docs/paper-errata.md). L, mu and sigma^2 come from
    formulas where there are any. Constants called "local" were measured at a few points only, so a
    bound made of them may fail.

    Both theorems assume that all clients have the same loss, f_i = f. Where they do not, the theorems say
    nothing, and a bound of our own takes their place: it contains zeta^2, the mean over clients of
    ||grad f_i - grad f||^2 (docs/theory.md).

    Example: fedpaq theory synthetic-quadratic -n 10 -r 5 -t 4 -s 4 --measure 20 --plot bound.png
    """
    from fedpaq import problems
    from fedpaq.config import MAX_STEPS, require_int
    from fedpaq.theory import estimate
    from fedpaq.theory.verification import CheckSetting

    if measure:
        require_int("measure", measure, 2)
    if plot is not None:
        advice = "it shows measured runs; add e.g. --measure 20"
        options.require_picture(plot, drawn=bool(measure), advice=advice)
    require_int("local_steps", local_steps, 1, MAX_STEPS)
    require_int("total_steps", total_steps, 1, MAX_STEPS)
    if total_steps % local_steps:
        raise ConfigError(
            f"total_steps={total_steps} is not a multiple of local_steps={local_steps}; choose a multiple"
        )
    chosen = options.choose_quantizer(quantizer, levels)
    shared = partition == "shared"
    task = problems.load(
        problem,
        num_clients=num_clients,
        seed=seed,
        data_dir=data_dir,
        regularization=regularization,
        partition="iid" if shared else partition,
    )
    if shared:
        task = _with_all_samples(task)
    setting = CheckSetting(
        clients_per_round=clients_per_round,
        local_steps=local_steps,
        batch_size=batch_size,
        quantizer=chosen,
        num_seeds=max(measure, 2),
    )
    if clients_per_round > task.num_clients:
        raise ConfigError(
            f"clients_per_round={clients_per_round} exceeds num_clients={task.num_clients}; "
            f"choose 1..{task.num_clients}"
        )
    with at_work("estimating L, mu, sigma and zeta", quiet=json):
        estimates = estimate(task)
        report = _report(task, estimates, setting, total_steps)
    with at_work(f"{measure} measured runs", quiet=json or not measure):
        check = _measure(task, estimates, setting, total_steps) if measure else None
    if check is not None:
        report["measured"] = check.to_dict()
    show(report, json, lambda: _tables(report, check))
    if plot is not None and check is not None:
        from fedpaq.theory.verification.plot import save_plot

        save_plot([check], [f"{task.name}: Theorem {check.theorem}"], plot)


def _with_all_samples(task: Problem) -> Problem:
    """Return the problem with every held sample at every client: then f_i = f."""
    import numpy as np

    from fedpaq.problems import Problem
    from fedpaq.problems.partitions import shared

    return Problem(
        model=task.model,
        loss=task.loss,
        inputs=task.inputs,
        targets=task.targets,
        partition=shared(np.unique(task.partition.indices), task.num_clients),
        regularization=task.regularization,
        name=task.name,
        known=task.known,
    )


def _report(task: Problem, estimates: Estimates, setting: CheckSetting, total_steps: int) -> dict[str, Any]:
    """Return everything that needs no run, as plain values."""
    from fedpaq.theory.assumptions import VARIANTS
    from fedpaq.theory.verification.theorems import heterogeneous_bound, non_convex_bound, strongly_convex_bound

    equal, unequal = estimates.are_clients_equal, [] if estimates.are_clients_equal else ["f_i = f"]
    report: dict[str, Any] = {
        "problem": task.name,
        "setting": {**setting.to_dict(), "num_clients": task.num_clients, "total_steps": total_steps},
        "q": setting.quantizer.variance_bound(task.dimension),
        "constants": {
            name: _plain(getattr(estimates, name))
            for name in SYMBOLS
            if name != "client_smoothness" or estimates.client_smoothness is not None
        },
        "are_clients_equal": equal,
        "theorem_1": {},
        "theorem_2": {},
        "heterogeneous": None,
    }
    for variant in VARIANTS:
        second = non_convex_bound(task, estimates, setting, total_steps, variant)
        report["theorem_2"][variant] = {
            "B2": second.b2,
            "N1": second.n1,
            "N2": second.n2,
            "largest tau": second.largest_local_steps,
            "unmet": unequal + [condition.text for condition in second.conditions() if not condition.holds],
            "bound": second.at(estimates.initial_gap.value) if second.holds and equal else None,
        }
        if estimates.initial_error is None:
            continue
        first = strongly_convex_bound(task, estimates, setting, variant)
        last = first.first_round + total_steps // setting.local_steps
        report["theorem_1"][variant] = {
            "B1": first.b1,
            "C1": first.c1,
            "C2": first.c2,
            "C3": first.c3,
            "k0": first.first_round,
            "unmet": unequal + [condition.text for condition in first.conditions() if not condition.holds],
            "bound": first.at(last, estimates.initial_error.value) if equal else None,
        }
    beyond = heterogeneous_bound(task, estimates, setting)
    if beyond is not None and estimates.initial_error is not None:
        rounds = total_steps // setting.local_steps
        if rounds <= MOST_ROUNDS * 10:
            values = beyond.curve(beyond.first_round, estimates.initial_error.value, rounds)
            report["heterogeneous"] = {"first round": beyond.first_round, "bound": values[-1]}
    return report


def _measure(task: Problem, estimates: Estimates, setting: CheckSetting, total_steps: int) -> Check:
    """Run the schedule of whichever theorem applies."""
    from fedpaq.theory.assumptions import VARIANTS
    from fedpaq.theory.verification import check_non_convex, check_strongly_convex
    from fedpaq.theory.verification.theorems import heterogeneous_bound, strongly_convex_bound

    if estimates.optimum is None:
        return check_non_convex(task, estimates, setting, [total_steps])
    beyond = heterogeneous_bound(task, estimates, setting)
    if beyond is None:
        bounds = [strongly_convex_bound(task, estimates, setting, variant) for variant in VARIANTS]
        first_round = max(bound.first_round for bound in bounds)
    else:
        first_round = beyond.first_round
    if 2 * first_round > MOST_ROUNDS:
        raise ConfigError(
            f"k0={first_round}: no bound says anything before that round, which must be at most "
            f"{MOST_ROUNDS // 2} to be measured; raise --regularization, --levels or --clients-per-round"
        )
    return check_strongly_convex(task, estimates, setting, num_rounds=2 * first_round, covered_only=True)


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "certainty": estimate.certainty, "source": estimate.source}


def _tables(report: dict[str, Any], check: Check | None) -> Iterator[Any]:
    setting = report["setting"]
    yield (
        f"[bold]{report['problem']}[/bold]: n={setting['num_clients']}, r={setting['clients_per_round']}, "
        f"tau={setting['local_steps']}, T={setting['total_steps']}, B={setting['batch_size']}, "
        f"{setting['quantizer']} with q={report['q']:.3g}"
    )
    yield table(("constant", ">value", "certainty", "from"), _constants(report["constants"]))
    yield _equality(report)
    if report["theorem_1"]:
        title = "Theorem 1: E||x - x*||^2 after T steps from round k0 on"
        yield _bounds(title, report["theorem_1"])
    else:
        yield "Theorem 1 needs a strongly convex loss; this one is not known to be."
    yield _bounds("Theorem 2: mean of E||grad f||^2 over T steps", report["theorem_2"])
    if report["heterogeneous"] is not None:
        made = report["heterogeneous"]
        yield (
            f"For clients that differ: E||x - x*||^2 <= {made['bound']:.4g} after T steps of Theorem 1's schedule from "
            f"round {made['first round']} on (docs/theory.md)."
        )
    if check is not None:
        yield from _comparison(check)


def _equality(report: dict[str, Any]) -> str:
    """Say whether the assumption of both theorems that no condition on tau or T mentions is met."""
    constants = report["constants"]
    zeta, sigma = constants["heterogeneity"]["value"], constants["gradient_variance"]["value"]
    if report["are_clients_equal"]:
        return f"Assumption f_i = f: met; {constants['heterogeneity']['source']}."
    return (
        f"Assumption f_i = f: [red]not met[/red]. The clients' gradients differ from grad f by zeta = {zeta**0.5:.3g} "
        f"({(zeta / sigma) ** 0.5:.0%} of sigma): Theorems 1 and 2 say nothing about this problem."
    )


def _constants(constants: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, found in constants.items():
        symbol = SYMBOLS[name]
        if found is None:
            yield symbol, "-", "unknown", ""
        else:
            yield symbol, f"{found['value']:.4g}", found["certainty"], found["source"]


def _bounds(title: str, variants: dict[str, dict[str, Any]]) -> Table:
    headings = ["", *(f">{variant.replace('_', ' ')}" for variant in variants)]
    rows = (
        [LABELS.get(name, name), *(_cell(values[name]) for values in variants.values())]
        for name in next(iter(variants.values()))
    )
    return table(headings, rows, title=title)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(value) or "none"
    if value is None:
        return "does not apply"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _comparison(check: Check) -> Iterator[str]:
    yield (
        f"Measured over {check.setting['num_seeds']} seeds: {check.mean[-1]:.4g} "
        f"(standard error {check.standard_error[-1]:.2g}) after {check.steps[-1]} steps."
    )
    for bound in check.bounds:
        name = bound.variant.replace("_", " ")
        if bound.worst_ratio is None:
            yield f"  {name}: the theorem is silent; its conditions are not met"
            continue
        verdict = "under" if bound.verdict == "holds" else "[red]ABOVE[/red]"
        where = "" if bound.first_round is None else f" from round {bound.first_round} on"
        yield f"  {name}: {verdict} the bound{where}; measured over bound: {bound.worst_ratio:.2g} at most"
    if check.slope is not None:
        yield f"  slope {check.slope.value:.2f} [{check.slope.low:.2f}, {check.slope.high:.2f}]"
