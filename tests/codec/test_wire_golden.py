"""Golden frames: a test fails when any byte of any code changes. Once released, a change needs a new version.

``tests/golden/frames.json`` maps names to frames in hexadecimal; messages come from integer arithmetic.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from codec_cases import arithmetic_message, level_header
from fedpaq.codec import decode, encode, read_header
from fedpaq.codec.block_code import encode as encode_blocks
from fedpaq.codec.frame import BLOCK, seal
from fedpaq.kernels import numba as compiled
from fedpaq.quantizers import QuantizedMessage, RawMessage
from repository import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden" / "frames.json").read_text())
MESSAGES = {
    "gap-sparse": arithmetic_message(785, 1, 40),
    "gap-long": arithmetic_message(100_000, 1, 3000),
    "gap-levels": arithmetic_message(400, 10, 9),
    "gap-buckets": arithmetic_message(100, 5, 3, bucket_size=32),
    "gap-wide": arithmetic_message(30, 32767, 1),
    "gap-dense": arithmetic_message(3000, 2, 1),
    "gap-one": arithmetic_message(1, 1, 10**9),
    "gap-zeros": QuantizedMessage(np.zeros(1000, np.int8), np.zeros(1, np.float32), 1),
    "block": arithmetic_message(700, 9, 2),
    "block-wide": arithmetic_message(300, 3000, 1, bucket_size=100),
    "raw": RawMessage((np.arange(7) - 3).astype(np.float32) / 4),
}


def encode_as_named(name):
    message = MESSAGES[name]
    if not name.startswith("block"):
        return encode(message)
    header = level_header(BLOCK, message.dimension, message.levels, message.bucket_size)
    return seal(header, message.norms.tobytes(), encode_blocks(message.signed_levels, message.levels))


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_frames_have_not_changed_by_a_byte(name):
    assert encode_as_named(name).hex() == GOLDEN[name]


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("name", MESSAGES)
def test_golden_frames_decode(name, numba, monkeypatch):
    if not numba:
        monkeypatch.setattr(compiled, "load", lambda name: None)
    frame = bytes.fromhex(GOLDEN[name])
    assert decode(frame, dimension=MESSAGES[name].dimension) == MESSAGES[name]
    assert read_header(frame).code_name == name.split("-")[0]


def test_every_golden_frame_is_checked():
    assert GOLDEN.keys() == MESSAGES.keys()


def test_the_worked_example_of_the_documentation_decodes():
    text = (ROOT / "docs" / "wire-format.md").read_text()
    frame = bytes.fromhex(re.search(r"```text worked-example\n(.*?)```", text, re.DOTALL)[1])
    message = decode(frame, dimension=8)
    assert message.signed_levels.tolist() == [0, 0, 1, 0, 0, -2, 0, 0]
    assert (message.norms.tolist(), message.levels, message.bucket_size) == ([1.5], 2, None)
    assert encode(message) == frame
