"""Datasets: found in order, read as untrusted input, downloaded whole or not at all."""

import dataclasses
import gzip
import hashlib
import io
import math
import os
import struct
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems.datasets import cifar_binary, npz
from fedpaq.problems.datasets.catalogue import DATASETS, Arrays, DatasetSpec, OfficialFile, spec
from fedpaq.problems.datasets.download import Bar, download, progress_on
from fedpaq.problems.datasets.source import Source, load_dataset, locate, read
from repository import DATA

TRAIN, TEST = 20, 10
BUNDLED_LIMIT = 3_000_000


def small(name: str) -> DatasetSpec:
    """The dataset with few samples, as its files below hold."""
    return dataclasses.replace(spec(name), num_train=TRAIN, num_test=TEST, system_folder=None)


def arrays_for(dataset: DatasetSpec) -> Arrays:
    generator = np.random.default_rng(0)
    parts = []
    for count in (dataset.num_train, dataset.num_test):
        parts.append(generator.integers(0, 256, (count, *dataset.image_shape)).astype(np.uint8))
        parts.append(generator.integers(0, dataset.num_labels, count).astype(np.uint8))
    return Arrays(*parts)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(dataset: DatasetSpec, arrays: Arrays, folder: Path, *, zipped: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in zip(dataset.files, arrays, strict=True):
        content = idx_bytes(array)
        if zipped:
            (folder / file.name).write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / file.name.removesuffix(".gz")).write_bytes(content)


def cifar_records(images: np.ndarray, labels: np.ndarray, label_bytes: int) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    leading = np.full((len(labels), label_bytes - 1), 7, np.uint8)  # coarse labels, ignored
    return np.concatenate([leading, labels[:, None], planes], axis=1).tobytes()


def cifar_members(dataset: DatasetSpec, arrays: Arrays) -> dict[str, bytes]:
    layout = cifar_binary.LAYOUTS[dataset.name]
    train = cifar_records(arrays.x_train, arrays.y_train, layout.label_bytes)
    size = len(train) // len(layout.train)
    members = {name: train[i * size : (i + 1) * size] for i, name in enumerate(layout.train)}
    return {**members, layout.test: cifar_records(arrays.x_test, arrays.y_test, layout.label_bytes)}


def tar_gz(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def cifar_archive(dataset: DatasetSpec, members: dict[str, bytes]) -> bytes:
    folder = cifar_binary.LAYOUTS[dataset.name].folder
    return tar_gz([(entry(f"{folder}/{name}", len(content)), content) for name, content in members.items()])


def assert_same(found: Arrays, expected: Arrays) -> None:
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == np.uint8 and np.array_equal(left, right)


def load_offline(dataset: DatasetSpec, folder: Path | None, cache: Path) -> Arrays:
    return load_dataset(dataset, data_dir=folder, cache_dir=cache, may_download=False).arrays


# --- every format, everywhere it may lie


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_npz_archives_give_their_arrays(name, tmp_path):
    dataset = small(name)
    arrays = arrays_for(dataset)
    np.savez_compressed(tmp_path / dataset.npz_names[-1], **arrays._asdict())
    assert_same(load_offline(dataset, tmp_path, tmp_path / "cache"), arrays)


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


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("unpacked", [True, False])
def test_cifar_binary_gives_its_arrays_and_fine_labels(name, unpacked, tmp_path):
    dataset = small(name)
    arrays = arrays_for(dataset)
    members = cifar_members(dataset, arrays)
    if unpacked:
        folder = tmp_path / cifar_binary.LAYOUTS[name].folder
        folder.mkdir()
        for member, content in members.items():
            (folder / member).write_bytes(content)
    else:
        (tmp_path / dataset.files[0].name).write_bytes(cifar_archive(dataset, members))
    assert_same(load_offline(dataset, tmp_path, tmp_path / "cache"), arrays)


def test_places_are_searched_in_the_documented_order(tmp_path):
    data, system, cache = tmp_path / "data", tmp_path / "fashion-mnist", tmp_path / "cache"
    dataset = dataclasses.replace(small("fashion-mnist"), system_folder=str(system))
    arrays = arrays_for(dataset)

    def place() -> tuple[str, str]:
        found = locate(dataset, data_dir=data, cache_dir=cache)
        return ("", "") if found is None else (found.place, found.format)

    data.mkdir()
    assert place() == ("", "")
    write_idx(dataset, arrays, cache / "fashion-mnist")
    assert place() == ("cache", "idx")
    write_idx(dataset, arrays, system)
    assert place() == ("system", "idx")
    write_idx(dataset, arrays, data / "fashion-mnist")
    assert place() == ("data folder", "idx")
    np.savez(data / "fashion_mnist_10k.npz", **arrays._asdict())
    assert place() == ("data folder", "npz")
    np.savez(data / "fashion_mnist.npz", **arrays._asdict())
    assert locate(dataset, data_dir=data, cache_dir=cache).path.name == "fashion_mnist.npz"


def test_the_catalogue_lists_complete_entries():
    for name, dataset in DATASETS.items():
        assert dataset.name == name and name in dataset.folders  # where `fedpaq data get` puts it
        assert dataset.address.startswith("https://") and dataset.address.endswith("/")
        assert all(len(file.sha256) == 64 and file.num_bytes > 0 for file in dataset.files)
        assert len(dataset.mean) == len(dataset.deviation) == (dataset.image_shape + (1,))[2]


def test_unknown_dataset_names_suggest_the_nearest():
    with pytest.raises(
        ConfigError, match=r"unknown dataset 'cifar-10'; known: .* \(did you mean 'cifar10'\?\)"
    ):
        load_dataset("cifar-10")


# --- what is missing or damaged says so, and what to do


def test_a_dataset_found_nowhere_says_what_to_fetch_and_where_to_put_it(tmp_path):
    with pytest.raises(DatasetError) as caught:
        load_offline(small("cifar10"), tmp_path, tmp_path / "cache")
    message = str(caught.value)
    assert message.startswith("dataset='cifar10' was not found")
    for part in ("cifar-10-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/", "DIR/cifar10", "FEDPAQ_DATA"):
        assert part in message


def test_a_mistyped_folder_is_not_skipped(tmp_path):
    with pytest.raises(DatasetError, match=r"data_dir='.*nowhere' is not a folder; choose one that exists"):
        load_offline(small("mnist"), tmp_path / "nowhere", tmp_path)


def test_missing_idx_files_are_named(tmp_path):
    dataset = small("mnist")
    write_idx(dataset, arrays_for(dataset), tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        DatasetError, match=r"holds only some of mnist's files; fetch t10k-labels-idx1-ubyte.gz from"
    ):
        load_offline(dataset, tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "is 15695 bytes long, not 15696"),
        (lambda data: data + b"\0", "is 15697 bytes long, not 15696"),
        (lambda data: data[:10], "is not an IDX file of 3-dimensional bytes"),
        (lambda data: b"", "is not an IDX file"),
        (lambda data: b"\0\0\x0d\3" + data[4:], "is not an IDX file of 3-dimensional bytes"),  # floats
        (
            lambda data: data[:4] + struct.pack(">I", 2**32 - 1) + data[8:],
            r"claims shape \(4294967295, 28, 28\)",
        ),
        (
            lambda data: data[:4] + struct.pack(">I", 19) + data[8:],
            r"claims shape \(19, 28, 28\), not \(20, 28, 28\)",
        ),
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


def test_labels_outside_the_range_are_refused(tmp_path):
    dataset = small("mnist")
    arrays = arrays_for(dataset)
    arrays.y_test[3] = 10
    np.savez(tmp_path / "mnist.npz", **arrays._asdict())
    with pytest.raises(DatasetError, match=r"has test label 10, outside mnist's 0\.\.9"):
        load_offline(dataset, tmp_path, tmp_path / "cache")


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


def test_a_file_without_permission_is_a_dataset_error(tmp_path):
    source = Source("data folder", "npz", tmp_path)  # a folder where a file should be
    with pytest.raises(DatasetError, match="cannot be read"):
        read(small("mnist"), source)


@pytest.mark.parametrize("missing", [True, False])
def test_truncated_or_missing_cifar_files_are_refused(missing, tmp_path):
    dataset = small("cifar10")
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, content in cifar_members(dataset, arrays_for(dataset)).items():
        (folder / name).write_bytes(content)
    victim = folder / "data_batch_3.bin"
    if missing:
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1])
    message = "data_batch_3.bin' is missing" if missing else "is 12291 bytes long, not 12292"
    with pytest.raises(DatasetError, match=message):
        load_offline(dataset, tmp_path, tmp_path / "cache")


def hostile_archives() -> dict[str, tuple[bytes, str]]:
    dataset = small("cifar100")
    members = cifar_members(dataset, arrays_for(dataset))
    train, test = members["train.bin"], members["test.bin"]
    link = entry("cifar-100-binary/train.bin", 0)
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    good = cifar_archive(dataset, members)
    return {
        "cut short": (good[: len(good) // 2], "is not a readable"),
        "not gzip": (b"hello", "is not a readable"),
        "empty": (b"", "is not a readable"),
        "gzip of nothing": (gzip.compress(b""), "is not a readable"),
        "lacks the test part": (cifar_archive(dataset, {"train.bin": train}), "lacks .*/test.bin"),
        "a short member": (
            cifar_archive(dataset, {"train.bin": train[:-1], "test.bin": test}),
            "of 61479 bytes, not 61480",
        ),
        "a link for a file": (
            tar_gz([(link, b""), (entry("cifar-100-binary/test.bin", len(test)), test)]),
            "lacks .*/train.bin",
        ),
        "a bomb beside": (
            tar_gz([(entry("zeros", 5_000_000), bytes(5_000_000))]),
            "unpacks to more bytes than the dataset has",
        ),
        "a bomb of a name": (
            tar_gz([(entry("a" * 5_000_000, 0), b"")]),
            "unpacks to more bytes than the dataset has",
        ),
    }


@pytest.mark.parametrize("kind", sorted(hostile_archives()))
def test_hostile_cifar_archives_are_refused(kind, tmp_path):
    content, message = hostile_archives()[kind]
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load_offline(small("cifar100"), tmp_path, tmp_path / "cache")


@pytest.mark.parametrize("path", ["../escaped.bin", "cifar-100-binary/../../escaped.bin", "absolute"])
def test_paths_in_an_archive_are_never_followed(path, tmp_path):
    dataset = small("cifar100")
    expected = cifar_members(dataset, arrays_for(dataset))
    members = {f"cifar-100-binary/{name}": content for name, content in expected.items()}
    members[str(tmp_path / "escaped.bin") if path == "absolute" else path] = b"evil"
    home = tmp_path / "inside" / "data"
    home.mkdir(parents=True)
    archive = tar_gz([(entry(name, len(content)), content) for name, content in members.items()])
    (home / "cifar-100-binary.tar.gz").write_bytes(archive)
    assert_same(load_offline(dataset, home, home / "cache"), arrays_for(dataset))
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == ["cifar-100-binary.tar.gz"]


def valid_files() -> dict[str, bytes]:
    mnist, cifar = small("mnist"), small("cifar100")
    archive = io.BytesIO()
    np.savez_compressed(archive, **arrays_for(mnist)._asdict())
    members = cifar_members(cifar, arrays_for(cifar))
    return {"mnist.npz": archive.getvalue(), "cifar-100-binary.tar.gz": cifar_archive(cifar, members)}


VALID = valid_files()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(VALID)), data=st.data())
def test_damaged_bytes_are_read_right_or_refused(name, data, tmp_path):
    content = bytearray(VALID[name])
    # Archives keep their directories at either end: damage those more often than pixels.
    near = (
        st.integers(0, 400)
        | st.integers(len(content) - 700, len(content) - 1)
        | st.integers(0, len(content) - 1)
    )
    for position in data.draw(st.lists(near, min_size=1, max_size=4)):
        content[position] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del content[data.draw(near) :]
    (tmp_path / name).write_bytes(content)
    dataset = small("mnist" if name == "mnist.npz" else "cifar100")
    try:
        arrays = load_offline(dataset, tmp_path, tmp_path / "cache")
    except DatasetError:
        return
    assert arrays.x_train.shape == (TRAIN, *dataset.image_shape)


# --- downloads, against a server on this machine


class Server(ThreadingHTTPServer):
    """Serves ``files`` and misbehaves as ``fault`` says."""

    files: dict[str, bytes]
    fault = ""
    requested: list[str]
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Server = self.server
        server.requested.append(self.path)
        content = server.files.get(self.path.removeprefix("/"))
        if content is None:
            self.send_error(404)
            return
        if server.fault == "wrong bytes":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.send_response(200)
        if server.fault != "endless":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if server.fault in ("truncated", "stalls"):
            content = content[: len(content) // 2]
        self.wfile.write(content)
        if server.fault == "stalls":
            server.released.wait(10)
        for _ in range(100 if server.fault == "endless" else 0):
            try:
                self.wfile.write(bytes(2**16))
            except OSError:  # the client has had enough
                return

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as running:
        running.files, running.requested, running.released = {}, [], threading.Event()
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


def served(server: Server, name: str) -> tuple[DatasetSpec, Arrays]:
    """Put the dataset on the server and return its description with the right checksums."""
    dataset = small(name)
    arrays = arrays_for(dataset)
    if dataset.format == "idx":
        contents = [gzip.compress(idx_bytes(array), mtime=0) for array in arrays]
    else:
        contents = [cifar_archive(dataset, cifar_members(dataset, arrays))]
    files = []
    for file, content in zip(dataset.files, contents, strict=True):
        server.files[file.name] = content
        files.append(
            OfficialFile(name=file.name, sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content))
        )
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    return dataclasses.replace(dataset, files=tuple(files), address=address), arrays


def files_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_a_download_goes_to_the_cache_and_is_used_from_there(name, server, tmp_path, capsys):
    dataset, arrays = served(server, name)
    first = load_dataset(dataset, cache_dir=tmp_path)
    assert_same(first.arrays, arrays)
    assert first.source.place == "cache"
    assert f"downloading {name}" in capsys.readouterr().err
    asked = len(server.requested)
    assert asked == len(dataset.files)
    assert_same(load_dataset(dataset, cache_dir=tmp_path).arrays, arrays)
    assert len(server.requested) == asked  # nothing was fetched again


def test_a_damaged_cache_is_fetched_again_or_reported(server, tmp_path):
    dataset, arrays = served(server, "mnist")
    load_dataset(dataset, cache_dir=tmp_path)
    victim = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(DatasetError, match="dataset='mnist' was not found intact"):
        load_offline(dataset, None, tmp_path)
    server.requested.clear()
    assert_same(load_dataset(dataset, cache_dir=tmp_path).arrays, arrays)
    assert server.requested == ["/train-labels-idx1-ubyte.gz"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong bytes", "did not deliver the published file"),
        ("truncated", "could not be downloaded"),
        ("endless", "did not deliver the published file"),
        ("stalls", "could not be downloaded"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(fault, message, server, tmp_path):
    dataset, _ = served(server, "cifar10")
    server.fault = fault
    with pytest.raises(DatasetError, match=message):
        download(dataset, tmp_path / "cifar10", timeout=0.3)
    assert files_under(tmp_path) == []


def test_an_interrupted_download_leaves_nothing_behind(server, tmp_path, monkeypatch):
    dataset, arrays = served(server, "cifar10")

    def interrupt(self, num_bytes: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bar, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_dataset(dataset, cache_dir=tmp_path)
    assert files_under(tmp_path) == []
    assert_same(load_dataset(dataset, cache_dir=tmp_path).arrays, arrays)


def test_a_missing_file_on_the_server_names_the_status_and_the_way_out(server, tmp_path):
    dataset, _ = served(server, "mnist")
    server.files.clear()
    with pytest.raises(DatasetError, match=r"could not be downloaded \(HTTP 404\); .*put them in DIR/mnist"):
        load_dataset(dataset, cache_dir=tmp_path)


def test_no_network_names_the_way_out(tmp_path):
    dataset = dataclasses.replace(small("mnist"), address="http://127.0.0.1:9/")
    with pytest.raises(DatasetError, match=r"could not be downloaded \(ConnectionError\); .*--data-dir"):
        load_dataset(dataset, cache_dir=tmp_path)


def test_a_cache_that_cannot_be_written_is_a_dataset_error(server, tmp_path):
    dataset, _ = served(server, "mnist")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DatasetError, match="cannot be written"):
        load_dataset(dataset, cache_dir=tmp_path / "file")


def test_the_bar_shows_bytes_on_a_terminal():
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress_on(console) as progress:
        bar = Bar(progress, OfficialFile(name="images.gz", sha256="", num_bytes=2_000_000))
        bar.update(1_000_000)
        assert progress.tasks[0].completed == 1_000_000
        bar.reset()
        bar.update(2_000_000)
        bar.close()
    assert progress.tasks[0].finished
    assert "images.gz" in console.file.getvalue()


# --- the bundled digits


def test_bundled_digits_are_complete_and_small():
    arrays = npz.bundled()
    assert np.bincount(arrays.y_train).tolist() == [5923, 0, 0, 0, 0, 0, 0, 0, 5851]
    assert np.bincount(arrays.y_test).tolist() == [980, 0, 0, 0, 0, 0, 0, 0, 974]
    assert arrays.x_train.shape == (11774, 28, 28)
    folder = Path(npz.__file__).parent / "bundled"
    assert sum(path.stat().st_size for path in folder.iterdir()) < BUNDLED_LIMIT
    assert "creativecommons.org/licenses/by-sa/3.0" in (folder / "LICENSE").read_text()
    assert "LeCun" in (folder / "README.md").read_text()


def shared_data() -> Path | None:
    named = os.environ.get("FEDPAQ_DATA")
    folder = Path(named) if named else DATA
    return folder if folder.is_dir() else None


@pytest.mark.skipif(
    shared_data() is None or not (shared_data() / "mnist.npz").is_file(),
    reason="needs the full mnist.npz in FEDPAQ_DATA or ../shared/data",
)
def test_bundled_digits_equal_the_originals(tmp_path):
    full = load_offline(spec("mnist"), shared_data(), tmp_path)
    for part in ("train", "test"):
        kept = np.isin(getattr(full, f"y_{part}"), (0, 8))
        for key in (f"x_{part}", f"y_{part}"):
            assert np.array_equal(getattr(full, key)[kept], getattr(npz.bundled(), key))


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_standardisation_constants_are_those_of_the_data(name, tmp_path):
    if shared_data() is None or locate(spec(name), data_dir=shared_data(), cache_dir=tmp_path) is None:
        pytest.skip(f"needs {name} in FEDPAQ_DATA or ../shared/data")
    dataset = spec(name)
    images = load_offline(dataset, shared_data(), tmp_path).x_train[:2000]
    pixels = images.reshape(-1, len(dataset.mean)) / 255.0
    # Images differ in brightness with a deviation of about 0.15; a subset may be off by 5 standard errors.
    tolerance = 5 * 0.15 / math.sqrt(len(images)) + 1e-4
    np.testing.assert_allclose(pixels.mean(0), dataset.mean, atol=tolerance)
    np.testing.assert_allclose(pixels.std(0), dataset.deviation, atol=tolerance)
