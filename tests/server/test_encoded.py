"""Encoded: what cannot be sent is named, what is sent is counted to the byte."""

from __future__ import annotations

import numpy as np
import pytest

import fedpaq
from fedpaq.server.aggregation import Mean
from fedpaq.server.encoded import Encoded, is_rejected, quantize_or_mark_diverged
from small_rounds import QUANTIZERS, send_in_parts, updates_of, work_of


def test_unusable_updates_become_zeros_and_their_runs_are_named():
    work = work_of(runs=3, per_run=2)
    updates = updates_of(work, 5)
    updates[1, 0], updates[4] = np.nan, np.inf
    before = updates.copy()
    messages, diverged = quantize_or_mark_diverged(fedpaq.LowPrecision(2), updates, work)
    assert diverged.tolist() == [0, 2]
    assert [not message.signed_levels.any() for message in messages][1::3] == [True, True]
    usable = [0, 2, 3, 5]
    expected = [fedpaq.LowPrecision(2).quantize(updates[job], key=work.keys()[job]) for job in usable]
    assert [messages[job] for job in usable] == expected
    assert np.array_equal(updates, before, equal_nan=True)


def test_a_quantizer_s_own_refusal_decides_what_is_unusable():
    key = fedpaq.Key(seed=0)
    large = np.full(4, 3e38, np.float32)
    assert is_rejected(fedpaq.LowPrecision(1), large, key) and not is_rejected(fedpaq.LowPrecision(1, 1), large, key)
    assert not is_rejected(fedpaq.Identity(), large, key)
    assert is_rejected(fedpaq.Identity(), np.full(4, -np.inf, np.float32), key)


def test_other_errors_of_a_quantizer_are_not_taken_for_divergence():
    class Broken(fedpaq.LowPrecision):
        def quantize_batch(self, updates, keys):
            raise fedpaq.errors.ConfigError("quantizer=broken is wrong; mend it")

    with pytest.raises(fedpaq.errors.ConfigError, match="mend it"):
        quantize_or_mark_diverged(Broken(1), np.zeros((2, 3), np.float32), work_of(1, 2))


def test_a_quantizer_that_returns_no_messages_is_named():
    class Forgetful(fedpaq.LowPrecision):
        def quantize_batch(self, updates, keys):
            super().quantize_batch(updates, keys)

    with pytest.raises(fedpaq.errors.ConfigError, match="returns NoneType from quantize_batch; return a list"):
        quantize_or_mark_diverged(Forgetful(1), np.zeros((2, 3), np.float32), work_of(1, 2))


def test_a_round_of_a_single_client_and_coordinate_is_carried():
    work = work_of(runs=1, per_run=1)
    for quantizer in QUANTIZERS:
        mean, sizes = send_in_parts(Encoded(quantizer, Mean()), np.full((1, 1), -2.5, np.float32), work, 1)
        assert mean.tolist() == [[-2.5]] and sizes[0] <= 20


def test_other_rounds_are_quantized_with_other_draws():
    updates = updates_of(work_of(1, 2), 60)
    uplink = Encoded(fedpaq.LowPrecision(1), Mean())
    third, again, fourth = (send_in_parts(uplink, updates, work_of(1, 2, round), 1)[0] for round in (3, 3, 4))
    assert np.array_equal(third, again) and not np.array_equal(third, fourth)
