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
from fedpaq.quantizers.rotated.message import zero_message
from fedpaq.quantizers.rotated.rotation import Blocks
from repository import ROOT
from rotated_cases import KEY, arithmetic_rotated

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
    "rotated-one": arithmetic_rotated(785, 1, 1, 40),
    "rotated-blocks": arithmetic_rotated(5000, 5, 1, 60),
    "rotated-levels": arithmetic_rotated(1000, 2, 9, 3),
    "rotated-gaps": arithmetic_rotated(2000, 4, 2, 3000),  # blocks without non-zeros
    "rotated-wide": arithmetic_rotated(40, 1, 32767, 1),
    "rotated-tiny": arithmetic_rotated(1, 1, 1, 1),
    "rotated-zeros": zero_message(Blocks(300, 1), KEY),
    "rotated-dense": arithmetic_rotated(2**15, 2, 3, 1),  # its body is the block code's
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
    assert decode(frame, dimension=MESSAGES[name].dimension, key=KEY) == MESSAGES[name]
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


def test_the_worked_example_of_the_rotated_code_decodes():
    text = (ROOT / "docs" / "wire-format.md").read_text()
    frame = bytes.fromhex(re.search(r"```text worked-example-rotated\n(.*?)```", text, re.DOTALL)[1])
    message = decode(frame, dimension=100, key=KEY)
    assert (message.blocks.count, message.blocks.length, message.blocks.size) == (2, 64, 64)
    assert message.scales.tolist() == [0.5, 0.75]
    assert np.flatnonzero(message.signed_levels).tolist() == [3, 64 + 6]
    assert message.signed_levels[[3, 70]].tolist() == [1, -2]
    assert encode(message) == frame
    assert message.dequantize().shape == (100,)
