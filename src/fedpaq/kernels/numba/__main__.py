"""Compile kernels before they are needed: ``python -m fedpaq.kernels.numba [NAME ...]``, all by default.

One process compiles here what many would each compile at their start; the disk keeps it for them.
"""

import sys
from pathlib import Path

from fedpaq.kernels.numba import prepare

KERNELS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")))

if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - set(KERNELS))
    if unknown:
        sys.exit(f"fedpaq: error: unknown kernels {', '.join(unknown)}; known: {', '.join(KERNELS)}")
    for name in sys.argv[1:] or KERNELS:
        prepare(name)
