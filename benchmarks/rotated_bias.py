"""Bias of Rotated: the mean of 4,000 draws against the update, along it and in norm, in standard errors.

    python benchmarks/rotated_bias.py [--draws 4000]

With errors e_1 .. e_N of covariance C, ||mean e||^2 less its mean under no bias, tr(C) / N, has the standard
error sqrt(2 tr(C^2)) / N. tr(C^2) is the mean of <e_i, e_j>^2 over pairs of draws, whatever the correlations.
"Found" is the square root of the difference, over ||x||: an estimate of the bias, good to "resolution". Each
vector is sent as Rotated sends it, and by the rotation alone where Rotated would take LowPrecision. Exits 1 if
something is more than 5 standard errors off.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import fedpaq
from fedpaq.quantizers.rotated import quantizer as rotated_module
from fedpaq.quantizers.rotated.message import RotatedMessage
from measurement import write
from real_updates import PROBLEMS, real_updates

DIMENSION = 6000
ALLOWED = 5.0
BATCH = 100


def kinds(p: int) -> dict[str, Any]:
    """Return updates that rotations and roundings may find hard."""
    rng = np.random.default_rng(p)
    sparse = np.where(rng.random(p) < 0.02, rng.standard_normal(p), 0.0)
    return {
        "gaussian": rng.standard_normal(p),
        "heavy-tailed": rng.standard_t(2, p) ** 3,
        "one-hot": np.eye(1, p, p // 3)[0],
        "two-valued": np.where(rng.random(p) < 0.5, -1.0, 1.0),
        "constant": np.ones(p),
        "sparse": sparse,
        "one large coordinate": rng.standard_normal(p) + 50 * math.sqrt(p) * np.eye(1, p, 7)[0],
    }


def estimates(quantizer: Any, update: Any, draws: int) -> Iterator[tuple[Any, bool]]:
    """Yield batches of errors (BATCH, p), and whether they come from rotations."""
    for start in range(0, draws, BATCH):
        keys = [fedpaq.Key(seed=11, client=client) for client in range(start, start + BATCH)]
        messages = quantizer.quantize_batch(np.broadcast_to(update, (BATCH, update.size)), keys)
        errors = np.stack([message.dequantize() for message in messages]) - update.astype(np.float64)
        yield errors, all(isinstance(message, RotatedMessage) for message in messages)


def measure(quantizer: Any, update: Any, draws: int) -> dict[str, Any]:
    """Return the deviation of the mean from the update."""
    exact = update.astype(np.float64)
    energy = float(exact @ exact)
    total, squares, products = np.zeros(update.size), 0.0, []
    along: list[float] = []
    rotated = True
    for errors, by_rotation in estimates(quantizer, update, draws):
        total += errors.sum(axis=0)
        squares += float((errors**2).sum())
        products += list((errors[::2] * errors[1::2]).sum(axis=1))
        along += list(errors @ exact / energy)
        rotated &= by_rotation
    mean = total / draws
    variance = (squares - draws * float(mean @ mean)) / (draws - 1)
    excess = float(mean @ mean) - variance / draws
    spread = math.sqrt(2 * float(np.mean(np.square(products)))) / draws
    along_error = float(np.std(along)) / math.sqrt(draws)
    return {
        "rotated": rotated,
        "nmse": squares / draws / energy,
        "along": float(np.mean(along)),
        # float32 estimates are rounded: a millionth of the update is not a bias
        "along_in_standard_errors": abs(float(np.mean(along))) / max(along_error, 2e-7),
        "norm_in_standard_errors": excess / max(spread, 1e-13 * energy),
        "found": math.sqrt(max(excess, 0.0) / energy),
        "resolution": math.sqrt(ALLOWED * spread / energy),
    }


def cases(draws: int) -> Iterator[tuple[str, Any, Any, int]]:
    """Yield name, update, quantizer and draws."""
    for name, update in kinds(DIMENSION).items():
        for rate in (0.05, 0.5, 2.0):
            yield name, update.astype(np.float32), fedpaq.Rotated(bits=rate), draws
        yield name, update.astype(np.float32), fedpaq.Rotated(payload_bytes=400), draws
    for name in PROBLEMS:
        found = real_updates(name, count=1)
        if found is None:
            continue
        small = found[0].size < 10_000
        for rate in (0.5, 1.0, 3.0) if small else (0.03, 2.0):
            yield name, found[0], fedpaq.Rotated(bits=rate), draws
        if small:
            yield name, found[0], fedpaq.Rotated(payload_bytes=150), draws


def main() -> None:
    """Measure, print, write benchmarks/results/rotated_bias.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    rows, choose = [], rotated_module.better_levels
    for name, update, quantizer, count in cases(draws):
        for alone in (False, True):
            rotated_module.better_levels = (lambda *arguments: None) if alone else choose
            row = {"vector": name, "dimension": update.size, "quantizer": quantizer.name, "draws": count}
            row |= measure(quantizer, update, count) | {"rotation_alone": alone}
            rows.append(row)
            print(
                f"{name:22} p={update.size:7,} {quantizer.name:20} {'alone' if alone else '':6}"
                f"{'rotated' if row['rotated'] else 'levels':8} nmse {row['nmse']:9.4f}  errors: along "
                f"{row['along_in_standard_errors']:5.2f} norm {row['norm_in_standard_errors']:6.2f}  "
                f"found {row['found']:.1e} (resolution {row['resolution']:.1e})",
                flush=True,
            )
            if row["rotated"] or update.size > 10 * DIMENSION:
                break  # the rotation alone would be the same again, or take long
    worst = max(max(row["along_in_standard_errors"], row["norm_in_standard_errors"]) for row in rows)
    write("rotated_bias", {"draws": draws, "allowed": ALLOWED, "worst": worst, "rows": rows})
    print(f"worst: {worst:.2f} standard errors")
    raise SystemExit(0 if worst < ALLOWED else 1)


if __name__ == "__main__":
    main()
