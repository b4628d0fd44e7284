"""IDX files: found by the folder's name, sizes in their headers never believed."""

from __future__ import annotations

import gzip
import struct

import pytest

from dataset_files import arrays_for, assert_same, idx_bytes, load_offline, small, write_idx
from fedpaq.errors import DatasetError
from fedpaq.problems.datasets.source import locate


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_idx_files_give_their_arrays(folder, zipped, tmp_path):
    dataset = small("mnist")
    arrays = arrays_for(dataset)
    write_idx(dataset, arrays, tmp_path / folder, zipped=zipped)
    assert_same(load_offline(dataset, tmp_path, tmp_path / "cache"), arrays)
    assert_same(load_offline(dataset, tmp_path / folder, tmp_path / "cache"), arrays)


def test_fashion_mnist_is_never_mistaken_for_mnist(tmp_path):
    mnist, fashion = small("mnist"), small("fashion-mnist")
    write_idx(fashion, arrays_for(fashion), tmp_path / "fashion-mnist")
    for folder in (tmp_path, tmp_path / "fashion-mnist"):
        assert locate(mnist, data_dir=folder, cache_dir=tmp_path / "cache") is None
        assert locate(fashion, data_dir=folder, cache_dir=tmp_path / "cache") is not None


def test_missing_idx_files_are_named(tmp_path):
    dataset = small("mnist")
    write_idx(dataset, arrays_for(dataset), tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DatasetError, match=r"holds only some of mnist's files; fetch t10k-labels-idx1-ubyte.gz from"):
        load_offline(dataset, tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "is 15695 bytes long, not 15696"),
        (lambda data: data + b"\0", "is 15697 bytes long, not 15696"),
        (lambda data: data[:10], "is not an IDX file of 3-dimensional bytes"),
        (lambda data: b"", "is not an IDX file"),
        (lambda data: b"\0\0\x0d\3" + data[4:], "is not an IDX file of 3-dimensional bytes"),  # floats
        (lambda data: data[:4] + struct.pack(">I", 2**32 - 1) + data[8:], r"claims shape \(4294967295, 28, 28\)"),
        (lambda data: data[:4] + struct.pack(">I", 19) + data[8:], r"claims shape \(19, 28, 28\), not \(20, 28, 28\)"),
        (lambda data: data[:8] + struct.pack(">2I", 56, 14) + data[16:], r"claims shape \(20, 56, 14\)"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_headers_that_lie_are_refused(change, message, zipped, tmp_path):
    dataset = small("mnist")
    arrays = arrays_for(dataset)
    write_idx(dataset, arrays, tmp_path / "mnist", zipped=zipped)
    content = change(idx_bytes(arrays.x_train))
    path = tmp_path / "mnist" / ("train-images-idx3-ubyte" + (".gz" if zipped else ""))
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DatasetError, match=message):
        load_offline(dataset, tmp_path, tmp_path / "cache")


@pytest.mark.parametrize("cut", [0, 5, 200])
def test_truncated_or_foreign_gzip_is_refused(cut, tmp_path):
    dataset = small("mnist")
    write_idx(dataset, arrays_for(dataset), tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut] if cut else b"not gzip at all")
    with pytest.raises(DatasetError, match="is not a readable gzip file"):
        load_offline(dataset, tmp_path, tmp_path / "cache")
