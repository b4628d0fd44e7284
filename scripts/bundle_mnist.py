"""Cut the digits 0 and 8 out of MNIST and write the resource that ships in the package.

    python scripts/bundle_mnist.py PATH/TO/mnist.npz

Needs the full MNIST as ``.npz`` (keys x_train y_train x_test y_test, uint8). Images keep their
order. The archive's entries carry a fixed date, so the same input gives the same bytes.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import numpy as np

DIGITS = (0, 8)
TARGET = Path(__file__).parents[1] / "src" / "fedpaq" / "problems" / "datasets" / "bundled" / "mnist_0_8.npz"


def main(source: str) -> None:
    """Write the bundled archive from the full one at ``source``."""
    with np.load(source, allow_pickle=False) as full, zipfile.ZipFile(TARGET, "w") as archive:
        for part in ("train", "test"):
            kept = np.isin(full[f"y_{part}"], DIGITS)
            for key in (f"x_{part}", f"y_{part}"):
                entry = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                npy = io.BytesIO()
                np.save(npy, full[key][kept], allow_pickle=False)
                archive.writestr(entry, npy.getvalue(), compresslevel=9)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
