"""Rate and distortion: NMSE = E||Q(x) - x||^2 / ||x||^2 against the bytes of real payloads.

Rotated, LowPrecision with one norm and with buckets, EDEN and DRIVE (see ``peer_quantizers``), top-k as the
biased reference, and the limit 1 / (4^R - 1) of a Gaussian; on a Gaussian and a heavy-tailed vector of
p = 92,027 and on updates of the named problems' models, whose energy is uneven: there a quantizer may pass
below that limit.

    python benchmarks/rate_distortion.py [--draws 8]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import fedpaq
from fedpaq.experiments.palette import LOOKS
from fedpaq.quantizers.rotated.message import RotatedMessage
from fedpaq.quantizers.rotated.quantizer import Rotated, payload_size, with_content
from measurement import write
from peer_quantizers import eden, top_k
from real_updates import real_updates

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "rate-distortion.png"
RATES = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
IDEAL = (1.35, 1.40, 1.48, 1.55, 1.61, 1.60, 1.46, 1.43)  # the best scalar quantizer, in units of the limit
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


def contenders(dimension: int) -> dict[str, list[Estimate]]:
    """Return each line of the picture, point by point."""
    counts = [max(1, int(dimension * rate / 40)) for rate in RATES]
    return {
        "Rotated": [ours(Rotated(bits=rate)) for rate in RATES],
        "LowPrecision, one norm": [ours(fedpaq.LowPrecision(levels)) for levels in (1, 5, 10, 40, 160, 640)],
        "LowPrecision, buckets of 512": [ours(fedpaq.LowPrecision(s, bucket_size=512)) for s in (1, 4, 16, 64)],
        "EDEN (DRIVE at one bit)": [peers(rate) for rate in (0.01, 0.03, 0.1, 0.25, 0.5, 1, 2, 4)],
        "top-k (biased)": [lambda update, draw, k=count: top_k(update, k) for count in counts],
    }


def measure(update: Any, estimate: Estimate, draws: int) -> dict[str, float]:
    """Return mean bytes and NMSE over some draws."""
    exact = update.astype(np.float64)
    found = []
    for draw in range(draws):
        guess, size = estimate(update, draw)
        found.append((size, ((guess - exact) ** 2).sum() / (exact**2).sum()))
    size, error = np.mean(found, axis=0)
    rate = 8 * size / update.size
    return {
        "bytes": float(size),
        "rate": float(rate),
        "nmse": float(error),
        "over_limit": float(error * (4**rate - 1)),
    }


def vectors() -> dict[str, Any]:
    """Return the updates to quantize."""
    rng = np.random.default_rng(0)
    found = {
        "Gaussian": rng.standard_normal(92_027).astype(np.float32),
        "heavy-tailed": rng.standard_t(3, 92_027).astype(np.float32),
    }
    for name in ("mnist-logistic", "fashion-mlp", "cifar10-mlp-92k"):
        updates = real_updates(name, count=1)
        if updates is not None:
            found[name] = updates[0]
    return found


def draw_picture(results: dict[str, Any]) -> None:
    """Draw one panel a vector."""
    figure, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 4), sharey=True)
    for axis, (name, lines) in zip(np.atleast_1d(axes), results.items(), strict=True):
        for look, (label, points) in zip(LOOKS, lines["lines"].items(), strict=False):
            size, error = [p["bytes"] for p in points], [p["nmse"] for p in points]
            axis.loglog(size, error, look.dash, marker=look.marker, color=look.colour, label=label, ms=4)
        size = np.geomspace(lines["dimension"] * 0.005 / 8 + 10, lines["dimension"] * 4.2 / 8, 100)
        axis.loglog(
            size, 1 / (4 ** (8 * size / lines["dimension"]) - 1), "k-", lw=1, label="limit of a Gaussian"
        )
        axis.set(title=f"{name}, p = {lines['dimension']:,}", xlabel="bytes an upload", ylim=(1e-3, 1e3))
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("error, E||Q(x) - x||² / ||x||²")
    np.atleast_1d(axes)[0].legend(fontsize=7)
    figure.tight_layout()
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=8)
    draws = parser.parse_args().draws
    results: dict[str, Any] = {}
    for name, update in vectors().items():
        lines = {
            label: [measure(update, estimate, draws) for estimate in points]
            for label, points in contenders(update.size).items()
        }
        results[name] = {"dimension": update.size, "lines": lines}
        for point, ideal in zip(lines["Rotated"], IDEAL, strict=True):
            print(f"{name}: {point['bytes']:.0f} bytes, {point['over_limit']:.3f} of the limit (ideal {ideal})")
    write(
        "rate_distortion",
        {"draws": draws, "ideal_over_limit": dict(zip(map(str, RATES), IDEAL, strict=True)), **results},
    )
    draw_picture(results)


if __name__ == "__main__":
    main()
