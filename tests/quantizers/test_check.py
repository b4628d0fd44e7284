"""The conformance check: one defect of each kind is found and named, and what is right passes."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import Identity, Key, LowPrecision
from fedpaq.errors import ConfigError
from fedpaq.quantizers import RawMessage, check_quantizer
from fedpaq.quantizers.check import quantize_all

TRIALS = 200


class OfRows:
    """A quantizer made of one function (row, key) -> row; its promise is ``bound``."""

    name = "mine"
    bound = 0.0

    def estimate(self, row, key):
        raise NotImplementedError

    def variance_bound(self, dimension):
        return self.bound

    def quantize(self, update, *, key):
        return RawMessage(self.estimate(np.asarray(update, np.float32), key).astype(np.float32))

    def quantize_batch(self, updates, keys):
        return [self.quantize(row, key=key) for row, key in zip(updates, keys, strict=True)]


class HalfKept(OfRows):
    """Unbiased: each coordinate is sent twice as large or not at all, by a draw from the key; variance 1."""

    bound = 1.0

    def estimate(self, row, key):
        kept = np.random.default_rng([key.seed, key.round, key.client]).random(row.size) < 0.5
        return np.where(kept, 2 * row, 0)


class Shrinking(OfRows):
    def estimate(self, row, key):
        return 0.9 * row


class Offset(OfRows):
    """Adds as much as it takes away: no bias along a random update but one over its signs."""

    bound = 1e9

    def estimate(self, row, key):
        return row + 0.1 * np.abs(row).max() * np.sign(row) * (np.abs(row) > 0)


class NeverZero(OfRows):
    def estimate(self, row, key):
        return row + np.float32(1e-3)


class WrongShape(OfRows):
    def estimate(self, row, key):
        return np.append(row, 0.0)


class Moody(HalfKept):
    """Draws from a generator of its own, so the same key gives other messages."""

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def estimate(self, row, key):
        return np.where(self._rng.random(row.size) < 0.5, 2 * row, 0)


class OneKey(HalfKept):
    """Forgets who asks: every client's error is the same and does not average out."""

    def estimate(self, row, key):
        return super().estimate(row, Key(seed=1))


class Float32Norm(LowPrecision):
    """Squares in single precision: 1e30 becomes infinite, 1e-30 nothing."""

    def quantize(self, update, *, key):
        return self.quantize_batch(np.asarray(update)[None], [key])[0]

    def quantize_batch(self, updates, keys):
        batch = super().quantize_batch(updates, keys)
        with np.errstate(all="ignore"):
            norms = np.sqrt((np.asarray(updates, np.float32) ** 2).sum(axis=1, dtype=np.float32, keepdims=True))
        return type(batch)(batch.signed_levels, norms, batch.levels)


class Boastful(HalfKept):
    bound = 0.5


@pytest.mark.parametrize(
    ("quantizer", "complaint"),
    [
        (Shrinking(), "^quantizer 'mine' is biased on usual updates along itself: off by .*, allowed "),
        (Offset(), "^quantizer 'mine' is biased on usual updates"),
        (NeverZero(), "^quantizer 'mine' does not send zeros to zeros at dimension=1$"),
        (WrongShape(), "^quantizer 'mine' does not send zeros to zeros at dimension=1$"),
        (Moody(), "^quantizer 'mine' gives different messages for the same update and key$"),
        (OneKey(), "^quantizer 'mine' is biased on usual updates"),
        (Float32Norm(2), "gives non-finite estimates of huge updates$"),
        (Boastful(), r"has variance .* \|\|x\|\|\^2 on usual updates of dimension=.*, above its variance_bound=0.5$"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_defect_is_found_and_named(quantizer, complaint):
    with np.errstate(invalid="ignore"), pytest.raises(ConfigError, match=complaint):
        check_quantizer(quantizer, trials=TRIALS)


@pytest.mark.parametrize("quantizer", [HalfKept(), Identity(), LowPrecision(1), LowPrecision(3, 10)])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_right_passes_whatever_the_seed(quantizer, seed):
    check_quantizer(quantizer, trials=TRIALS, seed=seed)


class InBatches(HalfKept):
    """Returns from ``quantize_batch`` what ``change`` makes of the messages."""

    def __init__(self, change):
        self._change = change

    def quantize_batch(self, updates, keys):
        return self._change(super().quantize_batch(updates, keys))


BATCHES = [
    (lambda messages: None, "returns NoneType from quantize_batch; return a list of messages"),
    (iter, "returns list_iterator from quantize_batch; return a list of messages"),
    (lambda messages: messages[1:], "returns [17] messages for [28] updates from quantize_batch; return one for each"),
    (lambda messages: [None] * len(messages), r"gives NoneType as a message; return one that has dequantize\(\)"),
]


@pytest.mark.parametrize(("change", "complaint"), BATCHES)
def test_a_batch_that_is_not_one_message_for_each_update_is_refused(change, complaint):
    with pytest.raises(ConfigError, match=f"^quantizer 'mine' {complaint}$"):
        check_quantizer(InBatches(change), trials=TRIALS)


@pytest.mark.parametrize(("change", "complaint"), BATCHES)
def test_a_run_refuses_such_a_batch_in_the_same_words(change, complaint):
    with pytest.raises(ConfigError, match=f"^quantizer 'mine' {complaint}$"):
        quantize_all(InBatches(change), np.zeros((2, 3), np.float32), [Key(seed=0), Key(seed=0, client=1)])


def test_a_quantizer_that_returns_nothing_is_refused():
    class Forgetful(HalfKept):
        def quantize(self, update, *, key):
            super().quantize(update, key=key)

    with pytest.raises(ConfigError, match="gives NoneType as a message"):
        check_quantizer(Forgetful(), trials=TRIALS)


@pytest.mark.parametrize("trials", [99, 0, -1, 100.0])
def test_too_few_trials_to_judge_are_refused(trials):
    with pytest.raises(ConfigError, match=f"trials={trials} is .*; choose an integer >= 100"):
        check_quantizer(Identity(), trials=trials)


def test_a_quantizer_without_a_name_is_shown_by_its_repr():
    class Nameless(Shrinking):
        def __repr__(self):
            return "Nameless()"

        @property
        def name(self):
            raise AttributeError

    with pytest.raises(ConfigError, match=r"quantizer Nameless\(\) is biased"):
        check_quantizer(Nameless(), trials=TRIALS)


@pytest.mark.parametrize("bad", [None, 4, "none", LowPrecision])
def test_what_is_not_a_quantizer_is_refused_before_any_trial(bad):
    with pytest.raises(ConfigError, match=r"^quantizer=.* (is a class; pass|has no quantize and no quantize_batch)"):
        check_quantizer(bad)
