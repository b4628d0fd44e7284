"""What a quantizer may be handed: any layout and number type means its float32, or is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpaq import Identity, Key, LowPrecision, Rotated, accumulate, decode, encode
from fedpaq.errors import ConfigError, NonFiniteUpdateError
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.update import as_float32

KEY = Key(seed=3, round=2, client=1)


QUANTIZERS = [LowPrecision(1), LowPrecision(7, 16), LowPrecision(300), Identity()]


PLAIN = np.random.default_rng(5).standard_normal(60).astype(np.float32)


def read_only(values):
    """The values as a network layer hands them over: a view of immutable bytes."""
    return np.frombuffer(values.tobytes(), values.dtype)


LAYOUTS = {
    "read-only bytes": read_only(PLAIN),
    "every second of twice as many": np.repeat(PLAIN, 2)[::2],
    "reversed twice": PLAIN[::-1].copy()[::-1],
    "a column of a matrix": np.tile(PLAIN, (3, 1)).T[:, 1],
    "the other byte order": PLAIN.astype(PLAIN.dtype.newbyteorder()),
    "double precision": PLAIN.astype(np.float64),
    "a list": PLAIN.tolist(),
    "a tensor that needs gradients": torch.from_numpy(PLAIN.copy()).requires_grad_(),
    "a strided tensor": torch.from_numpy(np.repeat(PLAIN, 3))[::3],
    "a double tensor": torch.from_numpy(PLAIN.astype(np.float64)),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_the_layout_of_an_update_does_not_matter(quantizer, name):
    assert quantizer.quantize(LAYOUTS[name], key=KEY) == quantizer.quantize(PLAIN, key=KEY)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint16, np.int64])
def test_narrow_and_whole_numbers_are_taken_at_their_value(quantizer, dtype):
    numbers = np.array([0, 3, 100, 7, 1, 0, 64], dtype)
    assert quantizer.quantize(numbers, key=KEY) == quantizer.quantize(numbers.astype(np.float32), key=KEY)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32])
def test_tensors_of_types_numpy_lacks_or_has_are_quantized(dtype):
    tensor = torch.tensor([1.5, -2.0, 0.0, 8.0]).to(dtype)
    expected = LowPrecision(4).quantize(tensor.to(torch.float32), key=KEY)
    assert LowPrecision(4).quantize(tensor, key=KEY) == expected


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_a_batch_may_be_a_read_only_broadcast_or_a_transposed_matrix(quantizer):
    keys = [Key(seed=3, client=client) for client in range(4)]
    one_by_one = [quantizer.quantize(PLAIN, key=key) for key in keys]
    assert list(quantizer.quantize_batch(np.broadcast_to(PLAIN, (4, 60)), keys)) == one_by_one
    assert list(quantizer.quantize_batch(np.tile(PLAIN[:, None], 4).T, keys)) == one_by_one


def test_quantizing_leaves_the_update_as_it_was():
    update = PLAIN.copy()
    for quantizer in QUANTIZERS:
        quantizer.quantize(update, key=KEY)
    assert np.array_equal(update, PLAIN)


def test_an_update_already_in_float32_is_not_copied():
    update = PLAIN.copy()
    assert np.shares_memory(as_float32(update), update)
    frozen = read_only(PLAIN)
    assert np.shares_memory(as_float32(frozen), frozen)


def test_an_update_that_lies_across_words_is_taken():
    """As one cut out of a received buffer may: kernels want it aligned."""
    data = b"x" + PLAIN.tobytes()
    crooked = np.frombuffer(data, np.float32, offset=1)
    assert not crooked.flags.aligned
    for quantizer in (LowPrecision(1), LowPrecision(3, bucket_size=7), Identity()):
        assert quantizer.quantize(crooked, key=KEY) == quantizer.quantize(PLAIN, key=KEY)


@pytest.mark.parametrize("quantizer", [LowPrecision(1), Identity()], ids=lambda quantizer: quantizer.name)
@pytest.mark.parametrize(
    ("update", "complaint"),
    [
        (np.float32(3.0), r"update.shape=\(\) is not a vector; flatten it to \(p,\)"),
        (np.zeros((2, 3), np.float32), r"update.shape=\(2, 3\) is not a vector"),
        (np.array([True, False]), "update.dtype=bool is not numeric; pass float32"),
        (np.array([1j]), "update.dtype=complex128 is not numeric"),
        (np.array([None]), "update.dtype=object is not numeric"),
    ],
)
def test_what_is_no_vector_of_numbers_is_refused(quantizer, update, complaint):
    with pytest.raises(ConfigError, match=complaint):
        quantizer.quantize(update, key=KEY)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_a_batch_needs_a_key_for_each_row(quantizer):
    with pytest.raises(ConfigError, match=r"updates.shape=\(2, 3\) does not match the 1 keys; pass \(r, p\)"):
        quantizer.quantize_batch(np.zeros((2, 3), np.float32), [KEY])
    with pytest.raises(ConfigError, match=r"updates.shape=\(3,\) does not match the 3 keys"):
        quantizer.quantize_batch(np.zeros(3, np.float32), [KEY] * 3)


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_a_round_without_updates_gives_no_messages(quantizer):
    assert len(quantizer.quantize_batch(np.zeros((0, 5), np.float32), [])) == 0


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
def test_an_update_without_coordinates_stands_for_nothing(quantizer):
    message = quantizer.quantize(np.zeros(0, np.float32), key=KEY)
    total = np.zeros(0)
    message.add_to(total, 2.0)
    assert message.dimension == 0 and message.dequantize().shape == (0,) and total.size == 0


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: quantizer.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite_in_float32_are_refused_by_name(quantizer, bad, numba, monkeypatch):
    if not numba:
        monkeypatch.setattr(compiled, "load", lambda name: None)
    update = np.ones(40)
    update[17] = bad
    with pytest.raises(NonFiniteUpdateError, match=r"update\[17\]=(nan|inf|-inf) of client=1 in round=2 is not"):
        quantizer.quantize(update, key=KEY)


NOT_KEYS = [None, 3, "3", (0, 1, 2), np.zeros(3), Key]


@pytest.mark.parametrize("quantizer", [*QUANTIZERS, Rotated(bits=1.0), Rotated(payload_bytes=60)])
@pytest.mark.parametrize("bad", NOT_KEYS, ids=str)
def test_what_is_not_a_key_is_refused_wherever_one_is_due(quantizer, bad):
    payload = encode(quantizer.quantize(PLAIN, key=KEY))
    attempts = [
        lambda: quantizer.quantize(PLAIN, key=bad),
        lambda: quantizer.quantize_batch(PLAIN[None], bad),
        lambda: quantizer.quantize_batch(PLAIN[None], [bad]),
    ]
    if hasattr(quantizer, "approximate"):
        attempts.append(lambda: quantizer.approximate(PLAIN, key=bad))
    if bad is not None:
        attempts += [lambda: decode(payload, key=bad), lambda: accumulate(payload, np.zeros(60), key=bad)]
    for attempt in attempts:
        with pytest.raises(ConfigError, match=r"^key=.* is not a Key; write e.g. fedpaq.Key\(seed=0, round=3"):
            attempt()
