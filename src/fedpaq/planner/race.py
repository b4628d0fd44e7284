"""Race: every candidate runs in the same modelled time; the first to reach the target wins.

The next round played is the one that would be over first, so no candidate is simulated past the
winner's time (and a margin), and one whose first round takes longer than that is never simulated.
At growing times the candidates are ranked by their loss at that time, and the worse part drops
out: successive halving, with modelled time as the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from fedpaq.planner.pilot import Arm
from fedpaq.planner.search_space import Shape

KEEP = 0.5  # share of the candidates that stays at each ranking
GROWTH = 1.5  # of the time between rankings
FEWEST = 12  # candidates kept by a ranking, at least
MARGIN = 1.5  # the race goes on to this many times the winner's time,
MOST = 2.5  # or to this many while fewer than ENOUGH shapes have finished: a winner may have been lucky
ENOUGH = 8


class Racer(Protocol):
    """What a race needs of a pilot."""

    shape: Shape
    arms: list[Arm]

    @property
    def alive(self) -> list[Arm]:
        """The arms still running."""

    def next_seconds(self) -> float:
        """Return when the next round would be over."""

    def play(self) -> None:
        """Play one round of every arm that is alive."""


def race(
    pilots: Sequence[Racer],
    *,
    max_steps: int,
    max_seconds: float = math.inf,
    progress: Callable[[float], None] | None = None,
) -> list[Arm]:
    """Return the arms whose seeds all finished, fastest first.

    A pilot is given up after ``max_steps`` local steps, the race after ``max_seconds``; ``progress`` is
    told the modelled seconds.
    """
    finished: list[tuple[float, Arm]] = []  # by the slowest seed, which hides luck least
    ranking_at = 2 * min(pilot.next_seconds() for pilot in pilots)
    while running := [pilot for pilot in pilots if pilot.alive and _steps(pilot) < max_steps]:
        pilot = min(running, key=lambda racer: racer.next_seconds())
        now = pilot.next_seconds()
        if now > min(max_seconds, _end(finished)):
            break
        if now > ranking_at:
            rank(pilots, ranking_at)
            ranking_at *= GROWTH
            continue
        pilot.play()
        for arm in pilot.alive:
            if arm.finish is not None:
                arm.alive = False
                finished.append((arm.finish.slowest, arm))
        if progress is not None:
            progress(now)
    return [arm for _, arm in sorted(finished, key=lambda pair: pair[0])]


def rank(pilots: Sequence[Racer], seconds: float) -> None:
    """Drop the worse part of the arms by their loss at ``seconds``; those before their first round stay."""
    arms = sorted((arm for pilot in pilots for arm in pilot.alive), key=lambda arm: arm.loss_at(seconds))
    kept = max(FEWEST, math.ceil(KEEP * len(arms)))
    for arm in arms[kept:]:
        if len(arm.seconds) > 1 and arm.seconds[1] <= seconds:
            arm.alive = False


def _end(finished: Sequence[tuple[float, Arm]]) -> float:
    """Return until when the race goes on."""
    if not finished:
        return math.inf
    enough = len({arm.shape for _, arm in finished}) >= ENOUGH
    return (MARGIN if enough else MOST) * min(seconds for seconds, _ in finished)


def _steps(pilot: Racer) -> int:
    return (len(pilot.alive[0].losses) - 1) * pilot.shape.local_steps
