"""Download: the official files whole or not at all."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dataset_files import arrays_for, assert_same, cifar_archive, cifar_members, idx_bytes, load_offline, small
from fedpaq.errors import DatasetError
from fedpaq.problems.datasets.catalogue import Arrays, DatasetSpec, OfficialFile
from fedpaq.problems.datasets.download import Bar, download, progress_on
from fedpaq.problems.datasets.source import load_dataset


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
        files.append(OfficialFile(name=file.name, sha256=hashlib.sha256(content).hexdigest(), num_bytes=len(content)))
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
