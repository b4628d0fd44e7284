"""ModelFile: the final model as a file that NumPy, PyTorch and others read, whole or absent.

state = {name: torch.from_numpy(values) for name, values in np.load("model.npz").items()}
state = safetensors.torch.load_file("model.safetensors")
model.load_state_dict(state)
"""

import io
import json
import zipfile
from pathlib import Path

import numpy as np

from fedpaq.flower.layout import Arrays
from fedpaq.storage.atomic_file import StrPath, atomic_write

DTYPES = {
    "bool": "BOOL",
    **{f"{kind}int{n}": f"{kind.upper() or 'I'}{n}" for kind in ("", "u") for n in (8, 16, 32, 64)},
}
DTYPES |= {f"float{n}": f"F{n}" for n in (16, 32, 64)}


def save_model(path: StrPath, arrays: Arrays) -> None:
    """Write the arrays by name; the ending says how: ``.npz`` or ``.safetensors``."""
    atomic_write(Path(path), as_npz(arrays) if Path(path).suffix == ".npz" else as_safetensors(arrays))


def as_npz(arrays: Arrays) -> bytes:
    """Return the arrays as NumPy's archive; ``np.savez`` would not take every name."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name, values in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(values), allow_pickle=False)
            files.writestr(f"{name}.npy", content.getvalue())
    return archive.getvalue()


def as_safetensors(arrays: Arrays) -> bytes:
    """Return the arrays in the safetensors format: length, JSON header, values little-endian one after another."""
    header, parts, end = {}, [], 0
    for name, values in arrays.items():
        raw = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        header[name] = {
            "dtype": DTYPES[str(values.dtype)],
            "shape": list(values.shape),
            "data_offsets": [end, end + len(raw)],
        }
        parts.append(raw)
        end += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
