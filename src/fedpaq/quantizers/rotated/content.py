"""Content: a rotated message as bytes, between the frame's dimension and its CRC.

    blocks | non-zeros | levels | mantissa | first scale | side length | side | body
    varint |   varint  | varint |  1 byte  |    varint   |    varint   |      |

``levels`` is the largest magnitude. An update of zeros is one block and no non-zeros, and ends there. The
body is the gap code's stream of all rotated blocks joined, or the block code's body where that suits the
number of non-zeros. Scales travel for the blocks that have non-zeros: exponent and mantissa of a double,
joined, as one integer; the first as a varint, the others in the side stream of ``steps`` (absent, with its
length, if there is one block). Each message has exactly one content.
"""

from typing import Any

import numpy as np

from fedpaq.arrays import Bools, Float64, Int16
from fedpaq.codec import Code, Header, block_code, gap_code
from fedpaq.codec.frame import pack_varint, read_side, read_varint
from fedpaq.errors import WireFormatError
from fedpaq.quantizers.message import MAX_LEVELS
from fedpaq.quantizers.nonzeros import collect
from fedpaq.quantizers.rotated import steps
from fedpaq.quantizers.rotated.allocation import variance_bound
from fedpaq.quantizers.rotated.message import (
    LARGEST,
    MOST_MANTISSA_BITS,
    RotatedMessage,
    largest_estimate,
    scale_index,
    scale_of,
    zero_message,
)
from fedpaq.quantizers.rotated.rotation import Blocks
from fedpaq.randomness import Key

EXPONENTS = 2047  # those of finite doubles
BLOCK_NONZEROS = 2**15  # from here on, one in eight or denser, the block code is as short and much faster
BLOCK_SPARSITY = 8


def suits_blocks(count: int, padded: int) -> bool:
    """Whether the body is the block code's."""
    return count >= BLOCK_NONZEROS and BLOCK_SPARSITY * count >= padded


def encode(message: RotatedMessage) -> bytes:
    """Return the content of a message."""
    if message.content is not None:
        return message.content
    levels, most = message.signed_levels, message.levels
    start = pack_varint(message.blocks.count) + pack_varint(message.nonzeros)
    if message.nonzeros == 0:
        return start
    if suits_blocks(message.nonzeros, levels.size):
        body = block_code.encode(levels, most)
    else:
        found = collect(levels[None], np.array([message.nonzeros]))
        body = gap_code.encode_nonzeros(found.ends, found.positions, found.values, levels.size, most, levels.size)[0]
    index = scale_index(message.scales[message.scales > 0], message.mantissa_bits)
    fields = pack_varint(most) + bytes([message.mantissa_bits]) + pack_varint(int(index[0]))
    if message.blocks.count > 1:
        side = steps.encode(index)
        fields += pack_varint(len(side)) + side
    return start + fields + body


def decode(content: memoryview, dimension: int, key: Key | None = None) -> RotatedMessage:
    """Return the message of a content; raises WireFormatError. ``key`` is the sender's."""
    blocks, count, at = _read_blocks(content, dimension)
    if count == 0:
        if blocks.count > 1 or at < len(content):
            raise WireFormatError("a payload without non-zeros holds extra bytes; it is corrupt")
        return zero_message(blocks, key)
    most, at = read_varint(content, at, "levels", MAX_LEVELS)
    if most == 0 or at >= len(content):
        raise WireFormatError("levels=0 of the payload is out of range, or it ends there; it is corrupt")
    mantissa_bits, at = content[at], at + 1
    if mantissa_bits > MOST_MANTISSA_BITS:
        raise WireFormatError(f"mantissa bits of the payload exceed {MOST_MANTISSA_BITS}; it is corrupt")
    first, at = read_varint(content, at, "the first scale", (EXPONENTS << mantissa_bits) - 1)
    side, at = read_side(content, at) if blocks.count > 1 else (content[:0], at)
    levels = _read_levels(content[at:], blocks.padded, most, count)
    scales = _read_scales(side, first, mantissa_bits, np.asarray(levels.reshape(blocks.count, -1).any(axis=1)))
    message = RotatedMessage(blocks, levels, scales, mantissa_bits, most, count, key)
    if not largest_estimate(message) <= LARGEST:
        raise WireFormatError("a scale of the payload lets estimates exceed float32; it is corrupt")
    return message


def _read_blocks(content: memoryview, dimension: int) -> tuple[Blocks, int, int]:
    number, at = read_varint(content, 0, "blocks", dimension)
    blocks = Blocks(dimension, max(number, 1))
    if number == 0 or not blocks.fits:
        raise WireFormatError(f"blocks={number} of the payload do not fit dimension={dimension}; it is corrupt")
    count, at = read_varint(content, at, "the number of non-zeros", blocks.padded)
    return blocks, count, at


def _read_levels(body: memoryview, padded: int, most: int, count: int) -> Int16:
    """Return the levels, of which exactly ``count`` are not zero and one is as large as announced."""
    if suits_blocks(count, padded):
        levels = block_code.decode(body, padded, most).astype(np.int16)
        found = levels
        if np.count_nonzero(levels) != count:
            raise WireFormatError("the body does not hold the non-zeros announced; the payload is corrupt")
    else:
        positions, found = gap_code.decode_nonzeros(body, padded, most, padded, count)
        levels = np.zeros(padded, np.int16)
        levels[positions] = found
    if max(int(found.max()), -int(found.min())) != most:
        raise WireFormatError(f"levels={most} of the payload is not its largest level; it is corrupt")
    levels.flags.writeable = False
    return levels


def _read_scales(side: memoryview, first: int, mantissa_bits: int, used: Bools) -> Float64:
    """Return one scale a block, 0 for those without non-zeros."""
    most = (EXPONENTS << mantissa_bits) - 1
    indices = steps.decode(side, first, most, int(used.sum()))
    scales = np.zeros(used.size)
    scales[used] = scale_of(indices, mantissa_bits)
    return scales


def describe(header: Header, message: RotatedMessage) -> dict[str, Any]:
    """Return what there is to see in a rotated message."""
    return {
        "blocks": message.blocks.count,
        "rotated_coordinates": message.blocks.padded,
        "nonzeros": message.nonzeros,
        "density": message.nonzeros / message.blocks.padded,
        "largest_level": message.levels,
        "mantissa_bits": message.mantissa_bits,
    }


CODE = Code(
    names={3: "rotated"},
    pack=lambda messages: [(3, encode(message)) for message in messages],
    unpack=lambda header: decode(header.body, header.dimension, header.key),
    describe=describe,
    variance=lambda header: variance_bound(header.dimension, header.payload_bytes),
)
