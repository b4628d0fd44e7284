"""Server-side ingest: 10,000 uploads, 1 % of them malformed in every known way, into one mean.

One process decodes and adds each upload as it comes. Checked before anything is timed: the total is
to the bit that of the good messages, each counted once; every bad upload is refused with a reason;
memory does not grow with the number of uploads. GB/s counts the float32 updates that the uploads
stand for.

    python benchmarks/ingest.py [--payloads 10000] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpaq import codec
from fedpaq.codec.frame import GAP, RAW, VERSION, pack_header, pack_varint, seal
from fedpaq.codec.level_code import pack_fields
from fedpaq.errors import WireFormatError
from fedpaq.quantizers import Key, LowPrecision
from measurement import seconds_of, write

DIMENSION = 92_027  # the paper's smaller network
CHUNK = 100  # uploads made at a time
FIELDS = pack_fields(1, None)
ONE = np.ones(1, "<f4").tobytes()


def reseal(frame: bytes) -> bytes:
    """Return the frame with a correct checksum, as a hostile client would send it."""
    return frame[:-4] + zlib.crc32(frame[:-4]).to_bytes(4, "little")


def flipped(payload: bytes) -> bytes:
    """Return the payload with its middle bit turned."""
    at = len(payload) // 2
    return payload[:at] + bytes([payload[at] ^ 16]) + payload[at + 1 :]


def with_levels(levels: int) -> bytes:
    """Return a frame that is right but for its number of levels."""
    fields = map(pack_varint, (DIMENSION, levels, 0))
    return seal(b"FQ" + bytes([VERSION << 4 | GAP]), *fields, ONE, b"\0")


def of_norm(norm: float) -> Callable[[bytes], bytes]:
    """Return what replaces a payload by an empty message of this norm."""
    return lambda payload: seal(pack_header(GAP, DIMENSION) + FIELDS, struct.pack("<f", norm), b"\0")


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda payload: b"",
    "truncated": lambda payload: payload[: len(payload) // 2],
    "one bit flipped": flipped,
    "no levels": lambda payload: with_levels(0),
    "more levels than 16 bits hold": lambda payload: with_levels(40_000),
    "trailing garbage": lambda payload: payload + b"\xff",
    "trailing garbage, checksum right": lambda payload: reseal(payload[:-4] + b"\xff" + b"0000"),
    "another dimension": lambda payload: seal(pack_header(GAP, DIMENSION - 1) + FIELDS, ONE, b"\0"),
    "2^40 coordinates": lambda payload: seal(pack_header(GAP, 2**40 - 1) + FIELDS, ONE, b"\0"),
    "more non-zeros than coordinates": lambda payload: seal(
        pack_header(GAP, DIMENSION) + FIELDS, ONE, pack_varint(DIMENSION + 1), b"\x80"
    ),
    "norm is NaN": of_norm(float("nan")),
    "norm is infinite": of_norm(float("inf")),
    "norm is negative": of_norm(-1.0),
    "a raw number is NaN": lambda payload: seal(
        pack_header(RAW, DIMENSION), np.full(DIMENSION, np.nan, "<f4").tobytes()
    ),
    "raw and too short": lambda payload: seal(pack_header(RAW, DIMENSION), bytes(400)),
    "future version": lambda payload: reseal(payload[:2] + bytes([payload[2] + 16]) + payload[3:]),
    "unknown code": lambda payload: seal(b"FQ\x19\x03"),
    "another file": lambda payload: b"PK\x03\x04 this is a zip file",
    "noise": lambda payload: np.random.default_rng(0).bytes(200),
}


def uploads(count: int, levels: int) -> tuple[list[bytes], dict[int, str]]:
    """Return ``count`` payloads of one update under different keys, and which of them are malformed how."""
    update = np.random.default_rng(0).standard_normal(DIMENSION).astype(np.float32)
    quantizer, payloads = LowPrecision(levels), []
    for start in range(0, count, CHUNK):
        keys = [Key(seed=0, client=client) for client in range(start, start + CHUNK)]
        payloads += codec.encode_batch(quantizer.quantize_batch(np.tile(update, (CHUNK, 1)), keys))
    ways = list(MALFORMED)
    bad = {client: ways[number % len(ways)] for number, client in enumerate(range(50, count, 100))}
    for client, way in bad.items():
        payloads[client] = MALFORMED[way](payloads[client])
    return payloads, bad


def ingest(payloads: list[bytes], total: Any) -> tuple[int, dict[int, str]]:
    """Add every good payload to ``total``; return how many, and each refused client with the reason."""
    counted, refused = 0, {}
    for client, payload in enumerate(payloads):
        try:
            codec.accumulate(payload, total)
        except WireFormatError as error:
            refused[client] = str(error)
        else:
            counted += 1
    return counted, refused


def check(payloads: list[bytes], bad: dict[int, str], levels: int) -> dict[str, str]:
    """Raise unless exactly the good ones were counted, once each; return a reason for each way to be bad."""
    total, expected = np.zeros(DIMENSION), np.zeros(DIMENSION)
    counted, refused = ingest(payloads, total)
    update = np.random.default_rng(0).standard_normal(DIMENSION).astype(np.float32)
    for client in range(len(payloads)):
        if client not in bad:
            LowPrecision(levels).quantize(update, key=Key(seed=0, client=client)).add_to(expected)
    if counted != len(payloads) - len(bad) or set(refused) != set(bad):
        raise SystemExit(f"counted {counted}, refused {len(refused)}; {set(refused) ^ set(bad)} went wrong")
    if not np.array_equal(total, expected):
        raise SystemExit("the total is not that of the good messages")
    return {way: refused[client] for client, way in bad.items()}


def resident_bytes() -> int:
    """Return the resident set of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(count: int, levels: int, repeats: int) -> dict[str, Any]:
    """Check, then time, one kind of upload."""
    payloads, bad = uploads(count, levels)
    reasons = check(payloads, bad, levels)
    total = np.zeros(DIMENSION)
    ingest(payloads[: count // 10], total)
    before = resident_bytes()
    ingest(payloads, total)
    growth = resident_bytes() - before
    seconds = statistics.median([seconds_of(lambda: ingest(payloads, total)) for _ in range(repeats)])
    return {
        "levels": levels,
        "payloads": count,
        "malformed": len(bad),
        "mean_payload_bytes": sum(map(len, payloads)) / count,
        "seconds": seconds,
        "payloads_per_second": count / seconds,
        "float32_gigabytes_per_second": 4 * DIMENSION * (count - len(bad)) / seconds / 1e9,
        "memory_growth_bytes": growth,
        "reasons": reasons,
    }


def main() -> None:
    """Measure sparse and dense uploads, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--payloads", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rows = [measure(options.payloads, levels, options.repeats) for levels in (1, 16)]
    for row in rows:
        print(
            f"s={row['levels']}: {row['payloads']} uploads of {row['mean_payload_bytes']:.0f} bytes, "
            f"{row['malformed']} refused; {row['payloads_per_second']:,.0f} per second, "
            f"{row['float32_gigabytes_per_second']:.1f} GB/s of float32; "
            f"memory +{row['memory_growth_bytes'] / 1e6:.1f} MB"
        )
    for way, reason in rows[0]["reasons"].items():
        print(f"  {way}: {reason}")
    write("ingest", {"dimension": DIMENSION, "rows": rows})


if __name__ == "__main__":
    main()
