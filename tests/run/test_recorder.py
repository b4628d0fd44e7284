"""RunRecorder: what a round costs, when it is evaluated, and which runs have diverged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpaq
from fedpaq import codec
from fedpaq.downlink import Dense
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.hardware.ranks import Ranks
from fedpaq.problems import Partition, synthetic_quadratic
from fedpaq.quantizers import Identity, LowPrecision
from fedpaq.run.recorder import RunRecorder
from fedpaq.run.settings import RunSettings
from fedpaq.run.state import RunState
from fedpaq.server.aggregation import Mean

QUICK = settings(max_examples=40, deadline=None)
PROBLEM = synthetic_quadratic(num_clients=4, dimension=3, samples_per_client=5)
COST = fedpaq.CostModel(bandwidth=1000.0, shift=0.25, scale=4.0)


def configs_of(runs=1, rounds=3, **changes):
    values = {"clients_per_round": 2, "local_steps": 2, "total_steps": 2 * rounds, "step_size": 0.1}
    return [fedpaq.FedPAQConfig(**{**values, "seed": seed, **changes}) for seed in range(runs)]


class Recorded:
    """A recorder with the settings and the state it works on."""

    def __init__(self, configs, *, problem=PROBLEM, quantizer=None, cost=COST, every=1, callback=None, ranks=None):
        self.settings = RunSettings(
            problem=problem,
            configs=configs,
            quantizer=quantizer or Identity(),
            aggregation=Mean(),
            downlink=Dense(),
            cost_model=cost,
            executor="dense",
            payload_size_source="encoded",
            evaluate_every=every,
        )
        zeros = np.zeros(PROBLEM.dimension, np.float32)
        self.state = RunState.begin(Dense().open(range(len(configs)), PROBLEM.num_clients, zeros))
        self.recorder = RunRecorder(self.settings, callback, ranks or Ranks())
        self.recorder.start(self.state)

    def play(self, value, sent=(10, 20, 30)):
        """Play a round of all running runs, after which their params are ``value`` (a number or rows)."""
        runs = self.state.running()
        params = np.broadcast_to(np.float32(value), (len(runs), PROBLEM.dimension))
        self.state.advance(runs, params)
        people, up = np.tile([0, 3], (len(runs), 1)), np.array(sent[: len(runs)])
        self.recorder.round_done(self.state, runs, people, up, np.stack([40 * up, 60 * up], axis=1))

    def histories(self):
        return self.state.histories(self.settings)


def test_a_record_by_hand():
    run = Recorded(configs_of(batch_size=5))
    run.play(0.5, sent=(40,))
    run.play(0.25, sent=(2,))
    (history,) = run.histories()
    first, second, third = history.records
    assert (first.round, first.steps, first.payload_bytes, first.upload_bits, first.seconds) == (0, 0, 0, 0, 0.0)
    assert (second.steps, third.steps, second.payload_bytes, third.payload_bytes) == (2, 4, 40, 42)
    assert (second.upload_bits, third.upload_bits) == (320, 336)
    computing = [COST.computation_seconds(0, k, np.array([0, 3]), np.array([10, 10])) for k in (0, 1)]
    assert second.computation_seconds == computing[0]
    assert third.computation_seconds == pytest.approx(sum(computing), rel=1e-15)
    assert third.seconds - third.computation_seconds == pytest.approx(336 / 1000.0)
    assert third.loss == PROBLEM.evaluate(np.full(PROBLEM.dimension, 0.25, np.float32)).loss


def test_full_batches_are_charged_by_what_each_client_holds():
    even = synthetic_quadratic(num_clients=1, dimension=3, samples_per_client=7)
    uneven = fedpaq.Problem(
        model=even.model, loss=even.loss, inputs=even.inputs, targets=even.targets,
        partition=Partition.from_lists([[0], [1, 2], [3], [4, 5, 6]]),
    )  # fmt: skip
    run = Recorded(configs_of(batch_size=None), problem=uneven)
    run.play(0.5)
    (history,) = run.histories()
    expected = COST.computation_seconds(0, 0, np.array([0, 3]), np.array([2 * 1, 2 * 3]))
    assert history.final.computation_seconds == expected


@pytest.mark.parametrize("accounting", ["fixed-width", "elias"])
@pytest.mark.parametrize("quantizer", [Identity(), LowPrecision(3)])
def test_other_accountings_charge_by_formula_and_keep_the_real_bytes(accounting, quantizer):
    cost = fedpaq.CostModel(bandwidth=1000.0, accounting=accounting)
    run = Recorded(configs_of(), quantizer=quantizer, cost=cost)
    run.play(0.5, sent=(17,))
    (history,) = run.histories()
    each = codec.message_bits(3, getattr(quantizer, "levels", None), accounting)
    assert history.final.upload_bits == 2 * each and history.final.payload_bytes == 17
    assert history.cost_model["accounting"] == accounting and history.quantizer == quantizer.name


@QUICK
@given(st.integers(0, 6), st.integers(1, 6))
def test_rounds_are_evaluated_every_so_often_and_at_the_end(every, rounds):
    run = Recorded(configs_of(rounds=rounds), every=every)
    for _ in range(rounds):
        run.play(0.1)
    (history,) = run.histories()
    evaluated = {record.round for record in history.records if record.loss is not None}
    expected = {k for k in range(rounds + 1) if every and k % every == 0} | {rounds}
    assert evaluated == expected and len(history.records) == rounds + 1


@pytest.mark.parametrize("every", [-1, 1.5, True, None])
def test_an_impossible_rhythm_is_refused(every):
    with pytest.raises(ConfigError, match=r"^evaluate_every=.*; choose an integer >= 0$"):
        Recorded(configs_of(), every=every)


def test_the_callback_sees_each_run_s_record_and_params():
    seen = []
    run = Recorded(configs_of(2), callback=lambda run, record, params: seen.append((run, record, params.copy())))
    run.play(0.5)
    assert [(run, record.round) for run, record, _ in seen] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [params.tolist() for *_, params in seen] == [[0.0] * 3] * 2 + [[0.5] * 3] * 2
    assert [record.payload_bytes for _, record, _ in seen] == [0, 0, 10, 20]
    assert [record.upload_bits for _, record, _ in seen] == [0, 0, 80, 160]


def test_only_the_first_rank_speaks():
    seen = []
    run = Recorded(configs_of(), callback=lambda *call: seen.append(call), every=0, ranks=Ranks(1, 2))
    run.play(0.5)
    assert seen == [] and run.state.running().tolist() == [0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("every", [0, 1])
def test_a_run_whose_params_are_not_finite_ends_and_the_others_go_on(value, every):
    run = Recorded(configs_of(3), every=every)
    params = np.full((3, PROBLEM.dimension), 0.5, np.float32)
    params[1, 2] = value
    run.play(params)
    assert run.state.running().tolist() == [0, 2]
    run.play(0.4, sent=(1, 2))
    first, second, third = run.histories()
    assert [len(history.records) for history in (first, second, third)] == [3, 1, 3]
    assert third.final.payload_bytes == 32 and first.final.payload_bytes == 11
    assert first.diverged is None and second.diverged.startswith("round=1: the params or the loss are no longer")
    with pytest.raises(DivergedError, match="round=1"):
        second.raise_if_diverged()
    assert third.raise_if_diverged() is third


def test_a_diverged_run_says_its_last_loss_and_what_to_lower():
    run = Recorded(configs_of(step_size=lambda round: 0.5 + round), every=2)
    run.play(0.5)
    run.play(math.nan)
    (history,) = run.histories()
    assert history.diverged == (
        f"round=2: the params or the loss are no longer finite (last loss={history.records[0].loss:.4g}); "
        "lower step_size=1.5 or local_steps=2, or quantize less"
    )


def test_a_run_that_was_never_evaluated_says_so():
    run = Recorded(configs_of(), every=0)
    run.play(math.nan)
    (history,) = run.histories()
    assert "(loss not evaluated before)" in history.diverged


def test_downloads_add_up_beside_uploads():
    run = Recorded(configs_of(2))
    run.play(0.5)
    run.play(0.25)
    assert [history.final.download_bytes for history in run.histories()] == [2000, 4000]


def test_levels_cannot_be_counted_where_there_are_none():
    class Other(Identity):
        name = "other"

    class NotLevels:
        name = "not-levels"

    cost = fedpaq.CostModel(bandwidth=1000.0, accounting="elias")
    Recorded(configs_of(), quantizer=Other(), cost=cost)
    with pytest.raises(ConfigError, match=r"accounting='elias' counts levels, .*=not-levels has none"):
        Recorded(configs_of(), quantizer=NotLevels(), cost=cost)
