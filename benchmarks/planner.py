"""The planner's pick against an exhaustive grid on mnist-logistic: benchmarks/results/planner.json.

    python benchmarks/planner.py [--grid FILE.npz]       the grid is kept in, or read from, that file

The grid tries every step size for every tau, r and s, with the loss on all samples after every round; the
same runs give the times under each ratio. Single runs differ by half, so the grid's fastest 24 and the
pick are then measured on 32 further seeds, the same for all, and with the mean time of a round's computation.
Exits 1 unless each pick is within 15 % of the grid's best and took at most a fifth of its gradient steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedpaq
from fedpaq.planner import RoundSetting, SearchSpace, Task, plan
from measurement import write

PAGE = Path(__file__).resolve().parent.parent / "docs" / "planning.md"
MARKS = ("<!-- results: benchmarks/planner.py -->\n", "<!-- end of results -->\n")
RATIOS = (1, 100, 10_000)
TARGETS = (0.1, 0.06)
TOTAL_STEPS = 200
SEEDS = range(200, 203)
LAST_SEEDS, LAST = range(300, 332), 24
LOSS, BYTES = range(2)
DIMENSION = 785

Runs = Any  # (step sizes, seeds, K + 1, 2): loss, bytes uploaded


def run(problem: fedpaq.Problem, setting: RoundSetting, step_sizes: list[float], seeds: range = SEEDS) -> Runs:
    """Run each step size on every seed."""
    configs = [
        fedpaq.FedPAQConfig(
            clients_per_round=setting.clients_per_round,
            local_steps=setting.local_steps,
            total_steps=TOTAL_STEPS,
            batch_size=10,
            step_size=step_size,
            seed=seed,
        )
        for step_size in step_sizes
        for seed in seeds
    ]
    runs = np.full((len(configs), TOTAL_STEPS // setting.local_steps + 1, 2), np.inf)
    for row, history in enumerate(fedpaq.sweep(problem, configs, quantizer=setting.quantizer)):
        for record in history.records:  # fewer where the run diverged
            runs[row, record.round] = record.loss, record.payload_bytes
    return runs.reshape(len(step_sizes), len(seeds), -1, 2)


def make_grid(problem: fedpaq.Problem, space: SearchSpace, kept: Path | None) -> dict[RoundSetting, Runs]:
    """Return the runs of every setting, computed or read from ``kept``."""
    stored = dict(np.load(kept)) if kept is not None and kept.exists() else {}
    for setting in space.settings():
        if str(setting) not in stored:
            stored[str(setting)] = run(problem, setting, list(space.step_sizes))
            print(f"grid: {setting}", file=sys.stderr, flush=True)
            if kept is not None:
                np.savez(kept, **stored)
    return {setting: stored[str(setting)] for setting in space.settings()}


def mean_seconds(runs: Any, setting: RoundSetting, target: float, cost_model: fedpaq.CostModel) -> float:
    """Return the mean modelled time to the target of runs (seeds, K + 1, 2), infinite unless all got there."""
    there = runs[:, :, LOSS] <= target
    if not there.any(axis=1).all():
        return float("inf")
    rounds = there.argmax(axis=1)
    uploaded = runs[np.arange(len(runs)), rounds, BYTES].mean()
    each = cost_model.expected_computation_seconds(setting.clients_per_round, 10 * setting.local_steps)
    return float(rounds.mean() * each + cost_model.communication_seconds(8 * uploaded, DIMENSION))


def gradient_steps(grid: dict[RoundSetting, Runs], target: float) -> int:
    """Return what the grid costs when every run stops at the target, or at the end."""
    total = 0
    for setting, runs in grid.items():
        there = runs[..., LOSS] <= target
        rounds = np.where(there.any(axis=-1), there.argmax(axis=-1), runs.shape[2] - 1)
        total += int(rounds.sum()) * setting.local_steps * setting.clients_per_round
    return total


def compare(
    problem: fedpaq.Problem, space: SearchSpace, grid: dict[RoundSetting, Runs], target: float, ratio: int
) -> dict[str, Any]:
    cost_model = fedpaq.CostModel.from_ratio(ratio)

    def measured(setting: RoundSetting, step_size: float) -> float:
        runs = run(problem, setting, [step_size], LAST_SEEDS)[0]
        return mean_seconds(runs, setting, target, cost_model)

    times = {
        (setting, step_size): mean_seconds(runs, setting, target, cost_model)
        for setting, candidates in grid.items()
        for step_size, runs in zip(space.step_sizes, candidates, strict=True)
    }
    fastest = sorted(times, key=lambda candidate: times[candidate])[:LAST]
    seconds = {candidate: measured(*candidate) for candidate in fastest}
    (best_setting, best_step), best = min(seconds.items(), key=lambda pair: pair[1])
    begun = time.perf_counter(), time.process_time()
    found = plan(problem, target_loss=target, cost_model=cost_model, space=space, compare=False)
    took = time.perf_counter() - begun[0], time.process_time() - begun[1]
    pick, steps = found.pick, gradient_steps(grid, target)
    picked = measured(pick.setting, pick.step_size)
    return {
        "target_loss": target,
        "ratio": ratio,
        "grid_best": str(best_setting),
        "grid_step_size": best_step,
        "grid_seconds": best,
        "pick": str(pick.setting),
        "pick_step_size": pick.step_size,
        "pick_seconds": picked,
        "predicted": [pick.seconds, pick.low, pick.high],
        "over_best": picked / best,
        "grid_gradient_steps": steps,
        "gradient_steps": found.gradient_steps,
        "share_of_steps": found.gradient_steps / steps,
        "wall_seconds": took[0],
        "processor_seconds": took[1],
    }


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tiny operations: threads only wait for each other
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50)
    task = Task(problem=problem, target_loss=0.1, cost_model=fedpaq.CostModel.from_ratio(100), max_clients=50)
    space = task.default_space()
    grid = make_grid(problem, space, arguments.grid)
    rows = []
    for target in TARGETS:
        for ratio in RATIOS:
            rows.append(compare(problem, space, grid, target, ratio))
            print(rows[-1], flush=True)
    write("planner", {"grid_shapes": len(grid), "step_sizes": list(space.step_sizes), "rows": rows})
    write_table(rows)
    return int(any(row["over_best"] > 1.15 or row["share_of_steps"] > 0.2 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
