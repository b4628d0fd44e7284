"""npz: archives are read as untrusted input; the bundled one is complete."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dataset_files import TRAIN, arrays_for, assert_same, load_offline, shared_data, small
from fedpaq.errors import DatasetError
from fedpaq.problems.datasets import npz
from fedpaq.problems.datasets.catalogue import DATASETS, DatasetSpec, spec

BUNDLED_LIMIT = 3_000_000


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_npz_archives_give_their_arrays(name, tmp_path):
    dataset = small(name)
    arrays = arrays_for(dataset)
    np.savez_compressed(tmp_path / dataset.npz_names[-1], **arrays._asdict())
    assert_same(load_offline(dataset, tmp_path, tmp_path / "cache"), arrays)


def npz_with(dataset: DatasetSpec, path: Path, **changes) -> None:
    arrays = {**arrays_for(dataset)._asdict(), **changes}
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None}, "has no array 'x_train'"),
        ({"x_train": np.zeros((TRAIN, 28, 28), np.float32)}, "has x_train.dtype='<f4', not uint8"),
        ({"y_train": np.zeros(TRAIN, np.int64)}, "has y_train.dtype='<i8', not uint8"),
        ({"x_train": np.zeros((TRAIN, 784), np.uint8)}, r"has x_train.shape=\(20, 784\), not \(N, 28, 28\)"),
        ({"y_train": np.zeros((TRAIN, 1), np.uint8)}, r"has y_train.shape=\(20, 1\), not \(N\)"),
        ({"y_train": np.uint8(3)}, r"has y_train.shape=\(\), not \(N\)"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8)}, r"has x_test.shape=\(0, 28, 28\)"),
        ({"x_train": np.zeros((TRAIN + 1, 28, 28), np.uint8)}, r"with N in 1\.\.20"),
        ({"x_train": np.asfortranarray(np.zeros((TRAIN, 28, 28), np.uint8))}, "has x_train.shape="),
        ({"y_train": np.zeros(TRAIN - 1, np.uint8)}, "has 20 train images but 19 labels"),
        ({"y_train": np.array([{}] * TRAIN, dtype=object)}, r"has y_train.dtype='\|O', not uint8"),
        ({"y_train": np.zeros(TRAIN, [("a", "u1")])}, r"has y_train.dtype='\|V1', not uint8"),
    ],
)
def test_npz_of_the_wrong_shape_or_type_is_refused(changes, message, tmp_path):
    dataset = small("mnist")
    npz_with(dataset, tmp_path / "mnist.npz", **changes)
    with pytest.raises(DatasetError, match=message):
        load_offline(dataset, tmp_path, tmp_path / "cache")


def npy_claiming(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy_claiming("(999999999999, 28, 28)"), r"with N in 1\.\.20"),
        (npy_claiming("(20, 28, 28)"), "holds 0 bytes or more in 'x_train', not 15680"),
        (npy_claiming("(20, 28, 28)", b"\0" * 50_000_000), "holds 15681 bytes or more"),  # a bomb, zipped
        (npy_claiming("(" + "1, " * 60 + ")"), r"with N in 1\.\.20"),
        (npy_claiming("(" + "1, " * 999 + ")"), "Header info length .* is large"),
        (npy_claiming("(" * 400), "header cannot be read"),
        (npy_claiming("-" * 400), "header cannot be read"),
        (npy_claiming("1, b'x': 2"), "header cannot be read"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{" * 10_000_000, "header is not that of a plain array"),
        (b"\x93NUMPY", "reading magic string, expected 8 bytes got 6"),
        (b"", "reading magic string, expected 8 bytes got 0"),
    ],
)
def test_npz_headers_that_lie_cost_nothing(content, message, tmp_path):
    dataset = small("mnist")
    with zipfile.ZipFile(tmp_path / "mnist.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", content)
    with pytest.raises(DatasetError, match=message):
        load_offline(dataset, tmp_path, tmp_path / "cache")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(DatasetError, match=r"is not a readable \.npz archive .*; remove it, then run"):
        load_offline(small("mnist"), tmp_path, tmp_path / "cache")


def test_bundled_digits_are_complete_and_small():
    arrays = npz.bundled()
    assert np.bincount(arrays.y_train).tolist() == [5923, 0, 0, 0, 0, 0, 0, 0, 5851]
    assert np.bincount(arrays.y_test).tolist() == [980, 0, 0, 0, 0, 0, 0, 0, 974]
    assert arrays.x_train.shape == (11774, 28, 28)
    folder = Path(npz.__file__).parent / "bundled"
    assert sum(path.stat().st_size for path in folder.iterdir()) < BUNDLED_LIMIT
    assert "creativecommons.org/licenses/by-sa/3.0" in (folder / "LICENSE").read_text()
    assert "LeCun" in (folder / "README.md").read_text()


@pytest.mark.skipif(
    shared_data() is None or not (shared_data() / "mnist.npz").is_file(),
    reason="needs the full mnist.npz in the folder that FEDPAQ_DATA names",
)
def test_bundled_digits_equal_the_originals(tmp_path):
    full = load_offline(spec("mnist"), shared_data(), tmp_path)
    for part in ("train", "test"):
        kept = np.isin(getattr(full, f"y_{part}"), (0, 8))
        for key in (f"x_{part}", f"y_{part}"):
            assert np.array_equal(getattr(full, key)[kept], getattr(npz.bundled(), key))
