"""Compiled kernels: loaded lazily, announced once if that takes long, done without where numba is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedpaq import Key, LowPrecision, decode, encode
from fedpaq.kernels import numba as compiled
from fedpaq.kernels.numba import announced
from fedpaq.kernels.numba.__main__ import KERNELS


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(announced, "_said", set())


def test_a_long_preparation_is_announced_once(nothing_said, capsys):
    for _ in range(2):
        with announced("getting ready", after_seconds=0.01):
            time.sleep(0.1)
    assert capsys.readouterr().err == "fedpaq: getting ready ...\n"


def test_a_short_preparation_is_not_announced(nothing_said, capsys):
    with announced("getting ready", after_seconds=5.0):
        pass
    time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_a_preparation_that_fails_is_not_announced_afterwards(nothing_said, capsys):
    def fail():
        with announced("getting ready", after_seconds=0.05):
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        fail()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_kernels_are_loaded_once():
    assert compiled.load("philox") is compiled.load("philox")


def test_an_unknown_kernel_is_an_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_kernel"):
        compiled.load("no_such_kernel")


def test_kernels_can_be_compiled_ahead_and_unknown_ones_are_refused():
    done = subprocess.run(
        [sys.executable, "-m", "fedpaq.kernels.numba", "philox", "phlox"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "unknown kernels phlox; known: philox, low_precision" in done.stderr
    known = {path.stem for path in Path(compiled.__file__).parent.glob("[a-z]*.py")}
    assert set(KERNELS) <= known
    ahead = subprocess.run(
        [sys.executable, "-m", "fedpaq.kernels.numba", "philox"], capture_output=True, check=False
    )
    assert ahead.returncode == 0 and ahead.stdout == b""


def test_without_numba_the_twins_send_the_same_bytes(monkeypatch):
    rng = np.random.default_rng(0)
    updates = [rng.standard_normal(300).astype(np.float32) for _ in range(3)]
    quantizers = [LowPrecision(1), LowPrecision(7, bucket_size=32), LowPrecision(300)]

    def payloads():
        pairs = zip(quantizers, updates, strict=True)
        return [encode(quantizer.quantize(update, key=Key(seed=4))) for quantizer, update in pairs]

    with_numba = payloads()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find_spec(name))
    compiled.load.cache_clear()
    try:
        assert compiled.load("philox") is None
        assert payloads() == with_numba
        assert [decode(payload).dimension for payload in with_numba] == [300, 300, 300]
    finally:
        compiled.load.cache_clear()
