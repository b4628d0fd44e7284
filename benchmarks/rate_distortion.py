"""Rate and distortion: NMSE = E||Q(x) - x||^2 / ||x||^2 against the bytes of real payloads.

Rotated, LowPrecision with one norm and with buckets, EDEN and DRIVE, QUIC-FL (see ``peer_quantizers``), top-k with
error feedback as the biased reference, and the limit 1 / (4^R - 1) of a Gaussian; on a Gaussian and a heavy-tailed
vector of p = 92,027 and on updates of the named problems' models and of a ResNet-18, whose energy is uneven: there
a quantizer may pass below that limit. Then Gaussian vectors of three sizes, real updates at LowPrecision's own
bytes, and the processor time of quantizing and encoding a million coordinates, beside EDEN's in the same run.

    python benchmarks/rate_distortion.py [--draws 8] [--vectors-only] [--speeds-only] [--picture-only]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import torch

import fedpaq
import peer_codecs
from fedpaq.quantizers.rotated.message import RotatedMessage
from fedpaq.quantizers.rotated.quantizer import Rotated, payload_size, with_content
from measurement import RESULTS, write
from peer_quantizers import eden, quic_fl, top_k_with_feedback
from rate_distortion_picture import draw_picture
from real_updates import PROBLEMS, RESNET, real_updates, resnet_updates

RATES = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
IDEAL = (1.35, 1.40, 1.48, 1.55, 1.61, 1.60, 1.46, 1.43)  # the best scalar quantizer, in units of the limit
SIZES = {92_027: 16, 1_000_003: 4, 11_000_000: 1}  # dimensions and draws
REPEATS = 7
Estimate = Callable[[Any, int], tuple[Any, float]]  # (update, draw) -> (estimate, bytes)


def ours(quantizer: Any) -> Estimate:
    """Return what a quantizer of this package makes, with the bytes of its payload."""

    def estimate(update: Any, draw: int) -> tuple[Any, float]:
        message = quantizer.quantize(update, key=fedpaq.Key(seed=0, client=draw))
        known = with_content(message) if isinstance(message, RotatedMessage) else message
        return message.dequantize(), payload_size(known)

    return estimate


def peers(bits: float) -> Estimate:
    """Return EDEN; at one bit it is DRIVE."""
    return lambda update, draw: eden(update, bits, np.random.default_rng(draw))


def shared(bits: int) -> Estimate:
    """Return QUIC-FL."""
    return lambda update, draw: quic_fl(update, bits, np.random.default_rng(draw))


CONTENDERS = {
    "Rotated": [ours(Rotated(bits=rate)) for rate in RATES],
    "LowPrecision, one norm": [ours(fedpaq.LowPrecision(levels)) for levels in (1, 5, 10, 40, 160, 640)],
    "LowPrecision, buckets of 512": [ours(fedpaq.LowPrecision(s, bucket_size=512)) for s in (1, 4, 16, 64)],
    "EDEN (DRIVE at one bit)": [peers(rate) for rate in RATES],
    "QUIC-FL": [shared(bits) for bits in (1, 2, 3, 4)],
}
LARGE = 2**20  # dimensions from here on have one draw, since errors hardly vary, and every other rate


def point(dimension: int, size: float, error: float) -> dict[str, float]:
    """Return one point of a line."""
    rate = 8 * size / dimension
    return {"bytes": size, "rate": rate, "nmse": error, "over_limit": error * (4**rate - 1)}


def measure(update: Any, estimate: Estimate, draws: int) -> dict[str, float]:
    """Return mean bytes and NMSE over some draws."""
    energy = float((update.astype(np.float64) ** 2).sum())
    found = []
    for draw in range(draws):
        guess, size = estimate(update, draw)
        found.append((size, float(((guess - update).astype(np.float64) ** 2).sum()) / energy))
    size, error = np.mean(found, axis=0)
    return point(update.size, float(size), float(error))


def lines_of(update: Any, draws: int) -> dict[str, Any]:
    """Return each line of a panel, point by point."""
    step, draws = (2, 1) if update.size >= LARGE else (1, draws)
    lines = {
        label: [measure(update, estimate, draws) for estimate in points[::step]] for label, points in CONTENDERS.items()
    }
    feedback = []
    for rate in RATES[::step]:
        error, size = top_k_with_feedback(update, max(1, int(update.size * rate / 40)))
        feedback.append(point(update.size, size, error))
    return lines | {"top-k with error feedback (biased)": feedback}


def vectors(only: str | None = None) -> dict[str, dict[int, Any]]:
    """Return the updates to quantize, or one kind of them, each by the round it is from (0: none)."""
    if only == RESNET:  # the one that takes minutes to make
        return resnet_vectors()
    rng = np.random.default_rng(0)
    found = {
        "Gaussian": {0: rng.standard_normal(92_027).astype(np.float32)},
        "heavy-tailed": {0: rng.standard_t(3, 92_027).astype(np.float32)},
    }
    for name in PROBLEMS:
        updates = real_updates(name, count=1)
        if updates is not None:
            found[name] = {10: updates[0]}
    return {only: found[only]} if only else found | resnet_vectors()


def resnet_vectors() -> dict[str, dict[int, Any]]:
    """Return the updates of ResNet-18, if its data are here."""
    found = resnet_updates()
    return {RESNET: found} if found else {}


def against_low_precision(update: Any, draws: int) -> list[dict[str, float]]:
    """Return the error of Rotated with no more bytes than LowPrecision takes."""
    rows = []
    for levels in (1, 5, 10):
        plain = measure(update, ours(fedpaq.LowPrecision(levels)), draws)
        most = max(round(plain["bytes"]), 24)
        rotated = measure(update, ours(Rotated(payload_bytes=most)), draws)
        row = {"levels": levels, "low_precision_bytes": plain["bytes"], "low_precision_nmse": plain["nmse"]}
        row |= {"rotated_bytes": rotated["bytes"], "rotated_nmse": rotated["nmse"]}
        rows.append(row | {"ratio": rotated["nmse"] / plain["nmse"]})
    return rows


def speeds(dimension: int = 1_000_000) -> dict[str, Any]:
    """Return million coordinates a second of processor time, one thread, medians of calls in turn."""
    torch.set_num_threads(1)
    update = np.random.default_rng(0).standard_normal(dimension).astype(np.float32)
    work: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
    key = fedpaq.Key(seed=0)
    for rate in (0.03, 0.1, 0.5, 1.0, 2.0, 4.0):
        quantizer = Rotated(bits=rate)
        work[f"Rotated, {rate:g} bits"] = (
            lambda q=quantizer: fedpaq.encode(q.quantize(update, key=key)),
            lambda payload: fedpaq.decode(payload, dimension=dimension, key=key).dequantize(),
        )
    for bits in (1, 4):
        codec = peer_codecs.eden(bits)
        work[f"EDEN, {bits} bits"] = (lambda c=codec: c.encode(update, 0), codec.decode)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(REPEATS + 1):  # the first compiles
        for name, (encode, decode) in work.items():
            start = time.process_time()
            sent = encode()
            middle = time.process_time()
            decode(sent)
            times[name].append((middle - start, time.process_time() - middle))
    rows = {}
    for name, found in times.items():
        forth, back = (statistics.median(part) for part in zip(*found[1:], strict=True))
        rows[name] = {"encode_million_a_second": dimension / forth / 1e6}
        rows[name]["decode_million_a_second"] = dimension / back / 1e6
    beside = {"0.03": 1, "0.1": 1, "0.5": 1, "1": 1, "4": 4}  # below one bit EDEN rotates all and sends a part
    for rate, bits in beside.items():
        mine, peer = rows[f"Rotated, {rate} bits"], rows[f"EDEN, {bits} bits"]
        for way in ("encode", "decode"):
            mine[f"{way}_over_eden"] = mine[f"{way}_million_a_second"] / peer[f"{way}_million_a_second"]
    for name, row in rows.items():
        print(name, {key: round(value, 1) for key, value in row.items()}, flush=True)
    return {"dimension": dimension, "repeats": REPEATS, "rows": rows}


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--picture-only", action="store_true", help="draw what was measured before")
    parser.add_argument("--vectors-only", action="store_true", help="keep the speeds and sizes measured before")
    parser.add_argument("--speeds-only", action="store_true", help="keep all but the speeds")
    parser.add_argument("--only", help="keep all that was measured before but this vector")
    arguments = parser.parse_args()
    if arguments.picture_only:
        draw_picture(json.loads((RESULTS / "rate_distortion.json").read_text()))
        return
    if arguments.speeds_only:
        write("rate_distortion", json.loads((RESULTS / "rate_distortion.json").read_text()) | {"speed": speeds()})
        return
    results: dict[str, Any] = {"draws": arguments.draws}
    if arguments.vectors_only or arguments.only:
        results |= json.loads((RESULTS / "rate_distortion.json").read_text())
    else:
        measure_speeds_and_sizes(results)
    if not arguments.only:
        results["vectors"] = {}
    for name, by_round in vectors(arguments.only).items():
        update = next(iter(by_round.values()))  # the first round's is drawn
        panel = {"dimension": update.size, "lines": lines_of(update, arguments.draws)}
        if name in (*PROBLEMS, RESNET):
            draws = 1 if update.size >= LARGE else 2 * arguments.draws
            panel["against_low_precision"] = []
            for number, later in by_round.items():
                rows = [{"round": number, **row} for row in against_low_precision(later, draws)]
                print(name, number, [round(row["ratio"], 3) for row in rows], flush=True)
                panel["against_low_precision"] += rows
        results["vectors"][name] = panel
    write("rate_distortion", results)
    draw_picture(results)


def measure_speeds_and_sizes(results: dict[str, Any]) -> None:
    """Add what does not depend on the vectors."""
    results["ideal_over_limit"] = dict(zip(map(str, RATES), IDEAL, strict=True))
    results["speed"] = speeds()
    results["sizes"] = {}
    for dimension, draws in SIZES.items():
        update = np.random.default_rng(1).standard_normal(dimension, np.float32)
        found = [measure(update, ours(Rotated(bits=rate)), draws) for rate in RATES]
        results["sizes"][str(dimension)] = {"draws": draws, "points": found}
        print(f"p = {dimension:,}:", [round(one["over_limit"], 3) for one in found], flush=True)


if __name__ == "__main__":
    main()
