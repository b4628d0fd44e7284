"""Compile kernels before they are needed: ``python -m fedpaq.kernels.numba [NAME ...]``, all by default.

What many processes would each compile at their start, one does here; the disk keeps it for them.
"""

from __future__ import annotations

import sys

from fedpaq.kernels.numba import load

KERNELS = ("philox", "low_precision", "nonzeros", "gap_code", "block_code", "dense_network")

if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - set(KERNELS))
    if unknown:
        sys.exit(f"fedpaq: error: unknown kernels {', '.join(unknown)}; known: {', '.join(KERNELS)}")
    for name in sys.argv[1:] or KERNELS:
        load(name)
