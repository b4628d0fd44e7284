"""Rotation: a random orthogonal map that makes any update look Gaussian, one block at a time.

    R = W / sqrt(n)^turns,   W = H D2 H D1,   D1, D2 random signs, H the Walsh-Hadamard matrix of n = 2^k.

The update is cut into blocks of equal length, each padded with zeros to a power of two. One turn leaves a
one-hot vector with equal magnitudes; after the second, with fresh signs, it looks Gaussian, but for a fourth
moment that is off by 4/n. Where one coordinate outweighs the rest, that biases the rest by about 2/n: small
blocks take a third turn.

Every step is pinned so that NumPy, numba and Triton agree to the bit: signs are bits of Philox words,
butterflies (a, b) -> (a + b, a - b) are float32 and run from narrow to wide, and only W is ever computed.
Coordinate c of the padded blocks takes bit (c // 32) % 32 of word 32 (c // 1024) + c % 32 of a turn's stream:
a run of 32 shares one shift.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedpaq.arrays import Float32, Float64, Int16, UInt32
from fedpaq.randomness import Key, Purpose, words_numpy

CELL = 64  # blocks are cut between cells of this many coordinates
SIGN_GROUP = 1024
TURNS = (Purpose.ROTATION, Purpose.ROTATION_AGAIN, Purpose.ROTATION_THIRD)  # the signs of each turn
LARGE = 4096  # blocks from here on take two turns


@dataclass(frozen=True)
class Blocks:
    """How an update of ``dimension`` coordinates is cut.

    >>> blocks = Blocks(92_027, 12)
    >>> blocks.length, blocks.size, blocks.padded
    (7680, 8192, 98304)
    """

    dimension: int
    count: int

    @property
    def length(self) -> int:
        """Coordinates in each block; the last may have fewer."""
        if self.count == 1:
            return self.dimension
        return -(-self.dimension // (self.count * CELL)) * CELL

    @property
    def size(self) -> int:
        """Coordinates in each rotated block: a power of two."""
        return 1 << (self.length - 1).bit_length()

    @property
    def padded(self) -> int:
        """Coordinates in all rotated blocks."""
        return self.count * self.size

    @property
    def turns(self) -> int:
        """How often a block is rotated."""
        return 2 if self.size >= LARGE else 3

    @property
    def growth(self) -> float:
        """The factor W multiplies norms with: sqrt(n)^turns."""
        return math.sqrt(float(self.size) ** self.turns)

    @property
    def fits(self) -> bool:
        """Whether no block is empty: a count that does not fit is another way to say a smaller one."""
        return self.count >= 1 and (self.count - 1) * self.length < self.dimension


def flips_numpy(purpose: Purpose, key: Key, count: int) -> UInt32:
    """Return the sign bits, in place, of the first ``count`` coordinates of a stream of signs."""
    groups = -(-count // SIGN_GROUP)
    words = words_numpy(purpose, key, 0, 32 * groups).reshape(groups, 1, 32)
    bits = words >> np.arange(32, dtype=np.uint32)[:, None] & np.uint32(1)  # (groups, 32 bits, 32 words)
    return (bits << np.uint32(31)).reshape(-1)[:count]


def flip(rows: Float32, flips: UInt32) -> Float32:
    """Return rows with the signs flipped where ``flips`` says so."""
    return (np.ascontiguousarray(rows).view(np.uint32) ^ flips.reshape(rows.shape)).view(np.float32)


def transform_numpy(rows: Float32) -> Float32:
    """Return H times each row (blocks, n)."""
    width = 1
    while width < rows.shape[1]:
        pairs = rows.reshape(len(rows), -1, 2, width)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack([low + high, low - high], axis=2).reshape(rows.shape)
        width *= 2
    return rows


def rotate_numpy(update: Float32, blocks: Blocks, factors: Float32, key: Key) -> Float32:
    """Return W (factor x) for each block, (blocks, n); the slow twin of the compiled kernel."""
    rows = np.zeros((blocks.count, blocks.size), np.float32)
    for block in range(blocks.count):
        part = update[block * blocks.length : (block + 1) * blocks.length]
        rows[block, : part.size] = part * factors[block]
    for purpose in TURNS[: blocks.turns]:
        rows = transform_numpy(flip(rows, flips_numpy(purpose, key, rows.size)))
    return rows


def rotate_back_numpy(levels: Int16, blocks: Blocks, scales: Float64, key: Key) -> Float32:
    """Return scale W^T level for each block, joined: (p,); the slow twin of the compiled kernel."""
    rows = levels.reshape(blocks.count, blocks.size).astype(np.float32)
    for purpose in reversed(TURNS[: blocks.turns]):
        rows = flip(transform_numpy(rows), flips_numpy(purpose, key, rows.size))
    scaled = rows[:, : blocks.length].astype(np.float64) * scales[:, None]
    return scaled.astype(np.float32).reshape(-1)[: blocks.dimension]
