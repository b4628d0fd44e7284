"""Range coder: a sequence of binary decisions, each with a probability, into bytes and back.

The coder holds an interval [low, low + range) of 48-bit integers. A decision with probability
P / 65536 of a one splits it: a one takes the lower part, of size (range >> 16) * P. Whenever the range
falls below 2^40 the top byte of ``low`` leaves. At the end the encoder sends the number of the
interval that needs the fewest bytes and drops trailing zero bytes, which the decoder supplies: so a
sequence of decisions has exactly one accepted encoding. Integers only: the same bytes everywhere.

These classes are the twins of ``fedpaq.kernels.numba.range_coder`` and the version to read. Both have the
same two verbs, so a model written once (``bit = coder.code(probability, bit)``) encodes and decodes.
"""

from fedpaq.errors import WireFormatError

TOP = 1 << 48
BOTTOM = 1 << 40
MASK = TOP - 1
RAW_BITS = 16  # raw bits pass in runs of at most 16


def shortest_offset(low: int, size: int) -> tuple[int, int]:
    """Return (offset, bytes): the number of [low, low + size) whose low-order bytes are zero soonest."""
    count, offset = 0, -low & MASK
    while offset >= size:  # ends by count = 6, where the offset is 0
        count += 1
        offset = -low & (MASK >> (8 * count))
    return offset, count


class RangeEncoder:
    """Turns decisions into bytes; ``low`` grows without bound here, so that carries need no care."""

    def __init__(self) -> None:
        self._low, self._range, self._sent = 0, TOP, 0

    def code(self, probability: int, bit: int | None) -> int:
        """Append one decision whose probability of a one is ``probability`` / 65536."""
        bound = (self._range >> 16) * probability
        self._low, self._range = (self._low, bound) if bit else (self._low + bound, self._range - bound)
        self._normalise()
        return int(bit or 0)

    def raw(self, count: int, value: int | None) -> int:
        """Append ``count`` equally likely bits, the most significant first."""
        value = int(value or 0)
        for start in range(0, count, RAW_BITS):
            width = min(RAW_BITS, count - start)
            chunk = (value >> (count - start - width)) & ((1 << width) - 1)
            self._range >>= width
            self._low += chunk * self._range
            self._normalise()
        return value

    def finish(self) -> bytes:
        """Close the interval and return the bytes."""
        offset, _ = shortest_offset(self._low & MASK, self._range)
        return (self._low + offset).to_bytes(self._sent + 6, "big").rstrip(b"\0")

    def _normalise(self) -> None:
        while self._range < BOTTOM:
            self._low <<= 8
            self._range <<= 8
            self._sent += 1


class RangeDecoder:
    """Turns bytes back into decisions."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 6
        self._low, self._range = 0, TOP
        self._code = int.from_bytes(body[:6].ljust(6, b"\0"), "big")

    def code(self, probability: int, bit: int | None = None) -> int:
        """Return the next decision (``bit`` is what the encoder would be told; unused)."""
        bound = (self._range >> 16) * probability
        if self._code < bound:
            self._range = bound
            bit = 1
        else:
            self._advance(bound)
            self._range -= bound
            bit = 0
        self._normalise()
        return bit

    def raw(self, count: int, value: int | None = None) -> int:
        """Return the next ``count`` raw bits."""
        value = 0
        for start in range(0, count, RAW_BITS):
            width = min(RAW_BITS, count - start)
            self._range >>= width
            chunk = self._code // self._range
            if chunk >> width:  # the remainder of the shift, which no encoder reaches
                raise WireFormatError("the body leaves the coder's interval; the payload is corrupt")
            self._advance(chunk * self._range)
            value = value << width | chunk
            self._normalise()
        return value

    def finish(self) -> None:
        """Refuse bytes that no encoder would have sent for these decisions."""
        offset, _ = shortest_offset(self._low, self._range)
        if self._code != offset or len(self._body) > self._at or self._body[-1:] == b"\0":
            raise WireFormatError("the body does not end where its last symbol does; the payload is corrupt")

    def _advance(self, amount: int) -> None:
        self._code -= amount
        self._low = (self._low + amount) & MASK

    def _normalise(self) -> None:
        while self._range < BOTTOM:
            self._code = self._code << 8 | (self._body[self._at] if self._at < len(self._body) else 0)
            self._low = (self._low << 8) & MASK
            self._range <<= 8
            self._at += 1
