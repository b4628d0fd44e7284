"""Atomic files: old or new, never half; devices stay devices."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fedpaq.storage.atomic_file import atomic_write, keep, remove_partials, replace, sync_folder


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").write_bytes(b"newest")
    return tmp_path / "run"


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
    others = [".run.ckpt.part", ".run2.ckpt.12.part", "run.ckpt", ".run.ckpt.12.other"]
    for name in [*others, ".run.ckpt.12.part", ".run.ckpt.999.part"]:
        (tmp_path / name).touch()
    remove_partials(tmp_path / "run.ckpt")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(others)


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


def test_a_second_name_is_the_same_file_and_the_first_one_stays(run):
    keep(run, run.with_name("previous"))
    assert run.samefile(run.with_name("previous")) and names_in(run.parent) == ["previous", "run"]
    atomic_write(run, b"newer")
    assert run.read_bytes() == b"newer" and run.with_name("previous").read_bytes() == b"newest"


def test_a_second_name_is_taken_from_the_file_that_had_it(run):
    old = run.with_name("previous")
    old.write_bytes(b"oldest")
    reader = old.open("rb")
    keep(run, old)
    assert old.read_bytes() == b"newest" and names_in(run.parent) == ["previous", "run"]
    with reader:
        assert reader.read() == b"oldest"  # whoever had it open still reads what it was


def test_keeping_twice_is_keeping_once(run):
    for _ in range(3):
        keep(run, run.with_name("previous"))
        assert run.stat().st_nlink == 2 and names_in(run.parent) == ["previous", "run"]


def test_a_file_kept_under_its_own_name_stays(run):
    keep(run, run)
    assert run.read_bytes() == b"newest" and names_in(run.parent) == ["run"]


def test_a_second_name_that_is_a_folder_is_told_and_nothing_is_lost(run):
    (run.with_name("previous")).mkdir()
    with pytest.raises(OSError, match="previous"):
        keep(run, run.with_name("previous"))
    assert run.read_bytes() == b"newest" and names_in(run.parent) == ["previous", "run"]


def test_what_is_not_there_cannot_be_kept_and_costs_nothing(tmp_path):
    (tmp_path / "previous").write_bytes(b"oldest")
    with pytest.raises(FileNotFoundError):
        keep(tmp_path / "run", tmp_path / "previous")
    assert (tmp_path / "previous").read_bytes() == b"oldest" and names_in(tmp_path) == ["previous"]


def test_where_there_are_no_second_names_the_file_is_moved(run, monkeypatch):
    def no_links(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")  # what FAT and some network disks say

    monkeypatch.setattr(os, "link", no_links)
    run.with_name("previous").write_bytes(b"oldest")
    keep(run, run.with_name("previous"))
    assert run.with_name("previous").read_bytes() == b"newest" and names_in(run.parent) == ["previous"]


def test_a_write_is_whole_for_every_reader(tmp_path):
    path, old, new = tmp_path / "file", b"a" * 50_000, b"b" * 90_000
    atomic_write(path, old)
    seen, done = set(), threading.Event()

    def read():
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for data in (new, old) * 10:
        atomic_write(path, data)
    done.set()
    reader.join()
    assert seen <= {old, new} and names_in(tmp_path) == ["file"]


def test_many_writers_leave_one_of_their_files_and_no_other(tmp_path):
    path, texts = tmp_path / "file", [bytes([65 + number]) * 20_000 for number in range(6)]
    writers = [threading.Thread(target=atomic_write, args=(path, text)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in texts and names_in(tmp_path) == ["file"]


def test_chunks_are_written_one_after_another_beside_the_target(tmp_path):
    def chunks():
        yield b"one"
        (partial,) = tmp_path.iterdir()
        assert partial.name.startswith(f".file.{os.getpid()}-") and partial.suffix == ".part"
        yield memoryview(b"two")
        yield bytearray(b"")

    replace(tmp_path / "file", chunks())
    assert (tmp_path / "file").read_bytes() == b"onetwo" and names_in(tmp_path) == ["file"]


def calls_then_interrupt(real):
    def interrupted(*values):
        real(*values)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize("step", ["os.open", "os.link", "os.fsync"])
def test_a_signal_right_after_a_call_leaves_no_litter(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(f"fedpaq.storage.atomic_file.{step}", calls_then_interrupt(getattr(os, step[3:])))
    with pytest.raises(KeyboardInterrupt):
        replace(path, [b"new"], kept_as=tmp_path / "before")
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and names_in(tmp_path) == ["file"]


def test_a_source_that_fails_half_way_leaves_nothing(tmp_path):
    def chunks():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(tmp_path / "file", chunks())
    assert names_in(tmp_path) == []


def test_names_with_signs_of_patterns_are_only_themselves(tmp_path):
    for name in (".run[1]*.7-ab.part", ".run1.7-ab.part", ".run[1]x.7-ab.part"):
        (tmp_path / name).touch()
    remove_partials(tmp_path / "run[1]*")
    assert names_in(tmp_path) == [".run1.7-ab.part", ".run[1]x.7-ab.part"]


def test_an_empty_file_is_written_and_one_of_no_permission_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o400)
    atomic_write(path, b"")
    assert path.read_bytes() == b""


def test_a_link_that_points_nowhere_gets_its_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    atomic_write(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"x"


def test_a_relative_path_is_written_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atomic_write("file", b"x")
    atomic_write(Path("file"), b"y")
    assert (tmp_path / "file").read_bytes() == b"y"


def test_a_folder_is_synced_and_its_descriptor_closed(tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor)), real(descriptor)))
    before = len(os.listdir("/proc/self/fd"))
    sync_folder(tmp_path)
    assert len(synced) == 1 and os.path.samestat(synced[0], tmp_path.stat())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_written_file_and_its_folder_are_synced_in_this_order(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    atomic_write(tmp_path / "file", b"x")
    assert len(synced) == 2 and synced[0].endswith(".part") and synced[1] == str(tmp_path)


def test_a_folder_that_cannot_be_synced_does_no_harm(tmp_path, monkeypatch):
    sync_folder(tmp_path / "absent")
    assert names_in(tmp_path) == []

    def refuse(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")  # what some network disks say of a folder

    monkeypatch.setattr(os, "fsync", refuse)
    before = len(os.listdir("/proc/self/fd"))
    sync_folder(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
