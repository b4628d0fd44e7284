"""Race: all candidates run in the same modelled time; the first to reach the target wins.

The next round played is the one that would end first, so no candidate is simulated past the
winner's time (and a margin), and one whose first round takes longer than that is never simulated.
At growing times the candidates are ranked by their loss at that time, and the worse part drops
out: successive halving, with modelled time as the budget.
"""

import math
from collections.abc import Callable, Sequence

from fedpaq.planner.pilot import Candidate, Pilot

KEEP = 0.5  # share of the candidates that stays at each ranking
GROWTH = 1.5  # of the time between rankings
FEWEST = 12  # candidates kept by a ranking, at least
MARGIN = 1.5  # the race goes on to this many times the winner's time,
MOST = 2.5  # or to this many while fewer than ENOUGH settings have finished: a winner may have been lucky
ENOUGH = 8


def race(
    pilots: Sequence[Pilot],
    *,
    max_steps: int,
    max_seconds: float = math.inf,
    progress: Callable[[float], None] | None = None,
) -> list[Candidate]:
    """Return the candidates whose seeds all finished, fastest first.

    A pilot is given up after ``max_steps`` local steps, the race after ``max_seconds``.
    ``progress(seconds)`` is called with the modelled time.
    """
    finished: list[tuple[float, Candidate]] = []  # by the slowest seed, where luck counts least
    ranking_at = 2 * min(pilot.next_seconds() for pilot in pilots)
    while running := [pilot for pilot in pilots if pilot.alive and _steps(pilot) < max_steps]:
        pilot = min(running, key=lambda pilot: pilot.next_seconds())
        now = pilot.next_seconds()
        if now > min(max_seconds, _end(finished)):
            break
        if now > ranking_at:
            rank(pilots, ranking_at)
            ranking_at *= GROWTH
            continue
        pilot.play()
        for candidate in pilot.alive:
            if candidate.finish is not None:
                candidate.alive = False
                finished.append((candidate.finish.slowest, candidate))
        if progress is not None:
            progress(now)
    return [candidate for _, candidate in sorted(finished, key=lambda pair: pair[0])]


def rank(pilots: Sequence[Pilot], seconds: float) -> None:
    """Drop the candidates with the worse loss at ``seconds``; those before their first round stay."""
    candidates = sorted(
        (candidate for pilot in pilots for candidate in pilot.alive), key=lambda candidate: candidate.loss_at(seconds)
    )
    kept = max(FEWEST, math.ceil(KEEP * len(candidates)))
    for candidate in candidates[kept:]:
        if len(candidate.seconds) > 1 and candidate.seconds[1] <= seconds:
            candidate.alive = False


def _end(finished: Sequence[tuple[float, Candidate]]) -> float:
    """Return the time at which the race ends."""
    if not finished:
        return math.inf
    enough = len({candidate.setting for _, candidate in finished}) >= ENOUGH
    return (MARGIN if enough else MOST) * min(seconds for seconds, _ in finished)


def _steps(pilot: Pilot) -> int:
    return (len(pilot.alive[0].losses) - 1) * pilot.setting.local_steps
