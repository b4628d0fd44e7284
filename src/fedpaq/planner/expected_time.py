"""Expected seconds of a round: how long clients compute does not depend on what they learn.

So its mean is used wherever means are compared, and a race needs no luck of fast clients. The
slowest of r shifted exponentials with mean 1 / scale takes shift + H_r / scale on average, with
H_r = 1 + 1/2 + ... + 1/r; tau steps on B samples take tau B times that.
"""

from __future__ import annotations

from fedpaq.cost_model import CostModel
from fedpaq.planner.search_space import RoundSetting
from fedpaq.planner.task import Task


def expected_computation(cost_model: CostModel, setting: RoundSetting, batch_size: float) -> float:
    """Return the mean seconds until the slowest client of a round is done.

    >>> expected_computation(CostModel(ratio=1.0, shift=0.5, scale=2.0), RoundSetting(3, 2, 1), batch_size=10)
    37.5
    """
    harmonic = sum(1 / i for i in range(1, setting.clients_per_round + 1))
    return setting.local_steps * batch_size * (cost_model.shift + harmonic / cost_model.scale)


def expected_seconds(task: Task, setting: RoundSetting, rounds: float, upload_bytes: float) -> float:
    """Return the mean seconds of rounds that upload so many bytes in all."""
    batch = task.batch_size or float(task.problem.partition.sizes().mean())
    uploading = task.cost_model.communication_seconds(8 * upload_bytes, task.problem.dimension)
    return rounds * expected_computation(task.cost_model, setting, batch) + uploading
