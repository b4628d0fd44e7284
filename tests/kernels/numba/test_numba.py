"""Compiled kernels: loaded lazily, announced only when compiled, done without where numba is missing."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core.event import install_listener

from fedpaq import Key, LowPrecision, decode, encode
from fedpaq.codec import adaptive_integers, block_code, gap_code
from fedpaq.kernels import numba as compiled
from fedpaq.kernels.numba.__main__ import KERNELS
from fedpaq.randomness import Purpose


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(compiled._announcer(), "said", False)


def test_compiling_is_announced_once_on_standard_error(nothing_said, capfd):
    with install_listener("numba:compile", compiled._announcer()):
        for function in (njit(lambda x: x + 1), njit(lambda x: x + 2)):
            function(1)
    text = "fedpaq: preparing numeric kernels (compiled once, then cached on disk) ...\n"
    assert capfd.readouterr() == ("", text)


def test_a_slow_machine_with_a_warm_cache_is_not_told_of_compiling(nothing_said, capfd, monkeypatch):
    def slowly(name):
        time.sleep(1.2)
        return name

    monkeypatch.setattr(importlib, "import_module", slowly)
    assert compiled.load.__wrapped__("philox") == "fedpaq.kernels.numba.philox"
    assert capfd.readouterr() == ("", "")


def test_what_the_caller_compiles_is_not_announced(nothing_said, capfd):
    compiled.load("philox")
    njit(lambda x: x + 3)(1)
    assert capfd.readouterr() == ("", "")


def test_kernels_are_loaded_once_and_by_name():
    assert compiled.load("philox") is compiled.load("philox")
    with pytest.raises(ModuleNotFoundError, match=r"fedpaq\.kernels\.numba\.no_such_kernel"):
        compiled.load("no_such_kernel")


def test_all_kernels_can_be_compiled_ahead():
    every = sorted(path.stem for path in Path(compiled.__file__).parent.glob("*.py") if path.stem[0] != "_")
    assert list(KERNELS) == every and {"frequencies", "philox"} <= set(every)
    code = (
        "import runpy, sys\n"
        "sys.argv[1:] = []\n"
        "runpy.run_module('fedpaq.kernels.numba', run_name='__main__')\n"
        "print(*sorted(name[21:] for name in sys.modules if name.startswith('fedpaq.kernels.numba.')))\n"
    )
    ahead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ahead.stdout.split() == every


def test_unknown_kernels_are_refused():
    done = subprocess.run(
        [sys.executable, "-m", "fedpaq.kernels.numba", "philox", "phlox"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert f"unknown kernels phlox; known: {', '.join(KERNELS)}" in done.stderr


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


def test_kernels_and_twins_were_written_for_the_same_numbers():
    for name, twin in (("gap_code", gap_code), ("block_code", block_code), ("adaptive_integers", adaptive_integers)):
        kernels = compiled.load(name)
        shared = [key for key in vars(kernels) if key.isupper() and not key.startswith("_") and hasattr(twin, key)]
        assert len(shared) >= 4
        assert {key: getattr(kernels, key) for key in shared} == {key: getattr(twin, key) for key in shared}
    kernels = compiled.load("low_precision")
    assert (kernels.DITHER, kernels.DITHER_LOW) == (Purpose.DITHER, Purpose.DITHER_LOW)
    assert compiled.load("philox").MINIBATCH == Purpose.MINIBATCH
