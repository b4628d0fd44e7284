"""Atomic files: old or new, never half; devices stay devices."""

from __future__ import annotations

import os

import pytest

from fedpaq.atomic_file import atomic_write, remove_partials


def test_atomic_write_replaces_the_target_of_a_link_and_not_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "file.json")
    atomic_write(tmp_path / "link.json", b"new")
    assert (tmp_path / "real" / "file.json").read_bytes() == b"new" and (tmp_path / "link.json").is_symlink()


def test_atomic_write_does_not_replace_a_device():
    atomic_write("/dev/null", b"x")
    assert not os.path.isfile("/dev/null")
    with pytest.raises(OSError, match="No space left"):
        atomic_write("/dev/full", b"x")


def test_partials_of_a_killed_writer_are_removed_and_nothing_else(tmp_path):
    keep = [".run.ckpt.part", ".run2.ckpt.12.part", "run.ckpt", ".run.ckpt.12.other"]
    for name in [*keep, ".run.ckpt.12.part", ".run.ckpt.999.part"]:
        (tmp_path / name).touch()
    remove_partials(tmp_path / "run.ckpt")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(keep)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file.json").write_bytes(b"old")
    with pytest.raises(TypeError):
        atomic_write(tmp_path / "file.json", "not bytes")
    assert (tmp_path / "file.json").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        atomic_write(tmp_path / "absent" / "file", b"x")


def test_the_new_file_has_the_usual_permissions(tmp_path):
    atomic_write(tmp_path / "file", b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
