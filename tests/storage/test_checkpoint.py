"""Checkpoint files: whole or absent, checked before believed, the previous one kept."""

from __future__ import annotations

import hashlib
import json
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.errors import CheckpointError
from fedpaq.storage import checkpoint

ARRAYS = {
    "params": np.arange(12, dtype=np.float32).reshape(3, 4),
    "empty": np.zeros((0, 3)),
    "scalar": np.array(7, np.int64),
    "flags": np.array([True, False]),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def sealed(body):
    """Return ``body`` with the checksum an attacker would add too."""
    return body + hashlib.sha256(body).digest()


def front(header, version=checkpoint.VERSION, magic=checkpoint.MAGIC, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<8sII", magic, version, len(text) if length is None else length) + text


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_what_was_saved_is_loaded(path):
    checkpoint.save(path, {"round": 3, "loss": 0.1, "why": None}, ARRAYS)
    header, arrays = checkpoint.load(path)
    assert header == {"round": 3, "loss": 0.1, "why": None}
    assert list(arrays) == list(ARRAYS)
    for name, values in ARRAYS.items():
        assert arrays[name].dtype == values.dtype and arrays[name].shape == values.shape
        assert np.array_equal(arrays[name], values) and arrays[name].flags.writeable


def test_the_bytes_of_a_file_are_as_documented(path):
    checkpoint.save(path, {"k": 1}, {"x": np.array([1.0, -2.0], np.float32)})
    header = b'{"header": {"k": 1}, "arrays": [["x", "<f4", [2]]]}'
    body = b"FEDPAQCK" + b"\x01\x00\x00\x00" + bytes([len(header), 0, 0, 0]) + header
    assert path.read_bytes() == sealed(body + bytes.fromhex("0000803f000000c0"))


def test_big_endian_and_strided_arrays_are_stored_little_endian(path):
    values = np.arange(10, dtype=">f8")[::3]
    checkpoint.save(path, {}, {"x": values})
    assert checkpoint.load(path)[1]["x"].tolist() == [0.0, 3.0, 6.0, 9.0]


def test_packed_bytes_are_those_of_the_file_and_are_checked_alike(path):
    checkpoint.save(path, {"k": 1}, ARRAYS)
    packed = checkpoint.pack({"k": 1}, ARRAYS)
    assert packed == path.read_bytes()
    header, arrays = checkpoint.unpack(packed)
    assert header == {"k": 1} and all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
    for bad in (b"", packed[:-1], packed + b"\0", packed[:60] + b"\xff" + packed[61:]):
        with pytest.raises(CheckpointError, match=r"^packed checkpoint "):
            checkpoint.unpack(bad)


def test_saving_keeps_the_one_before_and_leaves_nothing_else(path):
    for k in range(3):
        checkpoint.save(path, {"k": k}, {})
    assert names(path.parent) == ["run.ckpt", "run.ckpt.previous"]
    assert checkpoint.read(path)[0] == {"k": 2}
    assert checkpoint.read(checkpoint.previous(path))[0] == {"k": 1}


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 15, 16, 30, 60, 200, -33, -32, -1])
def test_a_truncated_file_is_refused(path, kept):
    checkpoint.save(path, {"k": 1}, ARRAYS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"run\.ckpt"):
        checkpoint.load(path)


def test_any_flipped_byte_is_noticed(path):
    checkpoint.save(path, {"k": 1}, {"x": np.arange(3, dtype=np.int8)})
    good = path.read_bytes()
    for at in range(len(good)):
        for flip in (0x01, 0x80):
            path.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
            with pytest.raises(CheckpointError):
                checkpoint.read(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(CheckpointError):
        checkpoint.read(path)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not a fedpaq checkpoint"),
        (b"PK\x03\x04 an archive of something else, long enough to hold a digest", "not a fedpaq checkpoint"),
        (front({"header": {}, "arrays": []}, version=2), "has version=2; this fedpaq reads version 1: upgrade"),
        (front({"header": {}, "arrays": []}, version=1 + 2**16), "has version=65537; this fedpaq reads"),
        (front({"header": {}, "arrays": []}, length=2**32 - 1), "claims a header of 4294967295"),
        (front({"header": {}, "arrays": [["x", "<f4", [2**33]]]}), "its header says 34359738368"),
        (front({"header": {}, "arrays": [["x", "<f4", [2**70]]]}), "impossible name, dtype or shape"),
        (front({"header": {}, "arrays": [["x", "<f4", [-1]]]}), "impossible name, dtype or shape"),
        (front({"header": {}, "arrays": [["x", "<f4", [True]]]}), "impossible name, dtype or shape"),
        (front({"header": {}, "arrays": [["x", "|O", [1]]]}), "impossible name, dtype or shape"),
        (front({"header": {}, "arrays": [["x", "<f4", [0] * 9]]}), "impossible name, dtype or shape"),
        (front({"header": {}, "arrays": [["x", "<f8", [0] + [2**34] * 3]]}), "impossible array 'x'"),
        (front({"header": [], "arrays": []}), "wrong form"),
        (front({"header": {}, "arrays": [["x", "<f4", [0]]] * 1025}), "wrong form"),
        (front({"header": {}, "arrays": [["x", "|u1", [0]]] * 2}), "two arrays of one name"),
        (front({"header": {}}), "KeyError"),
        (front(b"[" * 100_000), "unreadable header"),
        (front(b"\xff\xfe"), "unreadable header"),
        (front(b'{"header": {"k": ' + b"9" * 5000 + b'}, "arrays": []}'), "unreadable header"),
        (front(b'{"header": {"k": NaN}, "arrays": []}'), "NaN"),
        (front(b'{"header": {"k": 1e999}, "arrays": []}'), "1e999 is beyond a double"),
    ],
)
def test_a_hostile_file_with_a_right_checksum_is_refused(path, body, why):
    path.write_bytes(sealed(body))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(path)
    assert str(caught.value).startswith(f"checkpoint={str(path)!r} ") and why in str(caught.value)


def test_a_claimed_size_allocates_nothing(path):
    """A sparse file of 1 TiB with a header that fits it costs no memory and no time."""
    path.write_bytes(front({"header": {}, "arrays": [["x", "|u1", [2**33]]]}))
    os.truncate(path, 2**40)
    with pytest.raises(CheckpointError, match="more than the 17179869184 expected"):
        checkpoint.read(path)
    os.truncate(path, 2**20)
    with pytest.raises(CheckpointError, match="its header says 8589934592"):
        checkpoint.read(path)


def test_the_previous_one_is_used_with_a_warning_and_the_refused_one_kept(path):
    for k in range(2):
        checkpoint.save(path, {"k": k}, {})
    path.write_bytes(path.read_bytes()[:-1])
    damaged = path.read_bytes()
    with pytest.warns(UserWarning, match=r"using run\.ckpt\.previous instead"):
        assert checkpoint.load(path)[0] == {"k": 0}
    assert (path.parent / "run.ckpt.refused").read_bytes() == damaged
    checkpoint.save(path, {"k": 5}, {})  # must not have pushed the bad file over the good one
    assert checkpoint.load(path)[0] == {"k": 5}
    assert checkpoint.read(checkpoint.previous(path))[0] == {"k": 0}


def test_a_crash_between_the_two_renames_leaves_the_previous_one(path):
    checkpoint.save(path, {"k": 0}, {})
    path.rename(checkpoint.previous(path))
    assert checkpoint.exists(path)
    assert checkpoint.load(path)[0] == {"k": 0}
    checkpoint.save(path, {"k": 1}, {})
    assert checkpoint.load(path)[0] == {"k": 1}


def test_with_no_good_file_the_first_problem_is_told(path):
    checkpoint.save(path, {}, {})
    checkpoint.save(path, {}, {})
    path.write_bytes(b"x")
    checkpoint.previous(path).write_bytes(b"y")
    with pytest.raises(CheckpointError, match=r"run\.ckpt' is not a fedpaq checkpoint"):
        checkpoint.load(path)
    assert path.read_bytes() == b"x"


def test_a_missing_file_is_told(path):
    assert not checkpoint.exists(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.load(path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_refused_at_once(path, make):
    make(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        checkpoint.read(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        checkpoint.save(path, {}, {})
    assert names(path.parent) == ["run.ckpt"]


def test_a_file_of_something_else_is_not_replaced(path):
    path.write_text("my thesis")
    with pytest.raises(CheckpointError, match="is not a fedpaq checkpoint"):
        checkpoint.save(path, {}, {})
    assert path.read_text() == "my thesis" and names(path.parent) == ["run.ckpt"]


@pytest.mark.parametrize(
    ("header", "arrays", "why"),
    [
        ({"x": object()}, {}, "plain finite JSON"),
        ({"x": float("nan")}, {}, "plain finite JSON"),
        ({}, {"x": np.array(["text"])}, "cannot be saved"),
        ({}, {"x": np.array([object()])}, "cannot be saved"),
        ({"x": "y" * 2**24}, {}, "put long lists into arrays"),
    ],
)
def test_what_cannot_be_loaded_is_not_saved(path, header, arrays, why):
    with pytest.raises(CheckpointError, match=why):
        checkpoint.save(path, header, arrays)
    assert names(path.parent) == []


def test_a_failing_write_leaves_the_old_file_and_no_partial(path, monkeypatch):
    checkpoint.save(path, {"k": 0}, {})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match=r"No space left on device.*untouched"):
        checkpoint.save(path, {"k": 1}, {})
    assert names(path.parent) == ["run.ckpt"] and checkpoint.load(path)[0] == {"k": 0}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans(), st.booleans())
def test_bytes_are_a_checkpoint_or_refused(tmp_path_factory, data, with_front, with_seal):
    path = tmp_path_factory.getbasetemp() / "random.ckpt"
    body = front(data) if with_front else data
    path.write_bytes(sealed(body) if with_seal else body)
    with pytest.raises(CheckpointError):
        checkpoint.read(path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4), st.lists(st.integers(0, 5), max_size=3))
def test_any_plain_header_and_shape_survive(tmp_path_factory, header, shape):
    path = tmp_path_factory.getbasetemp() / "any.ckpt"
    values = np.random.default_rng(0).standard_normal(shape)
    checkpoint.save(path, header, {"x": values})
    loaded, arrays = checkpoint.load(path)
    assert loaded == header and np.array_equal(arrays["x"], values)
