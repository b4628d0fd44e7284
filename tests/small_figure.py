"""A figure small enough to run in tests: two panels on a synthetic problem."""

from __future__ import annotations

import numpy as np

from fedpaq.experiments import FIGURES, Curve, CurveSettings, Figure, Panel, PaperSetting

MNIST = FIGURES["mnist"]
SMALL = Figure(
    "small",
    "A small figure",
    "Nowhere",
    "synthetic-logistic",
    100.0,
    (
        Panel("levels", "levels", "fixed", {"s = 1": PaperSetting(1, 5, 10), "none": PaperSetting(None, 5, 10)}),
        Panel("steps", "steps", "fixed", {"τ = 10": PaperSetting(1, 5, 10), "τ = 50": PaperSetting(1, 5, 50)}),
    ),
)


def planted(setting, factor, *, seeds=5, start=2.0, noise=0.01, problem="planted"):
    """A curve whose loss shrinks by ``factor`` a round on every seed, with a little noise."""
    rounds = setting.num_rounds
    jitter = 1 + noise * np.random.default_rng(rounds).uniform(-1, 1, (seeds, rounds + 1))
    loss = start * factor ** np.arange(rounds + 1) * jitter
    loss[:, 0] = start
    steps = np.arange(rounds + 1) * setting.local_steps
    upload = 4000 if setting.quantizer == "none" else 40  # bytes
    return Curve(
        settings=CurveSettings(problem, setting, seeds=tuple(range(seeds))),
        dimension=1000,
        tuning={0.1: [0.3, None]},
        step_size=0.1,
        loss=loss,
        accuracy=np.zeros_like(loss),
        payload_bytes=np.tile(np.arange(rounds + 1) * setting.clients_per_round * upload, (seeds, 1)),
        computation_seconds=np.tile(10.0 * steps, (seeds, 1)) * jitter,
    )


def planted_mnist():
    """A planted curve for every setting of the MNIST figure."""
    return {setting: planted(setting, 0.9, noise=0.02) for setting in MNIST.settings}
