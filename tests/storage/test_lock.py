"""Run locks: one holder at a time, none stale, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from fedpaq.errors import CheckpointError
from fedpaq.storage.lock import hold


def test_a_second_holder_is_refused_by_name_and_the_lock_file_goes_at_the_end(tmp_path):
    path = tmp_path / "run.ckpt"
    with hold(path):
        assert (tmp_path / "run.ckpt.lock").read_text() == f"{os.getpid()}\n"
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"), hold(path):
            pass
        assert (tmp_path / "run.ckpt.lock").exists()
    assert list(tmp_path.iterdir()) == []
    with hold(path):
        pass


def test_two_paths_to_one_file_share_the_lock(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run.ckpt")
    with hold(tmp_path / "run.ckpt"), pytest.raises(CheckpointError, match="in use"), hold(tmp_path / "link"):
        pass


def test_the_lock_of_a_killed_process_is_taken_over_and_its_leavings_removed(tmp_path):
    path = tmp_path / "run.ckpt"
    code = (
        "import os, signal, sys\n"
        "from fedpaq.storage.lock import hold\n"
        "with hold(sys.argv[1]):\n"
        "    open(os.path.dirname(sys.argv[1]) + '/.run.ckpt.1-ab.part', 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(path)])
    assert died.returncode == -9
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".run.ckpt.1-ab.part", "run.ckpt.lock"]
    with hold(path):
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.ckpt.lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be locked"), hold(tmp_path / "absent" / "run.ckpt"):
        pass


def test_the_lock_goes_with_an_error_and_can_be_taken_again(tmp_path):
    path = tmp_path / "run.ckpt"
    with pytest.raises(ZeroDivisionError), hold(path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with hold(path):
        pass


def test_a_refused_holder_clears_nothing_away(tmp_path):
    path = tmp_path / "run.ckpt"
    with hold(path):
        (tmp_path / ".run.ckpt.1-ab.part").touch()  # what the holder is writing now
        with pytest.raises(CheckpointError), hold(path):
            pass
        assert (tmp_path / ".run.ckpt.1-ab.part").exists()


def test_locks_of_two_checkpoints_do_not_meet(tmp_path):
    with hold(tmp_path / "a.ckpt"), hold(tmp_path / "b.ckpt"):
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.ckpt.lock", "b.ckpt.lock"]


def test_only_one_of_many_threads_holds_at_a_time(tmp_path):
    path, inside, most, refused = tmp_path / "run.ckpt", [], [], []

    def work():
        for _ in range(30):
            try:
                with hold(path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except CheckpointError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(most) + len(refused) == 120
    assert all("is in use by process" in text for text in refused)
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_has_not_signed_yet_is_unknown(tmp_path):
    path = tmp_path / "run.ckpt"
    with hold(path):
        (tmp_path / "run.ckpt.lock").write_text("")
        with pytest.raises(CheckpointError, match="in use by process unknown; wait for it or choose"), hold(path):
            pass
