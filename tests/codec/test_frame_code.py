"""Code: what a new wire code may leave out, and how the table finds it."""

from __future__ import annotations

import numpy as np
import pytest

import fedpaq
from fedpaq.codec import CODES, Code, code_by_id, decode, encode_batch, read_header, wire
from fedpaq.errors import ConfigError, WireFormatError
from fedpaq.quantizers import QUANTIZERS, RawMessage


class Ones:
    """A message that says only how long it is."""

    code = "ones"

    def __init__(self, dimension):
        self.dimension = dimension

    def dequantize(self):
        return np.ones(self.dimension, np.float32)

    def add_to(self, total, weight=1.0):
        total += weight

    def __eq__(self, other):
        return isinstance(other, Ones) and self.dimension == other.dimension


class OnesQuantizer:
    wire_code = Code(
        names={15: "ones"},
        pack=lambda messages: [(15, b"") for _ in messages],
        unpack=lambda header: Ones(header.dimension),
    )


@pytest.fixture
def ones(monkeypatch):
    monkeypatch.setitem(QUANTIZERS, "ones", OnesQuantizer)


def test_only_names_pack_and_unpack_are_needed(ones):
    mixed = [Ones(3), Ones(4), RawMessage(np.zeros(2, np.float32)), Ones(5)]
    payloads = encode_batch(mixed)
    assert [decode(payload) for payload in payloads] == mixed
    assert payloads[0][:4] == b"FQ\x1f\x03" and len(payloads[0]) == 8
    header = read_header(payloads[0], key=fedpaq.Key(seed=5))
    assert (header.code, header.code_name, header.key.seed) == (15, "ones", 5)
    assert code_by_id(15).describe(header, Ones(3)) == {} and code_by_id(15).read(header) is header
    total = np.zeros(3)
    fedpaq.accumulate(payloads[0], total, weight=0.5)
    assert total.tolist() == [0.5] * 3


def test_ids_do_not_overlap_and_leave_room():
    own = {*CODES, "low-precision", "rotated", "none"}  # other tests may have registered more
    ids = [id for name, code in wire.codes() if name in own for id in code.names]
    assert len(ids) == len(set(ids)) and max(ids) < 8 and min(ids) == 0
    assert set(CODES) == {"raw", "levels"}


def test_a_message_of_an_unknown_code_is_refused_by_name():
    with pytest.raises(ConfigError, match="unknown code 'ones'; known: raw, levels, rotated"):
        fedpaq.encode(Ones(3))
    with pytest.raises(WireFormatError, match=r"code=15 of the payload is unknown.*install the quantizer"):
        code_by_id(15)
