"""plan: what it recommends, how that follows the network, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

import fedpaq
from fedpaq.downlink import Changes
from fedpaq.errors import ConfigError
from fedpaq.planner import Plan, Schedule, SearchSpace, plan
from fedpaq.quantizers import LowPrecision, text_of
from small_plans import COST, choice_with, make_task, space_of

SPACE = space_of((1, 4), (2, 8), (1, None), (0.5, 2.0))


def test_a_plan_recommends_a_run_that_reaches_the_target(problem):
    found = plan(problem, target_loss=0.56, cost_model=COST, batch_size=5, space=SPACE)
    assert all(found.pick.seconds <= 1.05 * choice.seconds for choice in found.runners_up)
    assert found.fedavg.seconds >= found.pick.seconds * 0.99
    assert found.qsgd.setting.local_steps == 1 and found.qsgd.setting.clients_per_round == 8
    history = fedpaq.train(problem, found.config(seed=5), quantizer=found.quantizer, cost_model=COST)
    assert history.final.loss < 0.58  # nine in ten are below 0.56
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["pick"]["setting"]["local_steps"] == found.pick.setting.local_steps


def test_the_pick_follows_the_network(problem):
    """When uploads cost nothing clients synchronise more often than when they cost everything."""
    space = space_of((1, 16), (4,), (1, None), (0.1, 0.4, 1.6))
    cheap, dear = (
        plan(
            problem,
            target_loss=0.54,
            cost_model=fedpaq.CostModel.from_ratio(ratio),
            batch_size=5,
            space=space,
            compare=False,
        ).pick.setting
        for ratio in (0.001, 10_000)
    )
    assert cheap.local_steps <= dear.local_steps == 16


@dataclass(frozen=True)
class Halves:
    """A quantizer from elsewhere: two norms, one for each half of the update."""

    levels: int

    @property
    def name(self):
        return f"halves(s={self.levels})"

    def variance_bound(self, dimension):
        return LowPrecision(self.levels, bucket_size=-(-dimension // 2)).variance_bound(dimension)

    def quantize(self, update, *, key):
        return LowPrecision(self.levels, bucket_size=-(-len(update) // 2)).quantize(update, key=key)

    def quantize_batch(self, updates, keys):
        return LowPrecision(self.levels, bucket_size=-(-updates.shape[1] // 2)).quantize_batch(updates, keys)


def test_any_quantizer_can_be_planned_with(problem):
    space = SearchSpace(local_steps=(4,), clients_per_round=(8,), quantizers=(Halves(3), "none"), step_sizes=(0.5, 1.0))
    found = plan(problem, target_loss=0.56, cost_model=COST, batch_size=5, space=space)
    assert found.quantizer == Halves(3)  # at this ratio smaller uploads win
    assert found.to_dict()["pick"]["setting"] == {
        "local_steps": 4,
        "clients_per_round": 8,
        "levels": None,
        "quantizer": "Halves:3",
        "downlink": "dense",
    }
    assert found.qsgd.setting.quantizer == LowPrecision(1)  # QSGD is what it is
    config = found.config(seed=3)
    history = fedpaq.train(problem, config, quantizer=found.quantizer, cost_model=COST)
    each = history.final.payload_bytes / config.num_rounds
    assert each == pytest.approx(found.pick.upload_bytes / found.pick.rounds, rel=0.1)


def test_the_quantizers_of_the_default_space_can_be_replaced(problem):
    task = make_task(problem=problem, max_clients=8)
    space = task.default_space(["low-precision:3"])
    assert str(space.settings()[0]) == "tau=1, r=1, s=3"
    assert not space.refine and task.default_space().refine
    assert [text_of(quantizer) for quantizer in task.default_space().quantizers] == [
        "low-precision:1",
        "low-precision:5",
        "low-precision:10",
        "none",
    ]
    assert [downlink.name for downlink in task.default_space().downlinks] == ["dense"]
    dear = make_task(problem=problem, max_clients=8, cost_model=replace(COST, downlink_bandwidth=1e3))
    assert len(dear.default_space().downlinks) == 3
    assert dear.default_space(downlinks=["rotated:2"]).settings()[0].downlink == Changes("rotated:2")


def test_a_dear_downlink_moves_the_pick_to_coded_changes():
    problem = fedpaq.problems.synthetic_logistic(
        num_clients=4, samples_per_client=20, dimension=400, regularization=0.01
    )
    space = SearchSpace(
        local_steps=(4,),
        clients_per_round=(4,),
        quantizers=("none",),
        downlinks=("dense", "rotated:2"),
        step_sizes=(0.02, 0.05),
    )
    free, dear = (
        plan(problem, target_loss=0.5, cost_model=model, batch_size=5, space=space, compare=False)
        for model in (COST, replace(COST, downlink_bandwidth=COST.bandwidth_for(400)))
    )
    assert free.downlink.name == "dense" and dear.downlink == Changes("rotated:2")
    assert dear.pick.download_bytes < 0.5 * free.pick.download_bytes
    run = fedpaq.train(problem, dear.config(seed=3), quantizer=dear.quantizer, downlink=dear.downlink)
    assert run.final.loss < 0.52


def test_a_plan_is_the_config_it_recommends_and_json():
    choice = choice_with(9.0, clients=2)
    made = Schedule(rounds=8, share=0.91, before=0.8, runs=200, seconds=9.5, upload_bytes=80.0, download_bytes=800.0)
    found = Plan(
        task=make_task(batch_size=4),
        pick=choice,
        schedule=made,
        runners_up=[choice],
        fedavg=None,
        qsgd=choice,
        finished=[],
        gradient_steps=11,
    )
    config = found.config(seed=6)
    assert (config.num_rounds, config.local_steps, config.clients_per_round) == (8, 5, 2)
    assert (config.batch_size, config.step_size, config.seed) == (4, 0.25, 6)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["fedavg"] is None and values["pick"] == values["qsgd"] == json.loads(json.dumps(choice.to_dict()))
    assert values["schedule"]["share"] == 0.91 and values["runners_up"][0]["tied"]
    assert values["cost_model"]["bandwidth"] == 100.0 and values["gradient_steps"] == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_loss": 1e-6}, "is below .*, the lowest training loss"),
        ({"target_loss": 5.0}, "is not below the loss before training"),
        ({"max_clients": 9}, "max_clients=9 exceeds num_clients=8"),
        ({"max_steps": 1, "target_loss": 0.51}, "within max_steps=1 local steps"),
        ({"max_clients": 4}, "clients_per_round=8 of the search space exceeds max_clients=4"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"confidence": 1.0}, "confidence=1.0 is not a share of runs to plan for"),
        ({"cost_model": fedpaq.CostModel.from_ratio(1, accounting="elias")}, "charges real payloads"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_reason(problem, change, message):
    arguments = {"target_loss": 0.56, "cost_model": COST, "batch_size": 5, "space": SPACE} | change
    with pytest.raises(ConfigError, match=message):
        plan(problem, **arguments)


@pytest.mark.parametrize(
    ("name", "bad", "why"),
    [
        *[("cost_model", bad, "^cost_model=.* is not a CostModel; e.g.") for bad in (None, 0, {}, fedpaq.CostModel)],
        *[("space", bad, "^space=.* is not a SearchSpace; write SearchSpace") for bad in (0, "", [], SearchSpace)],
        *[("confidence", bad, "^confidence=.* is not a number") for bad in (None, "0.9", [], True)],
        *[("progress", bad, "^progress=.* cannot be called; pass a function") for bad in (0, "", [])],
        ("target_loss", float("nan"), "target_loss=nan is not allowed"),
        ("target_loss", float("inf"), "target_loss=inf is not allowed"),
        ("quantizers", ["none"], "space= has its own quantizers and downlinks; leave out"),
        ("downlinks", ["dense"], "space= has its own quantizers and downlinks; leave out"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_the_race(problem, name, bad, why):
    with pytest.raises(ConfigError, match=why):
        plan(problem, **{"target_loss": 0.56, "cost_model": COST, "space": SPACE, name: bad})


@pytest.mark.parametrize("name", ["quantizers", "downlinks"])
@pytest.mark.parametrize(("bad", "why"), [([], r"=\[\] is empty"), ("", "='' is not a list"), (0, "=0 is not a list")])
def test_an_empty_choice_is_not_taken_for_the_default(problem, name, bad, why):
    with pytest.raises(ConfigError, match=f"^{name}{why}"):
        plan(problem, target_loss=0.56, cost_model=COST, **{name: bad})


@pytest.mark.parametrize("bad", [None, 0, "mnist-logistic", fedpaq.Problem])
def test_what_is_not_a_problem_is_refused(bad):
    with pytest.raises(ConfigError, match=r"^problem=.* is not a Problem; make one, or load one with"):
        plan(bad, target_loss=0.56, cost_model=COST)
