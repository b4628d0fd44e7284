"""Interrupts: one report, an exit code of its own, handlers put back."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from fedpaq.cli.interrupts import INTERRUPTED, TERMINATED, orderly_end


@pytest.mark.parametrize(("advice", "told"), [("", "fedpaq: interrupted\n"), ("wait", "fedpaq: interrupted; wait\n")])
def test_advice_is_optional(advice, told, capsys):
    with pytest.raises(SystemExit) as end, orderly_end(advice):
        raise KeyboardInterrupt
    assert end.value.code == INTERRUPTED == 130
    assert capsys.readouterr().err == told


def test_of_several_processes_only_one_reports_and_all_end_alike(capsys):
    with pytest.raises(SystemExit) as end, orderly_end("resume", reports=lambda: False):
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


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_unwinds_the_block_and_gives_advice(number, code, word, capsys, request):
    unwound, before = [], signal.getsignal(signal.SIGTERM)
    # A shell that starts the tests in the background has them ignore SIGINT.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def work():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            unwound.append(True)

    with pytest.raises(SystemExit) as end, orderly_end("go on with --resume"):
        work()
    assert end.value.code == code and unwound == [True]
    assert capsys.readouterr().err == f"fedpaq: {word}; go on with --resume\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_exits_pass_through():
    with pytest.raises(SystemExit) as end, orderly_end():
        raise SystemExit(3)
    assert end.value.code == 3
