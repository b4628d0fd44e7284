"""Progress bars and interrupts: silence in pipes, one voice, handlers put back."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest

from fedpaq.cli.interrupts import INTERRUPTED, TERMINATED, orderly_end
from fedpaq.cli.progress import progress_bar


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def drawn(monkeypatch, stream, quiet):
    """What a bar of three steps writes to a standard error of this kind."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(quiet) as bar:
        job = bar.add_task("FedPAQ", total=3, note="")
        for step in range(4):
            bar.update(job, completed=step, note=f"loss {step}")
            bar.refresh()
        assert bar.tasks[0].completed == 3
    return stream.getvalue()


def test_a_pipe_sees_no_progress(monkeypatch):
    assert drawn(monkeypatch, io.StringIO(), quiet=False) == ""


def test_a_quiet_bar_draws_nothing_on_a_terminal_either(monkeypatch):
    assert "FedPAQ" not in drawn(monkeypatch, Terminal(), quiet=True)


def test_a_terminal_sees_name_count_and_loss(monkeypatch):
    text = drawn(monkeypatch, Terminal(), quiet=False)
    assert "FedPAQ" in text and "3/3" in text and "loss 3" in text


@pytest.mark.parametrize(
    ("advice", "told"), [("", "fedpaq: interrupted\n"), ("wait", "fedpaq: interrupted; wait\n")]
)
def test_advice_is_optional(advice, told, capsys):
    with pytest.raises(SystemExit) as end, orderly_end(advice):
        raise KeyboardInterrupt
    assert end.value.code == INTERRUPTED == 130
    assert capsys.readouterr().err == told


def test_of_several_processes_only_one_speaks_and_all_end_alike(capsys):
    with pytest.raises(SystemExit) as end, orderly_end("resume", speaks=lambda: False):
        raise SystemExit(TERMINATED)
    assert end.value.code == TERMINATED == 143
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(0), SystemExit("text")])
def test_other_ends_pass_and_the_handler_is_put_back(error):
    before = signal.getsignal(signal.SIGTERM)

    def work():
        assert signal.getsignal(signal.SIGTERM) is not before
        raise error

    with pytest.raises(type(error)) as end, orderly_end("advice"):
        work()
    assert end.value is error
    assert signal.getsignal(signal.SIGTERM) is before


def test_blocks_nest_and_the_outer_one_keeps_its_handler(capsys):
    before = signal.getsignal(signal.SIGTERM)
    with orderly_end():
        outer = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit), orderly_end("inner"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is outer
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "fedpaq: terminated; inner\n"
