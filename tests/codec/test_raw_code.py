"""The raw code: float32 as it is, its length known without making it."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq import codec
from fedpaq.quantizers import RawMessage


@pytest.mark.parametrize("dimension", [1, 127, 128, 16_383, 16_384])
def test_raw_payloads_are_counted_to_the_byte_where_the_header_grows(dimension):
    message = RawMessage(np.ones(dimension, np.float32))
    assert codec.raw_bytes(dimension) == len(codec.encode(message)) == codec.measure_batch([message])[0]
