"""What the benchmark checks before it times anything, for tests on a GPU."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from repository import ROOT


@pytest.fixture(scope="module")
def gpu_checks():
    """The module benchmarks/gpu_checks.py."""
    spec = importlib.util.spec_from_file_location("gpu_checks", ROOT / "benchmarks" / "gpu_checks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_checks"] = module
    spec.loader.exec_module(module)
    return module
