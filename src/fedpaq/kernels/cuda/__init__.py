"""CUDA twins: Triton kernels for what would otherwise leave the GPU or read its memory too often.

Each kernel has a readable NumPy twin (named in its docstring) and gives the same bits. Triton comes
with the CUDA builds of torch; nothing imports it until ``load`` is called. With the environment
variable ``TRITON_INTERPRET=1``, Triton's own switch, the kernels also run on CPU tensors, slowly.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from fedpaq.errors import ConfigError


@functools.cache
def load(name: str) -> Any:
    """Return the kernels of ``fedpaq.kernels.cuda.<name>``; ConfigError where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("device='cuda' needs Triton, which CUDA builds of torch bring; choose device='cpu'")
    return importlib.import_module(f"fedpaq.kernels.cuda.{name}")
