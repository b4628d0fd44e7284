"""Checks Theorems 1 and 2 against runs: docs/figures/theory/*.png and results.json.

    python benchmarks/theory_verification.py            all checks (about ten minutes on one core)
    python benchmarks/theory_verification.py mnist      only those named so ("none": only draw)

Exits 1 if a measured mean lies above a bound. Writes the table of docs/theory.md from the JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedpaq
from fedpaq import problems
from fedpaq.problems import Partition, Problem
from fedpaq.theory import estimate
from fedpaq.theory.verification import BoundCurve, Check, CheckSetting, check_non_convex, check_strongly_convex
from fedpaq.theory.verification.plot import save_plot

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "figures" / "theory"
MARKS = ("<!-- results: benchmarks/theory_verification.py -->\n", "<!-- end of results -->\n")
LOCAL_STEPS_OF_THEOREM_2 = (400, 1600, 6400, 25600)


def shared(num_samples: int, num_clients: int) -> Partition:
    """Let every client draw from the same samples: f_i = f, as the theorems assume."""
    offsets = np.arange(num_clients + 1, dtype=np.int64) * num_samples
    return Partition(np.tile(np.arange(num_samples), num_clients), offsets)


def squared_sigmoid(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (sigmoid(z) - y)^2: smooth, bounded, not convex."""
    return nn.functional.mse_loss(torch.sigmoid(outputs), targets)


def quadratic() -> Problem:
    return problems.synthetic_quadratic(num_clients=10)


def mnist_logistic(split: bool = False) -> Problem:
    """Logistic regression with regularization 1, so that k0 is reachable; 10 clients."""
    source = problems.load("mnist-logistic", num_clients=10, regularization=1.0)
    return Problem(
        model=source.model,
        loss=source.loss,
        inputs=source.inputs,
        targets=source.targets,
        partition=source.partition if split else shared(len(source.inputs), 10),
        regularization=source.regularization,
        name="mnist-logistic (split samples)" if split else "mnist-logistic",
    )


def sigmoid_regression(source: Problem, name: str, num_samples: int) -> Problem:
    """A non-convex problem whose L, sigma^2 and gap have rigorous bounds."""
    inputs, targets = source.inputs[:num_samples], source.targets[:num_samples]
    return Problem(
        model=source.model,
        loss=squared_sigmoid,
        inputs=inputs,
        targets=targets,
        partition=shared(num_samples, 10),
        name=name,
    )


def synthetic_sigmoid() -> Problem:
    source = problems.synthetic_logistic(num_clients=1, samples_per_client=400, dimension=10, seed=3)
    return sigmoid_regression(source, "synthetic-sigmoid", 400)


def mnist_sigmoid() -> Problem:
    return sigmoid_regression(problems.load("mnist-logistic"), "mnist-sigmoid", 1000)


@dataclass(frozen=True)
class Job:
    """One panel of a figure."""

    name: str
    figure: str
    title: str
    problem: Problem
    setting: CheckSetting
    theorem: int = 1
    from_first_round: bool = False
    num_rounds: int | None = None

    def run(self) -> Check:
        estimates = estimate(self.problem)
        if self.theorem == 2:
            return check_non_convex(self.problem, estimates, self.setting, LOCAL_STEPS_OF_THEOREM_2[: self.num_rounds])
        return check_strongly_convex(
            self.problem, estimates, self.setting, num_rounds=self.num_rounds, from_first_round=self.from_first_round
        )


def jobs() -> list[Job]:
    s4, s28 = fedpaq.LowPrecision(levels=4), fedpaq.LowPrecision(levels=28)
    partial = CheckSetting(clients_per_round=5, local_steps=4, quantizer=s4, num_seeds=100)
    mnist = CheckSetting(clients_per_round=8, local_steps=2, quantizer=s28)
    quantized = CheckSetting(clients_per_round=5, local_steps=2, quantizer=s4, num_seeds=20)
    return [
        Job("quadratic-fedpaq", "quadratic", "FedPAQ: r=5 of 10, τ=4, s=4", quadratic(), partial),
        Job(
            "quadratic-from-k0",
            "quadratic",
            "the same, schedule begun at k0",
            quadratic(),
            partial,
            from_first_round=True,
            num_rounds=1700,
        ),
        Job(
            "quadratic-local-sgd",
            "special-cases",
            "local SGD: r=n=10, τ=4, no quantizer",
            quadratic(),
            CheckSetting(clients_per_round=10, local_steps=4),
            num_rounds=2000,
        ),
        Job(
            "quadratic-parallel-sgd",
            "special-cases",
            "parallel SGD: r=n=10, τ=1, no quantizer",
            quadratic(),
            CheckSetting(clients_per_round=10, local_steps=1),
            num_rounds=4000,
        ),
        Job(
            "mnist-shared",
            "mnist-logistic",
            "MNIST 0/8, μ=1: r=8 of 10, τ=2, s=28",
            mnist_logistic(),
            mnist,
            num_rounds=4500,
        ),
        Job(
            "mnist-split",
            "mnist-logistic",
            "the same, each client its own 1000 samples",
            mnist_logistic(split=True),
            mnist,
            num_rounds=4500,
        ),
        Job(
            "sigmoid-synthetic",
            "non-convex",
            "sigmoid regression, p=10: r=5 of 10, τ=2, s=4",
            synthetic_sigmoid(),
            quantized,
            theorem=2,
        ),
        Job(
            "sigmoid-mnist",
            "non-convex",
            "sigmoid regression, MNIST: r=8 of 10, τ=2, s=28",
            mnist_sigmoid(),
            CheckSetting(clients_per_round=8, local_steps=2, quantizer=s28, num_seeds=10),
            theorem=2,
            num_rounds=3,
        ),
    ]


def ratio_text(bound: BoundCurve) -> str:
    """Return the largest ratio; for Theorem 2 also where its conditions are not met and it says nothing."""
    if bound.worst_ratio is None:
        return "silent"
    silent = int(np.isnan(bound.values).sum()) if bound.first_round is None else 0  # of Theorem 1: before k0
    return f"{bound.worst_ratio:.2g}" + (f" (silent at {silent} of {len(bound.values)} T)" if silent else "")


def describe(check: Check) -> str:
    ratios = ", ".join(f"{bound.variant} {ratio_text(bound)}" for bound in check.bounds)
    slope = check.slope
    fitted = "" if slope is None else f"; slope {slope.value:.3f} [{slope.low:.3f}, {slope.high:.3f}]"
    return f"measured / bound at most {ratios}{fitted}"


def write_table(results: dict[str, Any]) -> None:
    """Replace the table between the marks of docs/theory.md."""
    rows = [
        "| check | seeds | largest measured / bound: as stated, as derived, corrected | slope [95 %] |",
        "| --- | --- | --- | --- |",
    ]
    for result in results.values():
        ratios = ", ".join(ratio_text(bound) for bound in Check.from_dict(result).bounds)
        slope = result["slope"]
        fitted = "-" if slope is None else f"{slope['value']:.2f} [{slope['low']:.2f}, {slope['high']:.2f}]"
        name = f"{result['problem']}: {result['title']}"
        rows.append(f"| {name} | {result['setting']['num_seeds']} | {ratios} | {fitted} |")
    page = DOCS / "theory.md"
    before, rest = page.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(before + MARKS[0] + "\n" + "\n".join(rows) + "\n\n" + MARKS[1] + after)


def main() -> int:
    torch.set_num_threads(1)  # tiny operations: threads only wait for each other
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    results_at = FOLDER / "results.json"
    results = json.loads(results_at.read_text()) if results_at.exists() and wanted else {}
    for job in [job for job in jobs() if wanted in job.name]:
        begun = time.perf_counter()
        check = job.run()
        results[job.name] = {"figure": job.figure, "title": job.title, **check.to_dict()}
        print(f"{job.name}: {describe(check)}; {time.perf_counter() - begun:.0f} s", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    results_at.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    draw(results)
    write_table(results)
    verdicts = {name: Check.from_dict(result).verdict for name, result in results.items()}
    for verdict in ("fails", "silent"):
        if named := [name for name, found in verdicts.items() if found == verdict]:
            print(f"{verdict}: {', '.join(named)}", file=sys.stderr)
    return int("fails" in verdicts.values())


def draw(results: dict[str, Any]) -> None:
    """Draw every figure from the stored results."""
    for figure in {result["figure"] for result in results.values()}:
        panels = [result for result in results.values() if result["figure"] == figure]
        checks, titles = [Check.from_dict(panel) for panel in panels], [panel["title"] for panel in panels]
        save_plot(checks, titles, FOLDER / f"{figure}.png")


if __name__ == "__main__":
    sys.exit(main())
