"""Measurement: medians of alternating repeats, and results with the machine and versions they hold for."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def seconds_of(function: Callable[[], Any]) -> float:
    """Return the wall-clock seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def alternate(contenders: dict[str, Callable[[], Any]], repeats: int = 7) -> dict[str, list[float]]:
    """Time the contenders in turn, ``repeats`` times each after a warm-up, so that all share the noise."""
    for function in contenders.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, function in contenders.items():
            times[name].append(seconds_of(function))
    return times


def summary(times: list[float]) -> dict[str, Any]:
    """Return median and range of some seconds."""
    return {
        "median_seconds": statistics.median(times),
        "least_seconds": min(times),
        "most_seconds": max(times),
        "repeats": len(times),
    }


def machine() -> dict[str, Any]:
    """Return what a figure depends on: processor, cores, versions."""
    versions = {}
    for package in ("fedpaq", "numpy", "numba", "scipy", "torch", "jax", "flwr"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": versions,
    }


def write(name: str, results: dict[str, Any]) -> Path:
    """Write results and machine to benchmarks/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
