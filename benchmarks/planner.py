"""The planner's pick against an exhaustive grid on mnist-logistic: benchmarks/results/planner.json.

    python benchmarks/planner.py

The grid tunes the step size of every tau, r and s on its own seeds, with the loss on all samples after
every round. Times under each ratio follow from the same runs. The pick runs on the grid's seeds too.
Exits 1 unless each pick is within 15 % of the grid's best and took at most a fifth of its gradient steps.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedpaq
from fedpaq.planner import SearchSpace, Shape, Task, plan
from measurement import write

PAGE = Path(__file__).resolve().parent.parent / "docs" / "planning.md"
MARKS = ("<!-- results: benchmarks/planner.py -->\n", "<!-- end of results -->\n")
RATIOS = (1, 100, 10_000)
TARGETS = (0.1, 0.06)
TOTAL_STEPS = 200
SEEDS = range(200, 203)


def run(problem: fedpaq.Problem, shape: Shape, step_sizes: list[float]) -> list[list[fedpaq.History]]:
    """Return the histories of each step size on every seed."""
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=shape.clients_per_round,
            local_steps=shape.local_steps,
            total_steps=TOTAL_STEPS,
            batch_size=10,
            step_size=step_size,
            seed=seed,
        )
        for step_size in step_sizes
        for seed in SEEDS
    ]
    histories = fedpaq.sweep(problem, configs, quantizer=shape.quantizer)
    return [histories[i : i + len(SEEDS)] for i in range(0, len(histories), len(SEEDS))]


def rounds_to(history: fedpaq.History, target: float) -> int | None:
    return next((record.round for record in history.records if record.loss <= target), None)


def mean_seconds(histories: list[fedpaq.History], target: float, ratio: float) -> float:
    """Return the mean modelled time to the target, infinite unless every run got there."""
    bandwidth = fedpaq.CostModel.from_ratio(ratio).bandwidth_for(histories[0].dimension)
    seconds = []
    for history in histories:
        there = rounds_to(history, target)
        if there is None:
            return math.inf
        record = history.records[there]
        seconds.append(record.computation_seconds + 8 * record.payload_bytes / bandwidth)
    return float(np.mean(seconds))


def steps_to(histories: list[fedpaq.History], target: float, shape: Shape) -> int:
    """Return the gradient steps of runs that stop at the target, or at the end."""
    rounds = [rounds_to(history, target) or len(history.records) - 1 for history in histories]
    return sum(rounds) * shape.local_steps * shape.clients_per_round


def main() -> int:
    torch.set_num_threads(1)
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50)
    cost_model = fedpaq.CostModel.from_ratio(100)
    space: SearchSpace = Task(
        problem=problem, target_loss=0.1, cost_model=cost_model, max_clients=50
    ).default_space()
    grid: dict[Shape, list[list[fedpaq.History]]] = {}
    for shape in space.shapes():
        grid[shape] = run(problem, shape, list(space.step_sizes))
        print(f"grid: {shape}", file=sys.stderr, flush=True)
    rows, failed = [], False
    for target in TARGETS:
        steps = sum(steps_to(runs, target, shape) for shape, arms in grid.items() for runs in arms)
        for ratio in RATIOS:
            row = compare(problem, space, grid, target, ratio, steps)
            failed |= row["over_best"] > 1.15 or row["share_of_steps"] > 0.2
            rows.append(row)
            print(row, flush=True)
    write("planner", {"grid_shapes": len(grid), "step_sizes": list(space.step_sizes), "rows": rows})
    write_table(rows)
    return int(failed)


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replace the table between the marks of docs/planning.md."""
    lines = [
        "| target | ratio | best of the grid | pick | pick's time over the best | share of gradient steps |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['target_loss']} | {row['ratio']:,} | {row['grid_best']} | {row['pick']} | "
            f"{row['over_best']:.2f} | {row['share_of_steps']:.1%} |"
        )
    before, rest = PAGE.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(before + MARKS[0] + "\n" + "\n".join(lines) + "\n\n" + MARKS[1] + after)


def compare(
    problem: fedpaq.Problem,
    space: SearchSpace,
    grid: dict[Shape, list[list[fedpaq.History]]],
    target: float,
    ratio: float,
    steps: int,
) -> dict[str, Any]:
    times = {
        (shape, step_size): mean_seconds(runs, target, ratio)
        for shape, arms in grid.items()
        for step_size, runs in zip(space.step_sizes, arms, strict=True)
    }
    (best_shape, best_step), best = min(times.items(), key=lambda item: item[1])
    begun = time.perf_counter()
    found = plan(
        problem, target_loss=target, cost_model=fedpaq.CostModel.from_ratio(ratio), space=space, compare=False
    )
    took = time.perf_counter() - begun
    pick = found.pick
    picked = mean_seconds(run(problem, pick.shape, [pick.step_size])[0], target, ratio)
    return {
        "target_loss": target,
        "ratio": ratio,
        "grid_best": str(best_shape),
        "grid_step_size": best_step,
        "grid_seconds": best,
        "pick": str(pick.shape),
        "pick_step_size": pick.step_size,
        "pick_seconds": picked,
        "predicted": [pick.seconds, pick.low, pick.high],
        "over_best": picked / best,
        "grid_gradient_steps": steps,
        "gradient_steps": found.gradient_steps,
        "share_of_steps": found.gradient_steps / steps,
        "wall_seconds": took,
    }


if __name__ == "__main__":
    sys.exit(main())
