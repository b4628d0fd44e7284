"""Schedule: how many rounds to run so that most runs end at the target.

The time of a choice is that of the *first* round at the target. A run that is planned ahead does not stop there, and
its loss goes up as well as down. So the pick runs once more, on many fresh seeds and past the target, until
the wanted share of the runs is at it after the same round: a level *held*.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpaq.planner.pilot import Pilot
from fedpaq.planner.task import Task
from fedpaq.planner.validation import Choice

FIRST_SEED, MOST_RUNS, FEWEST_RUNS = 2000, 200, 40  # no other stage uses these seeds
MOST_NUMBERS = 10**8  # params of all runs together, beyond which there are fewer runs
SCREEN = 0.3  # where the share of the fewest runs is below the wanted one by this much, the others are not evaluated
NEAR = 0.05  # a round less is scheduled where that comes nearer to the wanted share and misses it by this at most
PATIENCE = 4.0  # times the rounds of the slowest first hit


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """So many rounds; ``share`` of ``runs`` fresh runs were at the target after them, ``before`` one round earlier.

    ``is_held`` is False where the runs never held the level: then ``share`` is of those that hit it at some time, and
    ``runs`` are the fewest.
    """

    rounds: int
    share: float
    before: float
    runs: int
    seconds: float
    upload_bytes: float
    download_bytes: float
    is_held: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(vars(self))


def make_schedule(task: Task, choice: Choice, confidence: float) -> tuple[Schedule, int]:
    """Return the rounds after which a share ``confidence`` of runs is at the target, and the gradient steps spent."""
    runs = min(MOST_RUNS, max(FEWEST_RUNS, MOST_NUMBERS // task.problem.dimension))
    seeds = range(FIRST_SEED, FIRST_SEED + runs)
    pilot = Pilot(task, choice.setting, [choice.step_size], seeds, goes_on=True)
    # On all samples: some of them are easier than all, and by how much changes as training goes on.
    whole = replace(task, watched_samples=None)
    most = min(PATIENCE * max(choice.first_hits), task.max_steps / choice.setting.local_steps)
    hit = np.zeros(FEWEST_RUNS, bool)
    hit_shares: list[float] = []  # of the fewest runs, those at the target in any round so far
    found: list[Schedule] = []
    while pilot.round < most and pilot.alive:
        pilot.play()
        at_target = whole.losses(pilot.params[0, :FEWEST_RUNS]) <= task.target_loss
        hit |= at_target
        hit_shares.append(float(hit.mean()))
        if at_target.mean() >= confidence - SCREEN:
            others = whole.losses(pilot.params[0, FEWEST_RUNS:]) <= task.target_loss
            at_target = np.concatenate((at_target, others))
        before = found[-1].share if found else 0.0
        share = float(at_target.mean())
        spent: dict[str, Any] = pilot.spent()
        found.append(Schedule(rounds=pilot.round, share=share, before=before, runs=runs, **spent))
        if share >= confidence and len(at_target) == runs:
            return _nearest(found, confidence), pilot.gradient_steps
    at = next((row for row, share in enumerate(hit_shares) if share >= confidence), len(found) - 1)
    before = hit_shares[at - 1] if at else 0.0
    never_held = replace(found[at], share=hit_shares[at], before=before, runs=FEWEST_RUNS, is_held=False)
    return never_held, pilot.gradient_steps


def _nearest(found: list[Schedule], confidence: float) -> Schedule:
    """Return the last schedule, or the one before if its share is nearer to the wanted one."""
    *earlier, last = found
    if earlier and confidence - NEAR <= earlier[-1].share and confidence - earlier[-1].share < last.share - confidence:
        return earlier[-1]
    return last
