"""What the tests of real deployments share."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

import fedpaq
from fedpaq import codec
from fedpaq.randomness import Key

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent.parent / "examples" / "flower-mnist"
LEVELS = fedpaq.LowPrecision(levels=1)


def environment():
    """Processes that import what this one imports, and the example; one thread each."""
    paths = [str(Path(fedpaq.__file__).parents[1]), str(EXAMPLE), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path), "OMP_NUM_THREADS": "1"}


def read_result(path):
    """Return the params and the history that a server app has left."""
    with np.load(path) as found:
        return found["params"], json.loads(str(found["history"]))


def warm_kernels():
    """Compile once here, rather than in every client at the same time."""
    codec.accumulate(codec.encode(LEVELS.quantize(np.ones(9, np.float32), key=Key(seed=0))), np.zeros(9))
