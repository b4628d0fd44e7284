"""Expected seconds of a round, before any is played.

The slowest of r shifted exponentials with mean 1 / scale takes shift + H_r / scale on average, with
H_r = 1 + 1/2 + ... + 1/r; tau steps on B samples take tau B times that.
"""

from __future__ import annotations

from fedpaq.cost_model import CostModel
from fedpaq.planner.search_space import Shape


def expected_computation(cost_model: CostModel, shape: Shape, batch_size: float) -> float:
    """Return the mean seconds until the slowest client is done.

    >>> expected_computation(CostModel(ratio=1.0, shift=0.5, scale=2.0), Shape(3, 2, 1), batch_size=10)
    37.5
    """
    harmonic = sum(1 / i for i in range(1, shape.clients_per_round + 1))
    return shape.local_steps * batch_size * (cost_model.shift + harmonic / cost_model.scale)
