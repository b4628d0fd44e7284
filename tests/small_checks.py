"""A check of a theorem with few points, made by hand."""

from __future__ import annotations

import numpy as np

from fedpaq.theory.verification import BoundCurve, Check, Slope


def make_check(**changes):
    values = {
        "theorem": 1,
        "problem": "p",
        "setting": {"local_steps": 2, "batch_size": None},
        "steps": np.array([1, 3, 5]),
        "mean": np.array([1.0, 0.5, 0.25]),
        "standard_error": np.array([0.1, 0.05, 0.0]),
        "bounds": [
            BoundCurve(variant="as_stated", first_round=1, values=np.array([np.nan, 2.0, 1.0]), worst_ratio=0.25),
            BoundCurve(variant="corrected", first_round=None, values=np.array([4.0, 2.0, 1.0]), worst_ratio=1.0),
        ],
        "slope": Slope(-1.0, -1.25, -0.75),
    }
    return Check(**{**values, **changes})
