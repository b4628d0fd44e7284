"""``fedpaq theory``: what the theorems say about a setting, and how a run compares."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpaq.cli.options import AsJson, DataDir
from fedpaq.cli.picture import require_picture
from fedpaq.errors import ConfigError

if TYPE_CHECKING:
    from fedpaq.problems import Problem
    from fedpaq.theory import Estimate, Estimates
    from fedpaq.theory.verification import Check, CheckSetting

MOST_ROUNDS = 20_000  # measured without being asked for by number
SYMBOLS = {
    "smoothness": "L",
    "strong_convexity": "mu",
    "gradient_variance": "sigma^2",
    "initial_gap": "f(x_0) - f*",
    "initial_error": "||x_0 - x*||^2",
}


def theory(
    problem: Annotated[str, typer.Argument(help="What is learnt; `fedpaq data list` shows all.")],
    clients_per_round: Annotated[
        int, typer.Option("--clients-per-round", "-r", help="r: clients drawn each round.")
    ] = 25,
    local_steps: Annotated[
        int, typer.Option("--local-steps", "-t", help="tau: SGD steps a client takes between uploads.")
    ] = 5,
    total_steps: Annotated[
        int, typer.Option("--total-steps", "-T", help="T: local steps in all, a multiple of tau.")
    ] = 10_000,
    levels: Annotated[int, typer.Option("--levels", "-s", help="s: quantization levels; 0 sends float32.")] = 1,
    batch_size: Annotated[int, typer.Option("--batch-size", "-B", help="B: samples per step.")] = 10,
    num_clients: Annotated[int, typer.Option("--num-clients", "-n", help="n: clients in all.")] = 50,
    seed: Annotated[int, typer.Option(help="Fixes data split and initial weights.")] = 0,
    regularization: Annotated[
        float | None, typer.Option(help="lambda; for convex losses it is mu. Default: the problem's own.")
    ] = None,
    measure: Annotated[
        int, typer.Option(metavar="SEEDS", help="Also run with that many seeds and compare.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write the measured curve under the bounds here (.png, .svg, .pdf).")
    ] = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Show the constants, conditions and bounds of Theorems 1 and 2 for a problem and a setting.

    Each bound comes three times: as the paper states it, as its proof derives it, and corrected where a
    step of the proof fails (docs/paper-errata.md). L, mu and sigma^2 come from formulas where there are
    any; "local" ones are only looked up at a few points, so a bound made of them may fail.

    Example: fedpaq theory synthetic-quadratic -n 10 -r 5 -t 4 -s 4 --measure 20 --plot bound.png
    """
    from fedpaq import Identity, LowPrecision, problems
    from fedpaq.config import MAX_STEPS, require_int
    from fedpaq.theory import estimate
    from fedpaq.theory.verification import CheckSetting

    if measure:
        require_int("measure", measure, 2)
    if plot is not None:
        require_picture(plot, wanted=bool(measure), advice="it shows measured runs; add e.g. --measure 20")
    require_int("local_steps", local_steps, 1, MAX_STEPS)
    require_int("total_steps", total_steps, 1, MAX_STEPS)
    if total_steps % local_steps:
        raise ConfigError(
            f"total_steps={total_steps} is not a multiple of local_steps={local_steps}; choose a multiple"
        )
    task = problems.load(
        problem, num_clients=num_clients, seed=seed, data_dir=data_dir, regularization=regularization
    )
    setting = CheckSetting(
        clients_per_round=clients_per_round,
        local_steps=local_steps,
        batch_size=batch_size,
        quantizer=LowPrecision(levels) if levels else Identity(),
        num_seeds=max(measure, 2),
    )
    estimates = estimate(task)
    report = _report(task, estimates, setting, total_steps)
    check = _measure(task, estimates, setting, total_steps) if measure else None
    if check is not None:
        report["measured"] = check.to_dict()
    if json:
        typer.echo(json_module.dumps(report, indent=1, allow_nan=False))
    else:
        _print(report, check)
    if plot is not None and check is not None:
        from fedpaq.theory.verification.plot import save_plot

        save_plot([check], [f"{task.name}: Theorem {check.theorem}"], plot)


def _report(task: Problem, estimates: Estimates, setting: CheckSetting, total_steps: int) -> dict[str, Any]:
    """Return everything that needs no run, as plain values."""
    from fedpaq.theory.verification.theorems import VARIANTS, non_convex_bound, strongly_convex_bound

    report: dict[str, Any] = {
        "problem": task.name,
        "setting": {**setting.to_dict(), "num_clients": task.num_clients, "total_steps": total_steps},
        "q": setting.quantizer.variance_bound(task.dimension),
        "constants": {name: _plain(getattr(estimates, name)) for name in SYMBOLS},
        "theorem_1": {},
        "theorem_2": {},
    }
    for variant in VARIANTS:
        second = non_convex_bound(task, estimates, setting, total_steps, variant)
        report["theorem_2"][variant] = {
            "B2": second.b2,
            "N1": second.n1,
            "N2": second.n2,
            "largest tau": second.largest_local_steps,
            "unmet": [condition.text for condition in second.conditions() if not condition.holds],
            "bound": second.at(estimates.initial_gap.value) if second.holds else None,
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
            "unmet": [condition.text for condition in first.conditions() if not condition.holds],
            "bound": first.at(last, estimates.initial_error.value),
        }
    return report


def _measure(task: Problem, estimates: Estimates, setting: CheckSetting, total_steps: int) -> Check:
    """Run the schedule of whichever theorem applies."""
    from fedpaq.theory.verification import check_non_convex, check_strongly_convex
    from fedpaq.theory.verification.theorems import VARIANTS, strongly_convex_bound

    if estimates.optimum is None:
        return check_non_convex(task, estimates, setting, [total_steps])
    bounds = [strongly_convex_bound(task, estimates, setting, variant) for variant in VARIANTS]
    first_round = max(bound.first_round for bound in bounds)
    if 2 * first_round > MOST_ROUNDS:
        raise ConfigError(
            f"k0={first_round} rounds pass before Theorem 1 says anything, more than the {MOST_ROUNDS // 2} "
            "that are run; raise --regularization, --levels or --clients-per-round"
        )
    return check_strongly_convex(task, estimates, setting, num_rounds=2 * first_round)


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "certainty": estimate.certainty, "source": estimate.source}


def _print(report: dict[str, Any], check: Check | None) -> None:
    console = Console()
    setting = report["setting"]
    console.print(
        f"[bold]{report['problem']}[/bold]: n={setting['num_clients']}, r={setting['clients_per_round']}, "
        f"tau={setting['local_steps']}, T={setting['total_steps']}, B={setting['batch_size']}, "
        f"{setting['quantizer']} with q={report['q']:.3g}"
    )
    _print_constants(console, report["constants"])
    if report["theorem_1"]:
        _print_bounds(console, "Theorem 1: E||x - x*||^2, T steps after k0 rounds", report["theorem_1"])
    else:
        console.print("Theorem 1 needs a strongly convex loss; this one is not known to be.")
    _print_bounds(console, "Theorem 2: mean of E||grad f||^2 over T steps", report["theorem_2"])
    if check is not None:
        _print_check(console, check)


def _print_constants(console: Console, constants: dict[str, Any]) -> None:
    table = Table(box=None)
    for column in ("constant", "value", "certainty", "from"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for name, symbol in SYMBOLS.items():
        found = constants[name]
        row = (
            ("-", "none", "")
            if found is None
            else (f"{found['value']:.4g}", found["certainty"], found["source"])
        )
        table.add_row(symbol, *row)
    console.print(table)


def _print_bounds(console: Console, title: str, variants: dict[str, dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("")
    for variant in variants:
        table.add_column(variant.replace("_", " "), justify="right")
    for name in next(iter(variants.values())):
        table.add_row(name, *[_cell(values[name]) for values in variants.values()])
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(value) or "none"
    if value is None:
        return "does not apply"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_check(console: Console, check: Check) -> None:
    console.print(
        f"Measured over {check.setting['num_seeds']} seeds: {check.mean[-1]:.4g} "
        f"(standard error {check.standard_error[-1]:.2g}) after {check.steps[-1]} steps."
    )
    for bound in check.bounds:
        name = bound.variant.replace("_", " ")
        if bound.worst_ratio is None:
            console.print(f"  {name}: the theorem is silent; its conditions are not met")
            continue
        verdict = "under" if bound.verdict == "holds" else "[red]ABOVE[/red]"
        where = "" if bound.first_round is None else f" from round {bound.first_round} on"
        console.print(f"  {name}: {verdict} the bound{where}, at most {bound.worst_ratio:.2g} of it")
    if check.slope is not None:
        console.print(f"  slope {check.slope.value:.2f} [{check.slope.low:.2f}, {check.slope.high:.2f}]")
