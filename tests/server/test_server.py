"""Uplink: which one carries what, and what each makes of the same round."""

from __future__ import annotations

import numpy as np
import pytest

import fedpaq
from fedpaq.clients import local_work
from fedpaq.hardware.ranks import ALONE
from fedpaq.server.aggregation import ClippedMean, Mean
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from fedpaq.server.uplink import choose_uplink
from small_problems import make_problem

RUNS = 2


def round_of(uplink, problem, config, spoil=None):
    """One round of two runs through an uplink: (mean, payload bytes)."""
    participants = np.tile(np.arange(5), (RUNS, 1))
    params = np.tile(problem.initial_params, (RUNS, 1))
    inbox = uplink.open(RUNS, problem.dimension)
    (work,) = local_work(problem, [config] * RUNS, 0, params, participants, share=uplink.share)
    updates = np.random.default_rng(0).standard_normal((len(work), problem.dimension)).astype(np.float32)
    if spoil is not None:
        updates[spoil] = np.nan
    inbox.add(updates, work)
    return inbox.finish()


def test_one_process_encodes(logistic):
    assert isinstance(choose_uplink(fedpaq.LowPrecision(levels=1), Mean(), logistic), Encoded)


@pytest.mark.parametrize("quantizer", [fedpaq.LowPrecision(levels=2), fedpaq.Identity()], ids=lambda q: q.name)
@pytest.mark.parametrize("aggregation", [Mean(), ClippedMean()], ids=lambda a: a.name)
def test_exchanged_payloads_give_what_messages_give(quantizer, aggregation, config):
    problem = make_problem("mlp")
    mean, sizes = round_of(Encoded(quantizer, aggregation), problem, config)
    gathered, gathered_sizes = round_of(Gathered(quantizer, aggregation, ALONE), problem, config)
    assert np.array_equal(mean, gathered) and np.array_equal(sizes, gathered_sizes)


@pytest.mark.parametrize("quantizer", [fedpaq.LowPrecision(levels=1), fedpaq.Identity()], ids=lambda q: q.name)
@pytest.mark.parametrize("kind", ["encoded", "gathered"])
def test_a_non_finite_update_spoils_its_own_run_only(kind, quantizer, config):
    problem = make_problem("mlp")
    uplink = {"encoded": Encoded(quantizer, Mean()), "gathered": Gathered(quantizer, Mean(), ALONE)}[kind]
    mean, _ = round_of(uplink, problem, config, spoil=7)  # a client of the second run
    assert np.isfinite(mean[0]).all() and not np.isfinite(mean[1]).any()
