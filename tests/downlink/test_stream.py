"""Stream: what the server sends, what it costs, and that every holder of a round has the server's model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import codec
from fedpaq.downlink import Changes, parse
from fedpaq.downlink.stream import NOTHING, receive, take_up, to_arrays
from fedpaq.errors import WireFormatError

DIMENSION = 300


def begin(downlink=None, seed=7, dimension=DIMENSION):
    params = np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)
    return (downlink or Changes("rotated:1")).stream(seed, params)


def mean_of(round, dimension=DIMENSION):
    return 0.1 * np.random.default_rng(round).standard_normal(dimension)


def play(stream, rounds, ages=(1,)):
    """Play rounds in which clients were last served so many rounds ago; None: never."""
    moved = []
    for k in range(rounds):
        held = [NOTHING if age is None else max(stream.round - age, NOTHING) for age in ages]
        moved.append(stream.advance(mean_of(k), np.array(held)))
    return moved


@settings(max_examples=25)
@given(
    rounds=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=14),
    text=st.sampled_from(["rotated:1", "rotated:0.3/rotated:4", "rotated:6", "rotated:2/none", "none/none"]),
)
def test_every_participant_holds_the_servers_model_whoever_was_absent(rounds, text):
    stream, clients = begin(parse(text)), {}
    for k, present in enumerate(rounds):
        before = []
        for client in sorted(present):
            held, params = clients.get(client, (NOTHING, None))
            price = int(stream.prices(np.array([held]))[0])
            download = stream.download(held)
            assert price == sum(map(len, download.payloads)) <= stream.dense_bytes
            params = receive(download, params, DIMENSION, stream.seed, stream.round)
            assert params.tobytes() == stream.params.tobytes()
            before.append(held)
            clients[client] = (k, params)
        stream.advance(mean_of(k), np.array(before))


def test_what_coding_loses_goes_with_the_next_changes():
    stream = begin(Changes("rotated:1"))
    play(stream, 5)
    before = np.linalg.norm(stream.aim - stream.params)
    for _ in range(12):
        stream.advance(np.zeros(DIMENSION), np.array([stream.round - 1]))
    assert np.linalg.norm(stream.aim - stream.params) < 0.1 * before


def test_the_aim_moves_by_the_mean_alone():
    stream = begin()
    expected = stream.aim
    for k in range(4):
        expected = np.float32(expected + mean_of(k))
        stream.advance(mean_of(k), np.array([stream.round - 1]))
    assert np.array_equal(stream.aim, expected)


def test_frequent_participants_get_changes_and_rare_ones_snapshots():
    often, rarely = begin(), begin()
    play(often, 12, ages=[1, 2])
    play(rarely, 12, ages=[None, None, None, 9])
    assert often.start == 0 and rarely.start == rarely.round


def test_a_first_model_of_zeros_makes_no_cheap_snapshots_of_what_follows():
    stream = Changes("rotated:1").stream(7, np.zeros(DIMENSION, np.float32))
    play(stream, 8, ages=[1, 2])
    assert stream.snapshot_bytes < 30 and stream.start == 0


def test_frames_are_forgotten_before_they_outgrow_the_model():
    stream = begin(Changes("rotated:6", "none"))
    play(stream, 20)
    kept = len(stream.snapshot) + sum(map(len, stream.changes))
    assert stream.snapshot == b"" and 0 < kept < stream.dense_bytes
    assert len(stream.download(0).payloads[0]) == stream.dense_bytes and stream.download(stream.round).payloads == []
    assert stream.prices(np.array([NOTHING, 0, stream.round])).tolist() == [stream.dense_bytes, stream.dense_bytes, 0]


def test_another_model_of_the_strategy_becomes_a_snapshot():
    stream = begin()
    play(stream, 3)
    held = stream.restart(np.ones(DIMENSION, np.float32))
    assert np.linalg.norm(held - 1) < 0.1 * np.sqrt(DIMENSION) and stream.start == stream.round == 4
    assert receive(stream.download(2), None, DIMENSION, stream.seed, 4).tobytes() == stream.params.tobytes()


def test_a_model_that_is_not_finite_passes_through():
    stream = begin()
    assert not np.isfinite(stream.advance(np.full(DIMENSION, np.inf), np.array([1]))).any()


def test_a_damaged_payload_is_refused():
    stream = begin()
    play(stream, 2)
    download = stream.download(0)
    download.payloads[1] = download.payloads[1][:-1] + b"?"
    with pytest.raises(WireFormatError):
        receive(download, stream.params, DIMENSION, stream.seed, stream.round)


def test_streams_come_back_from_arrays_and_go_on_alike():
    streams = [begin(seed=1), begin(seed=2)]
    for stream, rounds in zip(streams, (3, 5), strict=True):
        play(stream, rounds)
    again = [begin(seed=1), begin(seed=2)]
    take_up(again, np.stack([stream.params for stream in streams]), to_arrays(streams))
    for old, new in zip(streams, again, strict=True):
        assert (new.snapshot, new.changes, new.start) == (old.snapshot, old.changes, old.start)
        assert play(new, 2)[-1].tobytes() == play(old, 2)[-1].tobytes()


@pytest.mark.parametrize("name", ["aim", "numbers", "sizes", "frames"])
def test_arrays_that_do_not_fit_are_refused(name):
    stream = begin()
    play(stream, 3)
    arrays = to_arrays([stream])
    arrays[name] = arrays[name][..., :-1]
    with pytest.raises(ValueError, match="do not fit together"):
        take_up([begin()], stream.params[None], arrays)


def test_frames_are_decoded_with_the_servers_key_only():
    stream = begin()
    other = codec.decode(stream.snapshot, dimension=DIMENSION)
    with pytest.raises(ValueError, match="key"):
        other.dequantize()
