"""``Rotated`` on the GPU: first what must be equal to the bit, then what it costs beside ``LowPrecision``.

PYTHONPATH=src python3 benchmarks/gpu_rotated.py [--only SECTION ...]

Writes gpu_rotated.json to the folder named by the environment variable OUT, else to benchmarks/results/, with
the traceback of a section that failed in its place. The exit code tells whether one did.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedpaq
import gpu
import rotated_checks
from fedpaq.clients import Batched, Sequential, local_work
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.devices import require_device
from fedpaq.kernels import cuda
from fedpaq.quantizers.rotated import plans
from fedpaq.quantizers.rotated.allocation import body_bits, candidates
from fedpaq.quantizers.rotated.decisions import decide
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.server.aggregation import Mean
from fedpaq.server.device_batch import DEVICE_BATCHES
from fedpaq.server.encoded import Encoded
from fedpaq.server.on_device import OnDevice
from measurement import RESULTS, machine, summary

REPEATS = 7
CLIENTS, DIMENSION, BITS = 10_000, 92_027, 0.03
TIMED = 4096  # clients of one chunk, for which single passes are timed; figures are scaled to CLIENTS
CUTS = (1, 3, 6, 12, 23)  # blocks of the 92,027 coordinates
# The first is what is used. (whole, part, coordinates_a_warp, column_coordinates_a_warp, radix, columns)
TILINGS = {
    "default": {},
    "512 a warp": {"coordinates_a_warp": 512},
    "2048 a warp": {"coordinates_a_warp": 2048},
    "whole 8192": {"whole": 8192},
    "whole 16384": {"whole": 16_384},
    "part 4096": {"part": 4096},
    "part 16384": {"part": 16_384},
    "columns 256, 1024 a warp": {"columns": 256, "column_coordinates_a_warp": 1024},
}


def tilings() -> dict[str, Any]:
    """Return the tilings of the table."""
    return {name: cuda.load("rotation").Tiling(**options) for name, options in TILINGS.items()}


def attempt(section: Callable[[], Any]) -> Any:
    """Run a part; an error becomes its result, so that the others still run."""
    try:
        return section()
    except Exception:
        text = traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        return {"error": text.splitlines()[-1], "traceback": text[-3000:]}


def check_shapes() -> dict[str, Any]:
    """Compare the kernels with their twins, every shape with the first tiling, one with each of the others."""
    device, found = require_device(gpu.DEVICE), {}
    for number, (name, tiling) in enumerate(tilings().items()):
        shapes = rotated_checks.SHAPES if number == 0 else [(92_027, 3), (92_027, 12), (1_000_003, 1)]
        for shape in shapes:
            check = lambda: rotated_checks.check_shape(device, *shape, tiling)  # noqa: B023
            found[f"{name}: {shape}"] = attempt(check) or "equal to the bit"
    return found


def check_batches() -> dict[str, Any]:
    """Compare messages, payloads and sums with the CPU's."""
    device, found = require_device(gpu.DEVICE), {}
    for dimension, bits in rotated_checks.BATCHES:
        found[f"{dimension} at {bits} bits"] = attempt(
            lambda: rotated_checks.check_batch(device, dimension, bits)  # noqa: B023
        )
    return found


def passes() -> dict[str, Any]:
    """Time rotation, rounding and the way back for each cut and tiling, in seconds for 10,000 clients."""
    updates = torch.randn(TIMED, -(-DIMENSION // 32) * 32, device=gpu.DEVICE)[:, :DIMENSION]
    found: dict[str, Any] = {"cells": scaled_median(lambda: cuda.load("rounding").sum_cells(updates))}
    for count in CUTS:
        blocks = Blocks(DIMENSION, count)
        name = f"{count} blocks of {blocks.size}"
        found[name] = attempt(lambda: passes_of_a_cut(updates, blocks))  # noqa: B023
        print(name, json.dumps(found[name], indent=1), flush=True)
        torch.cuda.empty_cache()
    return found


def scaled_median(function: Callable[[], Any]) -> float:
    """Return the median seconds of a pass over a chunk, scaled to all clients."""
    return CLIENTS / TIMED * gpu.median(function, REPEATS)


def passes_of_a_cut(updates: torch.Tensor, blocks: Blocks) -> dict[str, Any]:
    """Time the passes over updates that are cut into these blocks."""
    rotation, rounding = cuda.load("rotation"), cuda.load("rounding")
    shape = rotation.Shape(DIMENSION, blocks.count, blocks.length, blocks.size, blocks.turns)
    energies = np.full((TIMED, blocks.count), float(DIMENSION / blocks.count))
    bits = body_bits(DIMENSION, fedpaq.Rotated(bits=BITS).target_bytes(DIMENSION))
    plan = plans.roundings(blocks, energies, np.ones(TIMED), bits)
    arrays = plan.factors, plan.wanted.astype(np.int32), plan.least, np.float32(0.5) / plan.least
    factors, wanted, least, inverses = (torch.as_tensor(values, device=gpu.DEVICE) for values in arrays)
    most, numbers = int(plan.wanted.max()), torch.arange(TIMED, device=gpu.DEVICE)
    signs = rotation.draw_signs(numbers, 0, numbers, shape)
    rotated = rotation.rotate(updates, numbers, factors, signs, shape)
    rounded = rounding.round_blocks(rotated, wanted, least, inverses, most, torch.int8)
    scales = torch.ones(TIMED, blocks.count, dtype=torch.float64, device=gpu.DEVICE)
    estimates = torch.zeros(TIMED, -(-DIMENSION // 256) * 256, device=gpu.DEVICE)
    units = torch.ones(TIMED, 1, dtype=torch.float64, device=gpu.DEVICE)
    total = torch.zeros(1, DIMENSION, dtype=torch.float64, device=gpu.DEVICE)
    bounds = torch.tensor([0, TIMED], device=gpu.DEVICE)
    levels, add_rows = rounded.levels, cuda.load("low_precision").add_rows

    def way(tiling: Any) -> dict[str, float]:
        return {
            "forth": scaled_median(lambda: rotation.rotate(updates, numbers, factors, signs, shape, tiling)),
            "back": scaled_median(
                lambda: rotation.rotate_back(levels, numbers, numbers, scales, signs, shape, estimates, tiling)
            ),
        }

    return {
        "wanted in a block": most,
        "signs": scaled_median(lambda: rotation.draw_signs(numbers, 0, numbers, shape)),
        "rounding": scaled_median(lambda: rounding.round_blocks(rotated, wanted, least, inverses, most, torch.int8)),
        "sum": scaled_median(lambda: add_rows(estimates, units, bounds, total)),
        **{name: attempt(lambda: way(tiling)) for name, tiling in tilings().items()},  # noqa: B023
    }


def work_of(clients: int) -> LocalWork:
    """Return the keys of one run's clients."""
    nothing = np.zeros(0, np.float32)
    numbers = np.arange(clients)
    return LocalWork(nothing, np.zeros(clients, np.int64), numbers, np.zeros(clients, np.uint64), nothing, nothing, 1)


def updates_of(kind: str) -> torch.Tensor:
    """Return 10,000 updates: Gaussian, uneven along the vector, or each its own."""
    updates = torch.randn(CLIENTS, -(-DIMENSION // 32) * 32, device=gpu.DEVICE)[:, :DIMENSION]
    along = torch.linspace(0, 1, DIMENSION, device=gpu.DEVICE)
    if kind == "uneven":
        updates *= torch.exp(2 * along)
    elif kind == "mixed":
        for row in range(CLIENTS):
            updates[row] *= torch.exp(4 * (row / CLIENTS) * along)
    return updates


def quantize() -> dict[str, Any]:
    """Time quantize, inverse + sum and payload sizes of 10,000 updates, beside ``LowPrecision(1)``."""
    found: dict[str, Any] = {}
    work = work_of(CLIENTS)
    bounds = torch.tensor([0, CLIENTS], device=gpu.DEVICE)
    total = torch.zeros(1, DIMENSION, dtype=torch.float64, device=gpu.DEVICE)
    for kind in ("gaussian", "uneven", "mixed"):
        updates = updates_of(kind)
        for quantizer in (fedpaq.Rotated(bits=BITS), fedpaq.LowPrecision(1)):
            found[f"{kind}, {quantizer.name}"] = attempt(
                lambda: parts_of_a_batch(quantizer, updates, work, bounds, total)  # noqa: B023
            )
        updates = torch.empty(0)
        torch.cuda.empty_cache()
    return found


def parts_of_a_batch(
    quantizer: Any, updates: torch.Tensor, work: LocalWork, bounds: torch.Tensor, total: torch.Tensor
) -> dict[str, Any]:
    """Return wall-clock medians, each part ended by a synchronisation, and all of it in one go."""
    times: dict[str, list[float]] = {"quantize": [], "inverse and sum": [], "sizes": [], "all": []}
    cuts: Any = None
    for repeat in range(REPEATS + 2):
        marks = [time.perf_counter()]
        batch = DEVICE_BATCHES[type(quantizer)](quantizer, updates, work)
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        batch.add_to(total, bounds)
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        sizes = batch.payload_bytes()
        marks.append(time.perf_counter())
        again = DEVICE_BATCHES[type(quantizer)](quantizer, updates, work)
        again.add_to(total, bounds)
        again.payload_bytes()
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        if repeat > 1:
            for name, seconds in zip(times, np.diff(marks), strict=True):
                times[name].append(float(seconds))
        if isinstance(quantizer, fedpaq.Rotated):
            cuts = {}
            for group in (group for chunk in batch._groups for group in chunk):
                cuts[group.blocks.count] = cuts.get(group.blocks.count, 0) + len(group.jobs)
        del batch, again
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"seconds": medians, "mean payload bytes": float(sizes.mean()), "clients by blocks": cuts}


def planning() -> dict[str, Any]:
    """Time what the host decides for 10,000 clients."""
    bits = body_bits(DIMENSION, fedpaq.Rotated(bits=BITS).target_bytes(DIMENSION))
    cuts, rng = candidates(DIMENSION, bits), np.random.default_rng(0)
    firsts = np.cumsum([0, *(cut.count for cut in cuts)])[:-1].tolist()
    energies = rng.random((CLIENTS, sum(cut.count for cut in cuts))) + 0.1
    totals = energies[:, firsts[-1] :].sum(axis=1)
    energies[:, 0] = totals
    times = []
    for repeat in range(REPEATS + 1):
        start = time.perf_counter()
        decide(cuts, energies, firsts, totals, bits)
        if repeat:  # the first loads the kernel
            times.append(time.perf_counter() - start)
    return {"cuts": [cut.count for cut in cuts], **summary(times), "cores": os.cpu_count()}


def profile() -> dict[str, Any]:
    """Say which kernels take the time of one batch of mixed updates, in milliseconds."""
    updates, work = updates_of("mixed"), work_of(CLIENTS)
    bounds = torch.tensor([0, CLIENTS], device=gpu.DEVICE)
    total = torch.zeros(1, DIMENSION, dtype=torch.float64, device=gpu.DEVICE)

    def once() -> None:
        batch = DEVICE_BATCHES[fedpaq.Rotated](fedpaq.Rotated(bits=BITS), updates, work)
        batch.add_to(total, bounds)
        batch.payload_bytes()
        torch.cuda.synchronize()

    once()
    once()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as seen:
        once()
    spent = {}
    for event in seen.key_averages():
        micro = getattr(event, "self_device_time_total", None) or getattr(event, "self_cuda_time_total", 0)
        if micro > 100:
            spent[event.key[:70]] = {"ms": micro / 1e3, "calls": event.count}
    return dict(sorted(spent.items(), key=lambda item: -item[1]["ms"])[:25])


def one_round() -> dict[str, Any]:
    """Time whole rounds of 10,000 clients, ten local steps of batch ten, by quantizer; and local work alone."""
    problem = gpu.mlp_problem(CLIENTS).to(require_device(gpu.DEVICE))
    config = gpu.config_of(CLIENTS, rounds=12)
    (work,) = local_work(problem, [config], 0, problem.initial_params[None], np.arange(CLIENTS)[None])
    executor = Batched()
    found: dict[str, Any] = {
        "local_seconds": attempt(lambda: gpu.median(lambda: executor.local_updates(problem, work), REPEATS))
    }
    updates = executor.local_updates(problem, work)
    batch = attempt(lambda: DEVICE_BATCHES[fedpaq.Rotated](fedpaq.Rotated(bits=BITS), updates, work))
    if not isinstance(batch, dict):
        cuts: dict[int, int] = {}
        for group in (group for chunk in batch._groups for group in chunk):
            cuts[group.blocks.count] = cuts.get(group.blocks.count, 0) + len(group.jobs)
        found["clients by blocks"], found["clients on the host"] = cuts, len(batch._on_host)
    updates = batch = None
    torch.cuda.empty_cache()
    for quantizer in (fedpaq.Rotated(bits=BITS), fedpaq.LowPrecision(1), None):
        options = {} if quantizer is None else {"quantizer": quantizer}
        name = "float32" if quantizer is None else quantizer.name
        found[name] = attempt(lambda: summary(gpu.round_seconds(problem, config, **options)))  # noqa: B023
        torch.cuda.empty_cache()
    found["peak_bytes"] = torch.cuda.max_memory_reserved()
    return found


def small_problem(width: int) -> fedpaq.Problem:
    """Return a dense network of 64 inputs, one hidden layer and five classes."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(400, 64, generator=generator)
    labels = torch.randint(0, 5, (400,), generator=generator)
    inputs[:, 0] += labels
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 5))
    partition = fedpaq.problems.iid(400, num_clients=20, seed=1)
    loss = torch.nn.functional.cross_entropy
    return fedpaq.Problem(model=model, loss=loss, inputs=inputs, targets=labels, partition=partition)


def training() -> dict[str, Any]:
    """Train on both devices; and average one round's updates, the same on both, whose mean must be equal."""
    config = fedpaq.FedPAQConfig(clients_per_round=7, local_steps=4, total_steps=24, batch_size=5, step_size=0.05)
    found = {}
    for width, bits in ((20, 0.5), (150, 0.1), (150, 2.0), (600, 0.05)):
        found[f"hidden {width}, {bits} bits"] = attempt(lambda: train_both(width, bits, config))  # noqa: B023
    return found


def train_both(width: int, bits: float, config: fedpaq.FedPAQConfig) -> dict[str, Any]:
    """Compare training on the GPU and on the CPU, then one round's mean of the very same updates."""
    problem, quantizer = small_problem(width), fedpaq.Rotated(bits=bits)
    here = fedpaq.train(problem, config, quantizer=quantizer, device=gpu.DEVICE)
    there = fedpaq.train(problem, config, quantizer=quantizer, executor="sequential")
    (work,) = local_work(problem, [config], 2, problem.initial_params[None], np.arange(7)[None])
    updates = torch.as_tensor(np.asarray(Sequential().local_updates(problem, work)))
    device = require_device(gpu.DEVICE)
    inbox = OnDevice(quantizer, device).open(1, problem.dimension)
    inbox.add(updates.to(device), work)
    twin = Encoded(quantizer, Mean()).open(1, problem.dimension)
    twin.add(updates, work)
    (mean, size), (twin_mean, twin_size) = inbox.finish(), twin.finish()
    if not np.array_equal(mean, twin_mean):
        raise AssertionError(f"means of the same updates differ by {np.abs(mean - twin_mean).max()}")
    return {
        "dimension": problem.dimension,
        "means of the same updates": "equal to the bit",
        "payload bytes of these, here and there": [int(size[0]), int(twin_size[0])],
        "params after training equal": bool(np.array_equal(here.params, there.params)),
        "largest difference of params (local work differs in last bits)": float(
            np.abs(here.params - there.params).max()
        ),
        "losses": [here.final.loss, there.final.loss],
        "payload bytes": [here.final.payload_bytes, there.final.payload_bytes],
        "payload size sources": [here.payload_size_source, there.payload_size_source],
    }


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "imports": gpu.imports,
    "check_shapes": check_shapes,
    "check_batches": check_batches,
    "training": training,
    "planning": planning,
    "quantize": quantize,
    "one_round": one_round,
    "profile": profile,
    "passes": passes,
}


def main() -> None:
    """Run the sections asked for, print each as it ends, write gpu_rotated.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SECTIONS], default=[*SECTIONS])
    only = parser.parse_args().only
    if not torch.cuda.is_available():
        print("gpu_rotated.json is left as it is: torch finds no CUDA device here", file=sys.stderr)
        sys.exit(gpu.SKIPPED)
    results: dict[str, Any] = {"machine": machine()}
    folder = Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(exist_ok=True)
    for name in only:
        began = time.perf_counter()
        results[name] = attempt(SECTIONS[name])
        seconds = time.perf_counter() - began
        print(f"== {name} ({seconds:.1f} s)\n{json.dumps(results[name], indent=1)}", flush=True)
        (folder / "gpu_rotated.json").write_text(json.dumps(results, indent=1) + "\n")
        torch.cuda.empty_cache()
    failed = [name for name in only if gpu.has_error(results[name])]
    if failed:
        sys.exit(f"failed, in whole or in part: {', '.join(failed)}")


if __name__ == "__main__":
    main()
