"""The rotated code's side stream in machine code: the twin's bytes, and its faults."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.errors import WireFormatError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.rotated import steps

MOST = 2047 * 2**20 - 1


def slow(monkeypatch):
    monkeypatch.setattr(compiled, "load", lambda name: None)


def read(side, first, count):
    try:
        return steps.decode(memoryview(side), first, MOST, count).tolist()
    except WireFormatError:
        return None


@pytest.mark.parametrize("spread", [1, 30, 10**5, 10**9])
@pytest.mark.parametrize("count", [1, 2, 5, 200])
def test_scales_are_the_twin_s_bytes_and_come_back(count, spread, monkeypatch):
    rng = np.random.default_rng(count)
    indices = np.clip(10**9 + rng.integers(-spread, spread + 1, count), 1, MOST)
    side = steps.encode(indices)
    assert read(side, int(indices[0]), count) == indices.tolist()
    slow(monkeypatch)
    assert steps.encode(indices) == side
    assert read(side, int(indices[0]), count) == indices.tolist()


def test_damaged_streams_are_refused_by_both_alike(monkeypatch):
    rng = np.random.default_rng(0)
    indices = 5 + rng.integers(0, 30, 40)  # so near the lower end that some steps lead beyond it
    good, cases = steps.encode(indices), []
    for _ in range(200):
        bad = bytearray(good)
        bad[int(rng.integers(len(bad)))] ^= int(rng.integers(1, 256))
        cases.append(bytes(bad)[: int(rng.integers(1, 2 * len(bad)))])
    mine = [read(case, int(indices[0]), 40) for case in cases]
    slow(monkeypatch)
    assert mine == [read(case, int(indices[0]), 40) for case in cases]
    assert sum(found is None for found in mine) >= 100


@pytest.mark.parametrize("first", [0, MOST + 1])
def test_a_first_scale_out_of_range_is_refused(first):
    with pytest.raises(WireFormatError, match="not finite and positive"):
        steps.decode(memoryview(b""), first, MOST, 1)
