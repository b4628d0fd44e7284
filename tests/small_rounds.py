"""One round of a few clients, without local work: what the tests of the server send."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import fedpaq
from fedpaq.clients.work import LocalWork
from fedpaq.server.aggregation import ClippedMean, Mean, TrimmedMean

QUANTIZERS = [fedpaq.LowPrecision(2), fedpaq.LowPrecision(40, 7), fedpaq.Identity()]
SERVERS = [Mean(), ClippedMean(), TrimmedMean(trim=0.3)]


def work_of(runs, per_run, round=3):
    """Work whose samples no uplink looks at: only runs, seeds and clients matter."""
    jobs = runs * per_run
    return LocalWork(
        params=np.zeros((runs, 1), np.float32),
        run_of=np.repeat(np.arange(runs), per_run),
        clients=np.tile(np.arange(per_run) * 3 + 1, runs),
        seeds=np.repeat(np.arange(runs, dtype=np.uint64) + 11, per_run),
        step_sizes=np.ones(runs, np.float32),
        samples=np.zeros((jobs, 1, 1), np.int64),
        round=round,
    )


def updates_of(work, dimension, seed=0):
    return np.random.default_rng(seed).standard_normal((len(work), dimension)).astype(np.float32)


def send_in_parts(uplink, updates, work, runs, cuts=()):
    """Send the jobs of this process, cut at ``cuts``; return (mean, bytes)."""
    mine = uplink.share(len(work))
    updates, work = updates[mine], work.part(mine)
    inbox = uplink.open(runs, updates.shape[1])
    edges = [0, *sorted(min(cut, len(work)) for cut in cuts), len(work)]
    for start, stop in pairwise(edges):
        if stop > start:
            inbox.add(updates[start:stop], work.part(slice(start, stop)))
    return inbox.finish()
