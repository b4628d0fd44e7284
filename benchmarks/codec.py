"""Codec: payload sizes against the entropy, and speed against memcpy, constriction and dense addition.

python benchmarks/codec.py [--repeats 7] [--largest 25000000]

One core: run it with NUMBA_NUM_THREADS=1 (set here if it is not). Exits 1 when a bound of the issue is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np

import fedpaq
from fedpaq.codec import encode_batch, estimate_payload_bytes, order0_entropy
from measurement import alternate, write
from real_updates import PROBLEMS, real_updates

SIZES = (785, 7_850, 92_027, 1_000_000, 4_000_000, 25_000_000)
missed: list[str] = []


def require(name: str, value: float, bound: float, *, at_most: bool = False) -> None:
    """Note a bound that is missed."""
    if value > bound if at_most else value < bound:
        missed.append(f"{name}: {value:.4g}, bound {bound:.4g}")
        print(f"  MISSED {missed[-1]}")


def all_levels(dimension: int) -> list[int]:
    """Return the levels of the issue: 1, 5, 10, 64, ceil(sqrt(p))."""
    return [1, 5, 10, 64, math.isqrt(dimension - 1) + 1]


def gaussian(dimension: int) -> np.ndarray:
    """Return one Gaussian update (1, p)."""
    return np.random.default_rng(0).standard_normal((1, dimension), dtype=np.float32)


def measure_sizes(name: str, updates: np.ndarray) -> list[dict[str, Any]]:
    """Return payload bytes over entropy for every s, after checking that the payloads decode."""
    rows = []
    for levels in all_levels(updates.shape[1]):
        keys = [fedpaq.Key(seed=0, client=client) for client in range(len(updates))]
        messages = fedpaq.LowPrecision(levels=levels).quantize_batch(updates, keys)
        payloads = encode_batch(messages)
        if any(fedpaq.decode(p, dimension=m.dimension) != m for p, m in zip(payloads, messages, strict=True)):
            raise SystemExit(f"{name}, s={levels}: a payload does not decode to its message")
        sizes = [len(payload) for payload in payloads]
        entropies = [order0_entropy(message.signed_levels) / 8 for message in messages]
        excess = max(size - 1.02 * entropy for size, entropy in zip(sizes, entropies, strict=True))
        require(f"{name} s={levels} payload - 1.02 entropy", excess, 24, at_most=True)
        row = {
            "name": name,
            "dimension": updates.shape[1],
            "levels": levels,
            "nonzeros": statistics.mean(int(np.count_nonzero(m.signed_levels)) for m in messages),
            "payload_bytes": statistics.mean(sizes),
            "entropy_bytes": statistics.mean(entropies),
            "payload_over_entropy": sum(sizes) / sum(entropies),
            "excess_over_1.02_entropy_bytes": excess,
            "estimate_error": estimate_error(messages, sizes),
        }
        rows.append(row)
        print(
            f"{name:16} p={row['dimension']:>10,} s={levels:>5} {row['payload_bytes']:>12,.1f} B / entropy "
            f"{row['payload_over_entropy']:.4f}  excess {excess:>9.1f} B  estimate {row['estimate_error']:+.3%}"
        )
    return rows


def estimate_error(messages: list[Any], sizes: list[int]) -> float:
    """Return how far the size estimate is from the mean payload, relatively."""
    at = [np.flatnonzero(message.signed_levels) for message in messages]
    values = np.concatenate([m.signed_levels[part] for m, part in zip(messages, at, strict=True)])
    ends = np.cumsum([0, *map(len, at)])
    first = messages[0]
    guess = estimate_payload_bytes(ends, np.concatenate(at), values, dimension=first.dimension, levels=first.levels)
    return float(guess.mean() / statistics.mean(sizes) - 1)


def measure_speed(dimension: int, levels: int, repeats: int) -> dict[str, Any]:
    """Return speeds relative to np.copyto of the same vector, in one run."""
    update = gaussian(dimension)[0]
    copy, total, key = np.empty_like(update), np.zeros(dimension), fedpaq.Key(seed=0)
    quantizer = fedpaq.LowPrecision(levels=levels)
    message = quantizer.quantize(update, key=key)
    payload = fedpaq.encode(message)
    dense = message.dequantize()
    if not np.array_equal(fedpaq.decode(payload, dimension=dimension).dequantize(), dense):
        raise SystemExit(f"p={dimension}, s={levels}: decoded differently")
    times = alternate(
        {
            "memcpy": lambda: np.copyto(copy, update),
            "quantize_and_encode": lambda: fedpaq.encode(quantizer.quantize(update, key=key)),
            "decode": lambda: fedpaq.decode(payload, dimension=dimension),
            "decode_to_float32": lambda: fedpaq.decode(payload, dimension=dimension).dequantize(),
            "accumulate": lambda: fedpaq.accumulate(payload, total, 0.1),
            "add_dense": lambda: np.add(total, dense, out=total),
        },
        repeats,
    )
    median = {name: statistics.median(values) for name, values in times.items()}
    row = {"dimension": dimension, "levels": levels, "payload_bytes": len(payload), "median_seconds": median}
    for name in ("quantize_and_encode", "decode", "decode_to_float32", "accumulate"):
        row[f"{name}_over_memcpy"] = median["memcpy"] / median[name]
    row["accumulate_over_add_dense"] = median["add_dense"] / median["accumulate"]
    print(
        f"p={dimension:>10,} s={levels:>5}  memcpy {median['memcpy'] / dimension * 1e9:.3f} ns/coord; "
        f"of its speed: quantize+encode {row['quantize_and_encode_over_memcpy']:.3f}, decode "
        f"{row['decode_over_memcpy']:.3f}, to float32 {row['decode_to_float32_over_memcpy']:.3f}; "
        f"accumulate / dense add {row['accumulate_over_add_dense']:.1f}"
    )
    if dimension >= 4_000_000:
        dense_levels = levels > 10
        require(
            f"p={dimension} s={levels} encode", row["quantize_and_encode_over_memcpy"], 0.03 if dense_levels else 0.1
        )
        require(f"p={dimension} s={levels} decode", row["decode_to_float32_over_memcpy"], 0.02 if dense_levels else 0.1)
    if (dimension, levels) == (25_000_000, 1):
        require("accumulate at p=25M, s=1", row["accumulate_over_add_dense"], 20)
    return row


def measure_batch(repeats: int) -> dict[str, Any]:
    """Return the time a message takes in a batch of 25 of p = 785."""
    updates = np.random.default_rng(0).standard_normal((25, 785), dtype=np.float32)
    keys = [fedpaq.Key(seed=0, client=client) for client in range(25)]
    messages = fedpaq.LowPrecision(levels=1).quantize_batch(updates, keys)
    payloads = encode_batch(messages)
    total = np.zeros(785)
    times = alternate(
        {
            "encode": lambda: encode_batch(messages),
            "decode": lambda: [fedpaq.decode(payload, dimension=785) for payload in payloads],
            "accumulate": lambda: [fedpaq.accumulate(payload, total) for payload in payloads],
        },
        max(repeats, 21),
    )
    micros = {name: statistics.median(values) / 25 * 1e6 for name, values in times.items()}
    print("25 messages of p=785, s=1, microseconds a message:", {k: round(v, 1) for k, v in micros.items()})
    return {"microseconds_a_message": micros}


def measure_constriction(dimension: int, levels: int, repeats: int) -> dict[str, Any]:
    """Compare with constriction, given the best static model for nothing (its cost is not counted)."""
    import constriction

    message = fedpaq.LowPrecision(levels=levels).quantize(gaussian(dimension)[0], key=fedpaq.Key(seed=0))
    low = int(message.signed_levels.min())
    symbols = message.signed_levels.astype(np.int32) - low
    counts = np.bincount(symbols).astype(np.float64)
    model = constriction.stream.model.Categorical(counts / counts.sum(), perfect=False)
    payload = fedpaq.encode(message)

    def encode() -> Any:
        coder = constriction.stream.stack.AnsCoder()
        coder.encode_reverse(symbols, model)
        return coder.get_compressed()

    words = encode()
    decoded = constriction.stream.stack.AnsCoder(words).decode(model, dimension)
    if not np.array_equal(decoded, symbols) or fedpaq.decode(payload, dimension=dimension) != message:
        raise SystemExit("a decoder disagrees")
    times = alternate(
        {
            "encode": lambda: fedpaq.encode(message),
            "constriction_encode": encode,
            "decode": lambda: fedpaq.decode(payload, dimension=dimension),
            "constriction_decode": lambda: constriction.stream.stack.AnsCoder(words).decode(model, dimension),
        },
        repeats,
    )
    median = {name: statistics.median(values) for name, values in times.items()}
    row = {
        "dimension": dimension,
        "levels": levels,
        "payload_bytes": len(payload),
        "constriction_bytes": 4 * len(words),
        "encode_speed_over_constriction": median["constriction_encode"] / median["encode"],
        "decode_speed_over_constriction": median["constriction_decode"] / median["decode"],
        "median_seconds": median,
    }
    print(
        f"against constriction p={dimension:,} s={levels}: {len(payload):,} B to {4 * len(words):,} B, encode "
        f"{row['encode_speed_over_constriction']:.2f}, decode {row['decode_speed_over_constriction']:.2f} of it"
    )
    return row


def main() -> None:
    """Measure, print, write benchmarks/results/codec.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    arguments = parser.parse_args()
    sizes = [size for size in SIZES if size <= arguments.largest]
    results: dict[str, Any] = {"gaussian_sizes": [], "real_sizes": []}
    for name in PROBLEMS:
        updates = real_updates(name)
        if updates is not None:
            results["real_sizes"] += measure_sizes(name, updates)
    for size in sizes:
        results["gaussian_sizes"] += measure_sizes("gaussian", gaussian(size))
    results["speed"] = [
        measure_speed(size, levels, arguments.repeats)
        for size in sizes
        for levels in (1, 5, 10, math.isqrt(size - 1) + 1)
    ]
    results["batch"] = measure_batch(arguments.repeats)
    results["constriction"] = [measure_constriction(1_000_000, s, arguments.repeats) for s in (1, 10, 64, 1000)]
    results["missed"] = missed
    print(f"wrote {write('codec', results).name}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
