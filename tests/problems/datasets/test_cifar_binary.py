"""CIFAR binary: records from folders and archives, hostile archives refused."""

from __future__ import annotations

import gzip
import tarfile

import pytest

from dataset_files import arrays_for, assert_same, cifar_archive, cifar_members, entry, load_offline, small, tar_gz
from fedpaq.errors import DatasetError
from fedpaq.problems.datasets import cifar_binary


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
        "a bomb of a name": (tar_gz([(entry("a" * 5_000_000, 0), b"")]), "unpacks to more bytes than the dataset has"),
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
