"""The rotated code: messages come back, hostile contents are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import ConfigError, WireFormatError
from fedpaq.codec import gap_code
from fedpaq.codec.frame import pack_varint
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers.rotated import content as rotated_code
from fedpaq.quantizers.rotated.message import zero_message
from fedpaq.quantizers.rotated.rotation import Blocks
from rotated_cases import KEY, rotated_message, uneven_update


def message_of(p, bits):
    return rotated_message(uneven_update(p), bits)


def decode(content, p, key=KEY):
    return rotated_code.decode(memoryview(content), p, key)


@pytest.mark.parametrize(("p", "bits"), [(512, 6), (785, 2), (5000, 0.1), (5000, 1), (40_000, 0.05), (60_000, 3)])
def test_messages_come_back(p, bits):
    message = message_of(p, bits)
    assert decode(rotated_code.encode(message), p) == message


def test_a_block_of_zeros_has_no_scale():
    update = np.random.default_rng(0).standard_normal(8192).astype(np.float32)
    update[2048:6144] = 0
    message = rotated_message(update, 1.0)
    assert (message.scales == 0).any()
    assert decode(rotated_code.encode(message), 8192) == message
    assert not message.dequantize()[2048:6144].any()


def test_zeros_are_two_bytes():
    content = rotated_code.encode(zero_message(Blocks(700, 1), KEY))
    assert content == bytes([1, 0])
    assert decode(content, 700) == zero_message(Blocks(700, 1), KEY)


def test_without_a_key_levels_can_be_read_but_not_turned_back():
    content = rotated_code.encode(message_of(785, 1))
    message = decode(content, 785, key=None)
    with pytest.raises(ConfigError, match="key"):
        message.dequantize()


def test_twins_write_and_read_the_same(monkeypatch):
    message = message_of(3000, 0.7)
    content = rotated_code.encode(message)
    monkeypatch.setattr(compiled, "load", lambda name: None)
    assert rotated_code.encode(message) == content
    assert decode(content, 3000) == message


@pytest.mark.parametrize(("p", "bits"), [(785, 1.0), (6000, 0.3), (60_000, 3.0)])
def test_damaged_contents_are_refused_or_are_other_messages(p, bits):
    content = rotated_code.encode(message_of(p, bits))
    rng = np.random.default_rng(1)
    damaged = [content[:stop] for stop in range(min(len(content), 60))]
    for _ in range(150):
        changed = bytearray(content)
        changed[rng.integers(min(len(changed), 60))] = rng.integers(256)
        damaged.append(bytes(changed))
    for wrong in damaged:
        try:
            found = decode(wrong, p)
        except WireFormatError:
            continue
        assert np.isfinite(found.dequantize()).all()
        if bits < 3:  # a block body may choose its tables; anything else has one content only
            assert rotated_code.encode(found) == wrong
    with pytest.raises(WireFormatError):
        decode(content + b"\0", p)


def body_of(value, levels):
    """The stream of one non-zero among 1024."""
    one = (np.array([0, 1]), np.array([5]), np.array([value], np.int16))
    return gap_code.encode_nonzeros(*one, 1024, levels, 1024)[0]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (bytes([0, 0]), "blocks=0"),
        (bytes([9, 0]), "blocks=9"),
        (bytes([2, 0]), "holds extra bytes"),
        (bytes([1, 0, 0]), "holds extra bytes"),
        (bytes([1]) + pack_varint(1025), "non-zeros"),
        (bytes([1, 1, 0, 3]), "levels=0"),
        (bytes([1, 1, 1, 21]), "mantissa"),
        (bytes([1, 1, 1, 3]) + pack_varint(2047 << 3), "first scale"),
        (bytes([1, 1, 1, 3]) + pack_varint(0) + body_of(1, 1), "finite and positive"),
        (bytes([1, 1, 1, 3]) + pack_varint(2000 << 3) + body_of(1, 1), "exceed float32"),
        (bytes([1, 1, 2, 3]) + pack_varint(1000 << 3) + body_of(1, 2), "largest level"),
        (bytes([2, 1, 1, 3]) + pack_varint(1000 << 3) + bytes([9]), "side stream"),
    ],
)
def test_hostile_contents_are_refused_by_name(content, wrong):
    with pytest.raises(WireFormatError, match=wrong):
        decode(content, 600)


def test_a_content_that_announces_much_allocates_little():
    huge = 2**40 - 1
    with pytest.raises(WireFormatError):
        decode(bytes([2]) + pack_varint(huge), 785)
    with pytest.raises(WireFormatError):
        decode(pack_varint(huge), 785)
