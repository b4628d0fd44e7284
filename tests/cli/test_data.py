"""``fedpaq data``: lists, fetches and checks; fits in 80 columns; speaks JSON."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpaq.cli import data
from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems.datasets.catalogue import DATASETS, spec
from fedpaq.problems.named import PROBLEMS


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command line with a cache of its own, 80 columns and no data folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDPAQ_DATA", raising=False)
    monkeypatch.setattr("fedpaq.problems.datasets.download.default_cache", lambda: tmp_path / "cache")
    return lambda *words: CliRunner().invoke(data.app, list(words))


@pytest.fixture
def data_dir(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("mnist", "cifar10"):
        rows = {"x_train": 30, "y_train": 30, "x_test": 4, "y_test": 4}
        arrays = {
            key: np.zeros((count, *(spec(name).image_shape if key[0] == "x" else ())), np.uint8)
            for key, count in rows.items()
        }
        np.savez_compressed(folder / spec(name).npz_names[1], **arrays)
    return folder


def test_list_names_every_dataset_and_problem_within_80_columns(run, data_dir):
    for words in (["list"], ["list", "--data-dir", str(data_dir)]):
        result = run(*words)
        assert result.exit_code == 0, result.output
        for name in (*DATASETS, *PROBLEMS):
            assert name in result.output
        tables = [line for line in result.output.splitlines() if not line.startswith(("data folder:", "cache:"))]
        assert max(map(len, tables)) <= 80
    assert "data folder: mnist_10k.npz" in result.output
    assert "not found" in result.output


def test_list_as_json_is_complete(run, data_dir):
    listed = json.loads(run("list", "--json", "--data-dir", str(data_dir)).stdout)
    assert [row["name"] for row in listed["datasets"]] == list(DATASETS)
    found = {row["name"]: (row["place"], row["format"]) for row in listed["datasets"]}
    assert found["mnist"] == ("data folder", "npz")
    assert found["cifar100"] == (None, None)
    assert {row["name"]: row["summary"] for row in listed["problems"]} == {
        name: named.summary for name, named in PROBLEMS.items()
    }


def test_list_says_when_only_some_files_are_there(run, data_dir):
    (data_dir / "fashion-mnist").mkdir()
    (data_dir / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    result = run("list", "--data-dir", str(data_dir))
    assert result.exit_code == 0 and "incomplete" in result.output


def test_check_reads_what_is_there(run, data_dir):
    result = run("check", "--json", "--data-dir", str(data_dir))
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert result.exit_code == 0
    assert (rows["mnist"]["status"], rows["mnist"]["train"], rows["mnist"]["test"]) == ("ok", 30, 4)
    assert rows["cifar100"]["status"] == "not found"
    table = run("check", "--data-dir", str(data_dir))
    assert table.exit_code == 0 and "mnist" in table.output


def test_check_fails_for_a_named_dataset_that_is_not_there_and_says_what_to_do(run, data_dir):
    result = run("check", "cifar100", "--data-dir", str(data_dir))
    assert result.exit_code == 1
    assert "cifar100: not found; run `fedpaq data get cifar100`" in result.stderr


def test_check_fails_for_a_damaged_file_and_still_checks_the_others(run, data_dir):
    path = data_dir / "cifar10_10k.npz"
    path.write_bytes(path.read_bytes()[:-30])
    result = run("check", "--data-dir", str(data_dir))
    assert result.exit_code == 1
    assert "damaged" in result.output and " ok " in result.output
    assert "is not a readable .npz archive" in result.stderr


def test_check_holds_cached_files_against_the_published_checksums(run, tmp_path):
    folder = tmp_path / "cache" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"something else")
    result = run("check", "--json", "cifar10")
    (row,) = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (row["status"], row["checksum"]) == ("damaged", "other")
    assert "does not have the published checksum" in row["error"]


def test_get_downloads_into_the_data_folder_or_the_cache(run, tmp_path, monkeypatch):
    asked = []

    def pretend(dataset, folder):
        asked.append((dataset.name, folder))
        return folder

    monkeypatch.setattr("fedpaq.problems.datasets.download.download", pretend)
    rows = json.loads(run("get", "mnist", "cifar10", "--json").stdout)
    assert [row["name"] for row in rows] == ["mnist", "cifar10"]
    assert run("get", "mnist", "--data-dir", str(tmp_path)).exit_code == 0
    assert asked == [
        ("mnist", tmp_path / "cache" / "mnist"),
        ("cifar10", tmp_path / "cache" / "cifar10"),
        ("mnist", tmp_path / "mnist"),
    ]


@pytest.mark.parametrize("verb", ["get", "check"])
def test_unknown_names_suggest_the_nearest_before_anything_happens(run, verb):
    error = run(verb, "mnist", "cifar-10").exception
    assert isinstance(error, ConfigError) and "did you mean 'cifar10'?" in str(error)


@pytest.mark.parametrize("verb", ["list", "check"])
def test_a_mistyped_folder_is_an_error(run, verb, tmp_path):
    error = run(verb, "--data-dir", str(tmp_path / "nowhere")).exception
    assert isinstance(error, DatasetError) and "is not a folder" in str(error)


def test_the_environment_names_the_data_folder(run, data_dir, monkeypatch):
    monkeypatch.setenv("FEDPAQ_DATA", str(data_dir))
    assert f"data folder: {data_dir}" in run("list").output
