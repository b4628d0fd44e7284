"""Coverage-guided fuzzing of the decoder (needs the package ``atheris``, which is not a dependency).

    python -m tests.fuzz.decode_payload tests/fuzz/corpus -max_total_time=600 -timeout=10

Each input is tried as it is and with a correct CRC, with numba and with the pure-Python twins (whose
branches guide the fuzzer). A finding is anything but WireFormatError, a disagreement of the twins, a
message that does not encode back, or a total that a bad payload changed.
"""

from __future__ import annotations

import sys
import zlib

KEY = {"seed": 3, "round": 1, "client": 4}  # of the sender: what the rotated code needs to add its messages


def check(data: bytes) -> None:
    """Raise AssertionError (or whatever escapes) if the decoder mistreats ``data``."""
    from fedpaq.codec import read_header
    from fedpaq.errors import WireFormatError

    sealed = data + zlib.crc32(data).to_bytes(4, "little")
    for payload in (data, sealed):
        try:
            header = read_header(payload)
        except WireFormatError:
            continue
        if header.dimension <= 4096:
            _check_frame(payload, header.dimension)
        else:
            _attempt(payload, dimension=header.dimension + 1)


def _check_frame(payload: bytes, dimension: int) -> None:
    import numpy as np

    from fedpaq.codec import accumulate, decode, encode
    from fedpaq.errors import WireFormatError
    from fedpaq.kernels import numba as compiled
    from fedpaq.randomness import Key

    fast = _attempt(payload, dimension=dimension)
    load = compiled.load
    compiled.load = lambda name: None  # type: ignore[assignment]
    slow = _attempt(payload, dimension=dimension)
    compiled.load = load
    assert fast == slow, "the twins disagree"
    total = np.full(dimension, 0.5)
    try:
        accumulate(payload, total, 0.25, key=Key(**KEY))
    except WireFormatError:
        assert fast is None
        assert np.all(total == 0.5), "a bad payload changed the total"
    else:
        expected = np.full(dimension, 0.5)
        fast.add_to(expected, 0.25)
        assert np.array_equal(total, expected, equal_nan=True)
        assert decode(encode(fast), dimension=dimension, key=Key(**KEY)) == fast


def _attempt(payload: bytes, dimension: int):
    """Return the message, or None where the decoder refuses."""
    from fedpaq.codec import decode
    from fedpaq.errors import WireFormatError
    from fedpaq.randomness import Key

    try:
        return decode(payload, dimension=dimension, key=Key(**KEY))
    except WireFormatError:
        return None


def main() -> None:
    """Fuzz until told to stop."""
    import atheris

    with atheris.instrument_imports(include=["fedpaq.codec", "fedpaq.quantizers"]):
        import fedpaq.codec  # noqa: F401
    from fedpaq.kernels import numba as compiled

    for name in ("gap_code", "block_code", "frequencies", "rotation"):  # else compiling would count as a hang
        compiled.prepare(name)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
