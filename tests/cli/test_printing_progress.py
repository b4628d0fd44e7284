"""The progress bar: live in a terminal, silent in a pipe."""

from __future__ import annotations

import io
import sys

from fedpaq.cli.printing import at_work, progress_bar


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def drawn(monkeypatch, stream, quiet):
    """What a bar of three steps writes to a standard error of this kind."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("FedPAQ", 3, quiet=quiet) as update:
        for step in range(4):
            update(completed=step, detail=f"loss {step}", refresh=True)
    return stream.getvalue()


def test_a_pipe_sees_no_progress(monkeypatch):
    assert drawn(monkeypatch, io.StringIO(), quiet=False) == ""


def test_a_quiet_bar_draws_nothing_on_a_terminal_either(monkeypatch):
    assert "FedPAQ" not in drawn(monkeypatch, Terminal(), quiet=True)


def test_a_terminal_sees_name_share_and_detail(monkeypatch):
    text = drawn(monkeypatch, Terminal(), quiet=False)
    assert "FedPAQ" in text and "100%" in text and "loss 3" in text


def test_work_without_an_end_in_sight_is_silent_where_output_is_piped(capsys):
    with at_work("estimating"):
        pass
    assert capsys.readouterr() == ("", "")
