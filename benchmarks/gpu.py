"""The GPU path: first what must be equal, then what it costs. Needs torch with CUDA, Triton and NumPy only.

PYTHONPATH=src python3 benchmarks/gpu.py [--only SECTION ...] [--repeats 9]

Writes gpu.json to the folder named by the environment variable OUT, else to benchmarks/results/. Without a
CUDA device, or if a section fails, nothing is written.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
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
import gpu_checks
from fedpaq.clients import Batched, Vectorised, local_work
from fedpaq.clients.graphs import Graphs
from fedpaq.hardware.devices import require_device
from fedpaq.kernels import cuda
from fedpaq.problems.relu_network import relu_network
from measurement import RESULTS, machine, summary

REPEATS = 9
DEVICE = "cuda"
SKIPPED = 77  # exit code: nothing was measured, and `make bench` says so
MLP = (3072, 29, 29, 29, 29, 10)  # 92,027 parameters


def gpu_seconds(function: Callable[[], Any], repeats: int = 0) -> list[float]:
    """Time a function on the GPU by events, after two warm-up calls."""
    function(), function()
    times = []
    for _ in range(repeats or REPEATS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return times


def median(function: Callable[[], Any], repeats: int = 0) -> float:
    """Return the median GPU seconds of a function."""
    return statistics.median(gpu_seconds(function, repeats))


def mlp_problem(num_clients: int, samples: int = 20_000) -> fedpaq.Problem:
    """Return the 92,027-parameter network on random data; client i holds ten of the samples."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, MLP[0], generator=generator)
    labels = torch.randint(0, 10, (samples,), generator=generator)
    held = (np.arange(num_clients)[:, None] * 10 + np.arange(10)) % samples
    partition = fedpaq.problems.Partition(held.ravel(), np.arange(num_clients + 1) * 10)
    cross_entropy = torch.nn.functional.cross_entropy
    return fedpaq.Problem(
        model=relu_network(MLP), loss=cross_entropy, inputs=inputs, targets=labels, partition=partition
    )


def config_of(clients_per_round: int, rounds: int, local_steps: int = 10) -> fedpaq.FedPAQConfig:
    """Return r clients, tau local steps, batch 10."""
    return fedpaq.FedPAQConfig(
        clients_per_round=clients_per_round, local_steps=local_steps, total_steps=rounds * local_steps,
        step_size=0.01,
    )  # fmt: skip


def imports() -> dict[str, Any]:
    """Say what is installed besides torch, Triton and NumPy."""
    optional = ("numba", "scipy", "constriction", "threadpoolctl", "typer", "rich", "matplotlib", "pooch")
    found = [name for name in optional if importlib.util.find_spec(name)]
    return {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "optional packages": found}


def checks() -> dict[str, Any]:
    """Run every comparison of ``gpu_checks``; a failure is reported and the others go on."""
    device, found = require_device(DEVICE), {}
    for check in (
        gpu_checks.check_kernels,
        gpu_checks.check_non_finite,
        gpu_checks.check_draws,
        gpu_checks.check_executors,
        gpu_checks.check_training,
    ):
        found[check.__name__] = attempt(lambda: check(device))  # noqa: B023
    return found


def copy_bandwidth() -> float:
    """Return bytes a second of a device-to-device copy, read and written bytes counted."""
    source = torch.zeros(2**30, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / median(lambda: target.copy_(source))


def quantize() -> dict[str, Any]:
    """Time the passes of quantize-and-sum against copying, for many clients and for a large model."""
    bandwidth = copy_bandwidth()
    found: dict[str, Any] = {"copy_bytes_per_second": bandwidth}
    for jobs, dimension, levels in [(10_000, 92_027, 1), (10_000, 92_027, 10), (40, 25_000_000, 1)]:
        found[f"{jobs} x {dimension}, s={levels}"] = passes(jobs, dimension, levels, bandwidth)
        torch.cuda.empty_cache()
    return found


def passes(jobs: int, dimension: int, levels: int, bandwidth: float) -> dict[str, float]:
    """Return the seconds of each pass, and their bytes a second as a share of the copy's."""
    kernels = cuda.load("low_precision")
    updates = torch.randn(jobs, -(-dimension // 32) * 32, device=DEVICE)[:, :dimension]
    numbers = torch.arange(jobs, device=DEVICE)
    bounds = torch.tensor([0, jobs], device=DEVICE)
    total = torch.zeros(1, dimension, dtype=torch.float64, device=DEVICE)
    batch = kernels.quantize(updates, numbers, 0, numbers, levels, None)
    norms = median(lambda: kernels.find_norms(updates, levels, dimension, 1))
    both = median(lambda: kernels.quantize(updates, numbers, 0, numbers, levels, None))
    adding = median(lambda: kernels.add_levels(batch, bounds, total))
    size, seconds = 4 * jobs * dimension, both + adding
    return {
        "seconds": seconds,
        "norm_seconds": norms,
        "level_seconds": both - norms,
        "sum_seconds": adding,
        "share_of_copy_bandwidth_updates_counted_once": size / seconds / bandwidth,
        "share_of_copy_bandwidth_bytes_moved": 2.5 * size / seconds / bandwidth,
    }


def one_round(clients: int = 10_000) -> dict[str, Any]:
    """Time one round of 10,000 clients: local work by executor, quantize and average, a whole round."""
    problem = mlp_problem(clients).to(require_device(DEVICE))
    config = config_of(clients, rounds=12)
    start = problem.initial_params[None]
    participants = np.arange(clients)[None]
    found: dict[str, Any] = {}
    (work,) = local_work(problem, [config], 0, start, participants)
    for name, executor in {"batched": Batched(), "vmap": Vectorised(graphs=Graphs(capture=False))}.items():
        found[f"{name}_seconds"] = median(lambda: executor.local_updates(problem, work))  # noqa: B023
        torch.cuda.empty_cache()
    quantizer = fedpaq.LowPrecision(levels=1)
    found["round"] = summary(round_seconds(problem, config, quantizer=quantizer))
    found["round_without_quantization"] = summary(round_seconds(problem, config))
    return found


def round_seconds(problem: fedpaq.Problem, config: fedpaq.FedPAQConfig, **options: Any) -> list[float]:
    """Return the wall-clock seconds of each round of a run on the GPU but the first three and the last."""
    ends: list[float] = []
    fedpaq.train(
        problem, config, evaluate_every=0, device=DEVICE,
        callback=lambda record, params: ends.append(time.perf_counter()), **options,
    )  # fmt: skip
    return [stop - start for start, stop in itertools.pairwise(ends[3:-1])]


def few_clients(clients: int = 25) -> dict[str, Any]:
    """Time 25 clients: vmap launch by launch, and with CUDA graphs; local work alone and whole rounds."""
    problem = mlp_problem(1000).to(require_device(DEVICE))
    config, start = config_of(clients, rounds=16), problem.initial_params[None]
    (work,) = local_work(problem, [config], 0, start, np.arange(clients)[None])
    executors: dict[str, Any] = {
        "vmap": Vectorised(graphs=Graphs(capture=False)),
        "vmap, captured": Vectorised(),
        "batched": Batched(graphs=Graphs(capture=False)),
        "batched, captured": Batched(),
    }
    quantizer, found = fedpaq.LowPrecision(levels=1), {}
    for name, executor in executors.items():
        local = median(lambda: executor.local_updates(problem, work), 15)  # noqa: B023
        rounds = round_seconds(problem, config, executor=executor, quantizer=quantizer)
        found[name] = {"local_seconds": local, "round_seconds": statistics.median(rounds)}
    for what in ("local_seconds", "round_seconds"):
        found[f"times_faster_{what}"] = found["vmap"][what] / found["batched, captured"][what]
    return found


def many_clients(clients: int = 100_000) -> dict[str, Any]:
    """Time one round of 100,000 clients and state its peak memory."""
    problem = mlp_problem(clients).to(require_device(DEVICE))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    times = round_seconds(problem, config_of(clients, rounds=12), quantizer=fedpaq.LowPrecision(levels=1))
    return {**summary(times), "peak_bytes": torch.cuda.max_memory_reserved()}


def sweep() -> dict[str, Any]:
    """Time 8 step sizes x 5 seeds of J1 as one sweep against 40 separate runs, both on the GPU."""
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50, seed=0).to(require_device(DEVICE))
    configs = [
        fedpaq.FedPAQConfig(clients_per_round=25, local_steps=5, total_steps=100, step_size=0.02 * 2**k, seed=seed)
        for k in range(8)
        for seed in range(5)
    ]
    shared = Batched()  # its graphs serve all runs: the better case for separate runs
    options: dict[str, Any] = {
        "quantizer": fedpaq.LowPrecision(levels=1), "evaluate_every": 0, "device": DEVICE, "executor": shared,
    }  # fmt: skip

    def together() -> list[fedpaq.History]:
        return fedpaq.sweep(problem, configs, **options)

    def alone() -> list[fedpaq.History]:
        return [fedpaq.sweep(problem, [config], **options)[0] for config in configs]

    worst = max(abs(a.final.loss - b.final.loss) for a, b in zip(together(), alone(), strict=True))
    times: dict[str, list[float]] = {"sweep": [], "separate": []}
    for _ in range(7):
        for name, function in (("sweep", together), ("separate", alone)):
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    ratio = statistics.median(times["separate"]) / statistics.median(times["sweep"])
    return {
        **{name: summary(values) for name, values in times.items()},
        "times_faster": ratio,
        "largest difference in final loss": worst,
    }


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "imports": imports,
    "checks": checks,
    "quantize": quantize,
    "one_round": one_round,
    "few_clients": few_clients,
    "many_clients": many_clients,
    "sweep": sweep,
}


def attempt(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a section; an error becomes its result, so that the others still run."""
    try:
        return section()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def has_error(found: Any) -> bool:
    """Tell whether a section, or a part of it, failed."""
    return isinstance(found, dict) and ("error" in found or any(map(has_error, found.values())))


def main() -> None:
    """Run the sections asked for, print each as it ends, write gpu.json if none has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SECTIONS], default=[*SECTIONS])
    only = parser.parse_args().only
    if not torch.cuda.is_available():
        print("gpu.json is left as it is: torch finds no CUDA device here", file=sys.stderr)
        sys.exit(SKIPPED)
    results: dict[str, Any] = {"machine": machine()}
    for name in only:
        began = time.perf_counter()
        results[name] = attempt(SECTIONS[name])
        seconds = time.perf_counter() - began
        print(f"== {name} ({seconds:.1f} s)\n{json.dumps(results[name], indent=1)}", flush=True)
        torch.cuda.empty_cache()
    failed = [name for name in only if has_error(results[name])]
    if failed:
        sys.exit(f"gpu.json is left as it is: {', '.join(failed)} failed")
    folder = Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
