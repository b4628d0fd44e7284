"""Each kernel against a slow loop or its readable twin, at sizes and values where they could part."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec_cases import gaussian_message, uneven_message
from fedpaq import Key, LowPrecision
from fedpaq.codec import adaptive_integers, block_code, gap_code, tokens
from fedpaq.codec.frequencies import CLASSES, CONTEXTS, STRIDE, normalise
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.low_precision import quantize_numpy
from fedpaq.randomness import Purpose, philox, words_numpy

# Gap code: huge dimensions, whole streams against the twin.


@st.composite
def nonzeros(draw):
    """Some non-zeros anywhere below 2^40, most of them near others."""
    dimension = draw(st.sampled_from([1, 2, 70, 2**16, 2**31 + 5, 2**40 - 1]))
    levels = draw(st.sampled_from([1, 2, 127, 32767]))
    places = st.integers(0, dimension - 1) | st.integers(0, min(dimension - 1, 100))
    positions = sorted(draw(st.sets(places, max_size=40)))
    sizes = st.integers(1, levels) | st.integers(1, min(levels, 3))
    values = [draw(sizes) * draw(st.sampled_from([-1, 1])) for _ in positions]
    width = draw(st.sampled_from([1, 50, dimension]))
    return np.array(positions, np.int64), np.array(values, np.int16), dimension, levels, width


@given(nonzeros())
@settings(max_examples=50, deadline=None)
def test_gap_streams_of_any_dimension_are_the_twin_s_and_come_back(case):
    positions, values, dimension, levels, width = case
    ends = np.array([0, len(positions)])
    (stream,) = gap_code.encode_nonzeros(ends, positions, values, dimension, levels, width)
    assert stream == gap_code.encode_numpy(positions, values, dimension, levels, width)
    read = gap_code.decode_nonzeros(stream, dimension, levels, width, len(positions))
    assert np.array_equal(read[0], positions) and np.array_equal(read[1], values)
    assert read[0].dtype == np.int64 and read[1].dtype == np.int16


@pytest.mark.parametrize("room", [0, 1, 8])
@pytest.mark.parametrize("threads", [False, True])
def test_streams_written_side_by_side_do_not_touch(room, threads, monkeypatch):
    """Each stream has a room of its own in one array; a stream too long for it is written again."""
    monkeypatch.setattr(gap_code, "BYTES_PER_NONZERO", room)
    monkeypatch.setattr(gap_code, "WORTH_THREADS", 0 if threads else 2**40)
    messages = [gaussian_message(150, 30_000, seed=seed) for seed in range(5)]
    messages[2] = replace(messages[2], signed_levels=np.zeros(150, np.int16))
    at = [np.flatnonzero(message.signed_levels) for message in messages]
    values = [message.signed_levels[part].astype(np.int16) for message, part in zip(messages, at, strict=True)]
    ends = np.cumsum([0, *map(len, at)])
    streams = gap_code.encode_nonzeros(ends, np.concatenate(at), np.concatenate(values), 150, 30_000, 150)
    expected = [gap_code.encode_numpy(*pair, 150, 30_000, 150) for pair in zip(at, values, strict=True)]
    assert streams == expected and streams[2] == b""


@given(st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=40, unique=True), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_the_local_mean_of_gaps_is_the_twin_s(positions, t):
    positions, t = sorted(positions), min(t, len(positions) - 1)
    kernels = compiled.load("gap_code")
    left = len(positions) - t
    previous = positions[t - 1] if t else -1
    fast = kernels.mean_gap.py_func(positions, t, previous, 2**40 - 1, left)
    assert fast == gap_code.mean_gap([-1, *positions[:t]], 2**40 - 1, left) >= 0


def test_kernels_and_twins_were_written_for_the_same_numbers():
    for name, twin in (
        ("gap_code", gap_code),
        ("block_code", block_code),
        ("adaptive_integers", adaptive_integers),
    ):
        kernels = compiled.load(name)
        shared = [
            key for key in vars(kernels) if key.isupper() and not key.startswith("_") and hasattr(twin, key)
        ]
        assert len(shared) >= 4
        assert {key: getattr(kernels, key) for key in shared} == {key: getattr(twin, key) for key in shared}
    kernels = compiled.load("low_precision")
    assert (kernels.DITHER, kernels.DITHER_LOW) == (Purpose.DITHER, Purpose.DITHER_LOW)
    assert compiled.load("philox").MINIBATCH == Purpose.MINIBATCH


# Block code: each step of the encoder.

ROWS = {
    "empty blocks": np.zeros(600, np.int8),
    "gaussian": gaussian_message(700, 20).signed_levels,
    "uneven": uneven_message(1100, 500).signed_levels,
    "widest": np.tile(np.array([-32767, 32767, 0, 16, -16, 15], np.int16), 60),
    "a single level": np.array([-1], np.int8),
    "a lane and one": np.arange(65, dtype=np.int8) % 3 - 1,
}


@pytest.mark.parametrize("name", ROWS)
def test_classes_are_bit_lengths_of_sums(name):
    row, kernels = ROWS[name], compiled.load("block_code")
    classes = np.empty(block_code.num_blocks(row.size), np.uint8)
    kernels.classify(row, classes)
    sums = [sum(abs(int(level)) for level in row[start : start + 256]) for start in range(0, row.size, 256)]
    assert classes.tolist() == [total.bit_length() for total in sums] == block_code.classify(row).tolist()


@pytest.mark.parametrize("name", ROWS)
def test_tokens_are_counted_in_the_tables_of_class_and_sign_before(name):
    row, kernels = ROWS[name], compiled.load("block_code")
    classes = block_code.classify(row).astype(np.uint8)
    entries, counts = np.empty(row.size, np.uint16), np.zeros((4, CLASSES * CONTEXTS * STRIDE), np.int64)
    kernels.count_tokens(row, classes, tokens.token_table(), entries, counts)
    for i, level in enumerate(row.tolist()):
        before = int(row[i - 1]) if i % 64 else 0
        context = 0 if before == 0 else 1 if before > 0 else 2
        table = int(classes[i // 256]) * CONTEXTS + context
        assert entries[i] == table * STRIDE + tokens.token_of(level)
    assert np.array_equal(counts.sum(axis=0), np.bincount(entries, minlength=counts.shape[1]))
    lanes = [
        np.bincount(entries[np.arange(row.size) % 256 // 64 == lane], minlength=counts.shape[1])
        for lane in range(4)
    ]
    assert np.array_equal(counts, lanes)


@pytest.mark.parametrize("name", ROWS)
def test_raw_bits_written_by_one_are_added_by_the_other(name):
    row, kernels = ROWS[name], compiled.load("block_code")
    out = np.empty(2 * row.size + 1, np.uint8)
    size = kernels.encode_extras(row, out)
    assert out[:size].tobytes() == block_code.encode_extras(row)
    bases = np.array([tokens.base_level(tokens.token_of(int(level))) for level in row])
    slow, fast = bases.astype(np.int64), bases.astype(row.dtype)
    block_code.add_extras(slow, out[:size].tobytes())
    data = np.frombuffer(out[:size].tobytes(), np.uint8)
    assert kernels.add_extras(data, 32767, fast) == 0
    assert np.array_equal(slow, row) and np.array_equal(fast, row)


def test_raw_bits_that_lack_exceed_or_remain_are_faults():
    kernels = compiled.load("block_code")

    def fault(data, limit=32767):
        return kernels.add_extras(np.frombuffer(data, np.uint8), limit, np.array([16, 1, -32], np.int16))

    # 16 has two raw bits and 32 three: five bits in one byte, the other three zero.
    assert fault(b"\x1f") == 0 and fault(b"") == 1 and fault(b"\x3f") == 1 and fault(b"\x1f\x00") == 1
    assert fault(b"\x1f", limit=39) == 0 and fault(b"\x1f", limit=38) == 3


@given(st.lists(st.sampled_from([0, 0, 0, 1, -1, 2, 17, -300, 32767, -32767]), min_size=1, max_size=400))
@settings(max_examples=40, deadline=None)
def test_block_bodies_of_any_levels_are_the_twin_s(levels):
    row = np.array(levels, np.int16)
    classes = block_code.classify(row)
    frequencies = normalise(block_code.count_tokens(row, classes))
    body = block_code.encode(row, 32767)
    slow = block_code.encode_tokens(row, classes, frequencies) + block_code.encode_extras(row)
    assert body.endswith(slow)
    assert np.array_equal(block_code.decode(memoryview(body), row.size, 32767), row)


# Tokens: the alphabet by definition.


def test_tokens_cut_magnitudes_as_four_classes_an_octave():
    classes = {}
    for magnitude in range(1, 32768):
        classes.setdefault(tokens.token_of(magnitude), []).append(magnitude)
    for token, members in classes.items():
        assert members == list(range(members[0], members[0] + (1 << tokens.extra_bits(token))))
        assert tokens.base_level(token) == members[0] and tokens.base_level(token + 1) == -members[0]
        assert tokens.token_of(-members[-1]) == token + 1
    widths = [len(members) for members in classes.values()]
    assert widths == [1] * 15 + [2**bits for bits in range(2, 13) for _ in range(4)]


def test_the_table_of_tokens_is_token_of_for_every_level():
    levels = np.arange(-32767, 32768)
    expected = [tokens.token_of(level) for level in levels.tolist()]
    assert tokens.token_table()[levels % 65536].tolist() == expected
    assert [tokens.base_level(token) for token in range(tokens.NUM_TOKENS)] == tokens.base_table()[
        :119
    ].tolist()


# Quantizer: rows of several clients at once, every width of bucket.


@given(
    st.integers(1, 5),
    st.integers(1, 600),
    st.sampled_from([1, 2, 100, 127, 128, 32767]),
    st.none() | st.integers(1, 300),
    st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_a_batch_in_machine_code_is_the_twin_row_by_row(count, dimension, levels, bucket_size, seed):
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((count, dimension)) * rng.choice([0, 1e-30, 1, 1e10], (count, dimension))
    keys = [
        Key(seed=int(rng.integers(2**63)), round=int(rng.integers(2**32)), client=client)
        for client in range(count)
    ]
    updates = updates.astype(np.float32)
    batch = LowPrecision(levels, bucket_size).quantize_batch(updates, keys)
    for update, key, message in zip(updates, keys, batch, strict=True):
        assert message == quantize_numpy(update, key, levels, bucket_size)


def test_a_sparse_row_is_rounded_by_the_same_draws_as_a_dense_one():
    """In a vector this long spans are skipped; in its buckets, with the same norms, none are."""
    update = np.zeros(4096, np.float32)
    update[:] = np.tile(np.random.default_rng(2).standard_normal(64).astype(np.float32), 64)
    bucketed = LowPrecision(1, 64).quantize(update, key=Key(seed=1))
    plain = quantize_numpy(update, Key(seed=1), 1, 64)
    assert bucketed == plain and len(set(bucketed.norms.tolist())) == 1


# Philox: words of a group, one by one.


@pytest.mark.parametrize("index", [0, 63, 64, 255, 256, 2**34 - 1, 2**34, 2**38 + 77])
def test_a_draw_is_the_word_of_the_block_the_docstring_names(index):
    """i = 256 g + 64 w + l is word w of block 64 g + l, the block's high half beside the purpose."""
    key = Key(seed=2**40 + 9, round=7, client=2**31)
    group, within = divmod(index, 256)
    word, lane = divmod(within, 64)
    block = 64 * group + lane
    counter = np.array([block % 2**32, 7, 2**31, (Purpose.CHECK << 24) + block // 2**32], np.uint32)
    expected = philox(counter, np.array([9, 2**8], np.uint32))[word]
    assert words_numpy(Purpose.CHECK, key, index, 1).tolist() == [expected]
    out = np.empty(1, np.uint32)
    compiled.load("philox").words(int(Purpose.CHECK), key.seed, key.round, key.client, index, out)
    assert out.tolist() == [expected]
    assert compiled.load("philox").word(int(Purpose.CHECK), key.seed, key.round, key.client, index) == expected


# Dense networks: plain NumPy in double precision, from the equations.


def plain_sgd(params, widths, batches, step_size, decay, loss):
    """Local SGD of a ReLU network by the chain rule: W <- W - eta (dL/dW + lambda W), biases alike."""
    layers, at = [], 0
    for before, after in pairwise(widths):
        weight = params[at : at + after * before].reshape(after, before).astype(float)
        layers.append([weight, params[at + after * before : at + after * before + after].astype(float)])
        at += after * before + after
    for x, target in batches:
        inputs = [x.astype(float)]
        for number, (weight, bias) in enumerate(layers):
            z = inputs[-1] @ weight.T + bias
            inputs.append(z if number == len(layers) - 1 else np.maximum(z, 0))
        z = inputs[-1]
        if loss == 0:
            delta = np.exp(z - z.max(axis=1, keepdims=True))
            delta = (delta / delta.sum(axis=1, keepdims=True) - np.eye(z.shape[1])[target]) / len(z)
        elif loss == 1:
            delta = (1 / (1 + np.exp(-z)) - target) / z.size
        else:
            delta = 2 * (z - target) / z.size
        for number in range(len(layers) - 1, -1, -1):
            weight, bias = layers[number]
            slopes = delta.T @ inputs[number], delta.sum(axis=0)
            delta = (delta @ weight) * (inputs[number] > 0)
            layers[number] = [
                part - step_size * (slope + decay * part)
                for part, slope in zip((weight, bias), slopes, strict=True)
            ]
    return np.concatenate([part.ravel() for layer in layers for part in layer])


@pytest.mark.parametrize("loss", [0, 1, 2], ids=["cross-entropy", "logistic", "squared"])
@pytest.mark.parametrize("widths", [(4, 3), (5, 6, 2), (3, 7, 4, 3)], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_local_steps_follow_the_equations(widths, loss, decay):
    rng = np.random.default_rng(len(widths))
    size = sum(after * before + after for before, after in pairwise(widths))
    params = (rng.standard_normal((2, size)) * 0.5).astype(np.float32)
    inputs = rng.standard_normal((20, widths[0])).astype(np.float32)
    labels = rng.integers(0, widths[-1], 20)
    values = rng.integers(0, 2, (20, widths[-1])).astype(np.float32)
    samples = rng.integers(0, 20, (3, 4, 5))  # jobs, steps, batch
    run_of, step_sizes = np.array([0, 1, 1]), np.array([0.3, 0.1], np.float32)
    updates = np.empty((3, size), np.float32)
    compiled.load("dense_network").local_updates(
        params, run_of, step_sizes, samples, inputs, labels, values, np.array(widths), decay, loss, updates
    )
    targets = labels if loss == 0 else values
    for job, run in enumerate(run_of):
        batches = [(inputs[step], targets[step]) for step in samples[job]]
        expected = plain_sgd(params[run], widths, batches, float(step_sizes[run]), decay, loss) - params[run]
        # Single precision against double: four steps of sums of some ten terms of order one.
        np.testing.assert_allclose(updates[job], expected, atol=5e-6)


# Loading.


def test_kernels_are_loaded_once_and_by_name():
    assert compiled.load("philox") is compiled.load("philox")
    with pytest.raises(ModuleNotFoundError, match=r"fedpaq\.kernels\.numba\.nothing"):
        compiled.load("nothing")


def test_a_quick_block_is_not_announced(capfd):
    with compiled.announced("something slow", after_seconds=60.0) as entered:
        assert entered is None
    with pytest.raises(ZeroDivisionError), compiled.announced("something slow", after_seconds=60.0):
        1 / 0  # noqa: B018
    assert capfd.readouterr().err == ""


def test_what_is_announced_goes_to_standard_error(capfd):
    compiled.announced._say("preparing")
    out, err = capfd.readouterr()
    assert (out, err) == ("", "fedpaq: preparing ...\n")
