"""``fedpaq doctor``: versions, devices, kernels and data, for bug reports and first looks."""

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from fedpaq.cli.data import find, where
from fedpaq.cli.options import AsJson, DataDir
from fedpaq.cli.printing import grouped, show
from fedpaq.errors import DatasetError

ADVICE = {"incomplete": "; see `fedpaq data check`", "not found": "; see `fedpaq data list`"}
PACKAGES = ("fedpaq", "numpy", "torch", "numba", "scipy", "matplotlib", "plotly", "flwr", "triton")


def doctor(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Report versions, devices, compiled kernels and the datasets found.

    Example: fedpaq doctor --json
    """
    report = examine(data_dir)
    rows = ((section, *found) for section, values in report.items() for found in values.items())
    show(report, json, lambda: [grouped(("", "", ""), rows)])


def examine(data_dir: Path | None) -> dict[str, dict[str, Any]]:
    """Return section -> name -> finding."""
    return {
        "system": {
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "kernels": _kernels(),
        "data": _data(data_dir),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, str]:
    import torch

    found = {"cpu": f"{torch.get_num_threads()} torch threads"}
    for index in range(torch.cuda.device_count()):
        found[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    return found


def _kernels() -> dict[str, str]:
    """Compile or load every kernel, and say what replaces a missing one."""
    from fedpaq.kernels.numba import prepare
    from fedpaq.kernels.numba.__main__ import KERNELS

    if importlib.util.find_spec("numba") is None:
        return dict.fromkeys(KERNELS, "numba is not installed: the NumPy twin does the work")
    return {name: "ready" if prepare(name) else "missing" for name in KERNELS}


def _data(data_dir: Path | None) -> dict[str, str]:
    from fedpaq.problems.datasets.catalogue import DATASETS

    try:
        found = {name: where(find(dataset, data_dir)) for name, dataset in DATASETS.items()}
    except DatasetError as error:  # a finding, too
        return {"mnist-0-8": "bundled", "folder": str(error)}
    return {"mnist-0-8": "bundled", **{name: place + ADVICE.get(place, "") for name, place in found.items()}}
