"""Saved runs: continued to the bit, refused when they are of another run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

import fedpaq
from fedpaq.errors import CheckpointError, ConfigError, DivergedError
from fedpaq.run.saving import CheckpointPolicy, differing, tracked_name
from fedpaq.storage import checkpoint as files
from small_problems import make_problem

LOW = fedpaq.LowPrecision(levels=1)


class Stop(Exception):
    """Stands for whatever ends a run early."""


def stop_after(round):
    def callback(record, params):
        if record.round == round:
            raise Stop

    return callback


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("stopped", [0, 1, 3, 4])
@pytest.mark.parametrize("every", [1, 3])
def test_a_resumed_run_is_bit_identical_and_its_history_complete(logistic, config, path, stopped, every):
    whole = fedpaq.train(logistic, config, quantizer=LOW)
    saving = CheckpointPolicy(path, every=every)
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, quantizer=LOW, checkpoint=saving, callback=stop_after(stopped))
    resumed = fedpaq.train(logistic, config, quantizer=LOW, checkpoint=saving)
    assert resumed.to_json() == whole.to_json()
    assert resumed.records == whole.records
    assert names(path.parent) in (["run.ckpt"], ["run.ckpt", "run.ckpt.previous"])


def test_a_finished_run_is_returned_without_any_round(logistic, config, path):
    first = fedpaq.train(logistic, config, checkpoint=path)
    before = path.read_bytes()
    again = fedpaq.train(logistic, config, checkpoint=str(path), callback=stop_after(1))
    assert again.to_json() == first.to_json() and path.read_bytes() == before


def test_a_resumed_sweep_keeps_its_diverged_runs(path):
    problem = make_problem("mlp")
    shared = fedpaq.FedPAQConfig(clients_per_round=3, local_steps=2, total_steps=12, step_size=0.1, seed=1)
    configs = [shared, replace(shared, step_size=1e30), replace(shared, seed=2)]
    whole = fedpaq.sweep(problem, configs, quantizer=LOW, evaluate_every=4)

    def callback(run, record, params):
        if record.round == 5:
            raise Stop

    with pytest.raises(Stop):
        fedpaq.sweep(problem, configs, quantizer=LOW, evaluate_every=4, checkpoint=path, callback=callback)
    resumed = fedpaq.sweep(problem, configs, quantizer=LOW, evaluate_every=4, checkpoint=path)
    assert whole[1].diverged is not None
    assert [history.to_json() for history in resumed] == [history.to_json() for history in whole]


def test_a_run_that_diverged_says_so_again(logistic, config, path):
    bad = replace(config, step_size=1e38)
    for _ in range(2):
        with pytest.raises(DivergedError, match="no longer finite"):
            fedpaq.train(logistic, bad, checkpoint=path)


def test_without_resume_an_existing_file_is_left_alone(logistic, config, path):
    fedpaq.train(logistic, config, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="exists; pass --resume"):
        fedpaq.train(logistic, config, checkpoint=CheckpointPolicy(path, resume=False))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"config": {"seed": 12}}, r"configs\[0\]\.seed=11 in the checkpoint, 12 here"),
        ({"config": {"step_size": 0.2}}, r"configs\[0\]\.step_size=0\.1 in the checkpoint, 0\.2 here"),
        ({"config": {"total_steps": 24}}, "total_steps=12 in the checkpoint, 24 here"),
        (
            {"quantizer": fedpaq.LowPrecision(levels=2)},
            "quantizer='low-precision:1' in the checkpoint, 'low-precision:2' here",
        ),
        ({"quantizer": fedpaq.Identity()}, "quantizer='low-precision:1' in the checkpoint, 'none' here"),
        ({"cost_model": fedpaq.CostModel.from_ratio(7)}, "cost_model.ratio=100.0 in the checkpoint, 7.0 here"),
        ({"executor": "sequential"}, "executor='.*' in the checkpoint, 'sequential' here"),
        ({"evaluate_every": 2}, "evaluate_every=1 in the checkpoint, 2 here"),
        ({"aggregation": fedpaq.server.aggregation.ClippedMean()}, "aggregation.type='Mean' in the checkpoint"),
        ({"problem": "other clients"}, "problem.num_clients=8 in the checkpoint, 6 here"),
        ({"problem": "other data"}, "problem.data_sha256="),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_kept(logistic, config, path, change, told):
    fedpaq.train(logistic, config, quantizer=LOW, checkpoint=path)
    before = path.read_bytes()
    problem = logistic
    if change.get("problem") == "other clients":
        problem = make_problem("logistic", num_clients=6)
    elif change.get("problem") == "other data":
        problem = make_problem("logistic")
        problem.inputs[3, 5] += 1e-6
    options = {"quantizer": LOW, **{k: v for k, v in change.items() if k not in ("config", "problem")}}
    with pytest.raises(CheckpointError, match=rf"is of another run: .*{told}"):
        fedpaq.train(problem, replace(config, **change.get("config", {})), checkpoint=path, **options)
    assert path.read_bytes() == before


class Plain:
    """A quantizer from elsewhere whose settings only its name tells."""

    def __init__(self, size):
        self.name = f"plain({size})"

    def __getattr__(self, name):
        return getattr(LOW, name)


def test_a_quantizer_whose_text_lacks_its_settings_is_known_by_its_name(logistic, config, path):
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, quantizer=Plain(1), checkpoint=path, callback=stop_after(2))
    with pytest.raises(CheckpointError, match=r"quantizer_name='plain\(1\)' in the checkpoint, 'plain\(2\)' here"):
        fedpaq.train(logistic, config, quantizer=Plain(2), checkpoint=path)


@pytest.mark.parametrize("first", ["captured", "vectorised"])
def test_auto_goes_on_with_the_executor_it_began_with(config, path, monkeypatch, first):
    problem = make_problem("convolution")
    choices = [first, "vectorised" if first == "captured" else "captured"]
    monkeypatch.setattr("fedpaq.clients.choice._fastest", lambda *_: choices[0])
    with pytest.raises(Stop):
        fedpaq.train(problem, config, checkpoint=path, callback=stop_after(1))
    choices.reverse()  # a busy machine changes its mind
    resumed = fedpaq.train(make_problem("convolution"), config, checkpoint=path)
    assert resumed.executor == first
    assert fedpaq.train(make_problem("convolution"), config).executor == choices[0]


def test_schedules_are_compared_by_their_values(logistic, config, path):
    schedule = replace(config, step_size=lambda round: 0.1 / (1 + round))
    same = replace(config, step_size=lambda round: 0.1 / (round + 1.0))
    other = replace(config, step_size=lambda round: 0.1 / (2 + round))
    with pytest.raises(Stop):
        fedpaq.train(logistic, schedule, checkpoint=path, callback=stop_after(2))
    with pytest.raises(CheckpointError, match="step_size='sha256"):
        fedpaq.train(logistic, other, checkpoint=path)
    resumed = fedpaq.train(logistic, same, checkpoint=path)
    assert np.array_equal(resumed.params, fedpaq.train(logistic, schedule).params)


def test_a_damaged_newest_file_costs_one_round(logistic, config, path):
    whole = fedpaq.train(logistic, config, quantizer=LOW)
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, quantizer=LOW, checkpoint=path, callback=stop_after(3))
    path.write_bytes(path.read_bytes()[:-7])
    rounds = []

    def note(record, params):
        rounds.append(record.round)

    with pytest.warns(UserWarning, match=r"using run\.ckpt\.previous instead"):
        resumed = fedpaq.train(
            logistic, config, quantizer=LOW, checkpoint=path, callback=lambda record, _: rounds.append(record.round)
        )
    assert resumed.to_json() == whole.to_json() and rounds == [2, 3, 4]


def rewritten(path, change):
    """Apply ``change(header, arrays)`` to a checkpoint and seal it again, as an attacker would."""
    header, arrays = files.read(path)
    change(header, arrays)
    path.unlink()
    files.save(path, header, arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda header, arrays: header.update(rounds_done=-1),
        lambda header, arrays: header.update(rounds_done=10**9),
        lambda header, arrays: header.update(rounds_done="2"),
        lambda header, arrays: header.update(rounds_done=1),
        lambda header, arrays: header.update(diverged={"0": 1, "x": "y"}),
        lambda header, arrays: header.update(diverged=[1]),
        lambda header, arrays: header.update(diverged={"7": "far"}),
        lambda header, arrays: header.pop("diverged"),
        lambda header, arrays: arrays.pop("params"),
        lambda header, arrays: arrays.update(params=arrays["params"].astype(np.float64)),
        lambda header, arrays: arrays.update(params=arrays["params"][:, 1:]),
        lambda header, arrays: arrays.update(params=arrays["params"] * np.float32(np.nan)),
        lambda header, arrays: arrays.pop("loss"),
        lambda header, arrays: arrays.update(loss=arrays["loss"][1:]),
        lambda header, arrays: arrays.update(seconds=arrays["seconds"].astype(np.float32)),
        lambda header, arrays: arrays.update(seconds=np.full_like(arrays["seconds"], np.nan)),
        lambda header, arrays: arrays.update(loss=np.full_like(arrays["loss"], np.inf)),
        lambda header, arrays: arrays.update(records_per_run=np.array([2**62], np.int64)),
        lambda header, arrays: arrays.update(records_per_run=np.array([-1, 4], np.int64)),
        lambda header, arrays: arrays.update(records_per_run=np.array(3, np.int64)),
        lambda header, arrays: header.update(kind="something else"),
    ],
)
def test_a_state_that_cannot_be_is_refused(logistic, config, path, change):
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, checkpoint=path, callback=stop_after(3))
    rewritten(path, change)
    with pytest.raises(CheckpointError, match=r"run\.ckpt' (holds an impossible state|is a 'something else')"):
        fedpaq.train(logistic, config, checkpoint=path)


@pytest.mark.parametrize(("kind", "before"), [("", "downloads were counted"), (" 2", "optimizers were named")])
def test_a_checkpoint_of_an_older_version_is_refused_by_its_version(logistic, config, path, kind, before):
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, checkpoint=path, callback=stop_after(3))
    rewritten(path, lambda header, arrays: header.update(kind=f"fedpaq run{kind}"))
    with pytest.raises(CheckpointError, match=rf"was written by fedpaq 0\.1\.0 before {before}"):
        fedpaq.train(logistic, config, checkpoint=path)


def test_a_run_keeps_the_name_that_trackers_know_it_by(logistic, config, path):
    new = tracked_name(path)
    assert new != tracked_name(path)  # nothing is saved yet
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, checkpoint=CheckpointPolicy(path, tracked_as=new), callback=stop_after(2))
    assert tracked_name(path) == new
    fedpaq.train(logistic, config, checkpoint=path)
    assert tracked_name(path) == new
    path.write_bytes(b"torn")
    assert tracked_name(path) == new  # of the file before


@pytest.mark.parametrize(
    "change", [lambda header: header.pop("tracked_as"), lambda header: header.update(tracked_as=["x' or 'y"])]
)
def test_a_checkpoint_without_a_name_for_trackers_is_resumed_and_gets_one(logistic, config, path, change):
    with pytest.raises(Stop):
        fedpaq.train(logistic, config, checkpoint=path, callback=stop_after(2))
    rewritten(path, lambda header, arrays: change(header))
    files.previous(path).unlink()
    name = tracked_name(path)
    fedpaq.train(logistic, config, checkpoint=CheckpointPolicy(path, tracked_as=name))
    assert tracked_name(path) == name


def test_saving_every_zero_rounds_is_refused():
    with pytest.raises(ConfigError, match="every=0"):
        CheckpointPolicy("x", every=0)


def test_differences_are_found_at_any_depth():
    assert differing({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}], "c": None}) == ["a[1].b=2 in the checkpoint, 3 here"]
    assert differing({"a": [1]}, {"a": [1, 2]}) == ["a=[1] in the checkpoint, [1, 2] here"]
    assert differing({}, {"a": 1}) == ["a=None in the checkpoint, 1 here"]


def test_a_checkpoint_holds_no_pickle_and_little_more_than_the_params(logistic, config, path):
    fedpaq.train(logistic, config, checkpoint=path)
    data = path.read_bytes()
    assert data[-32:] == hashlib.sha256(data[:-32]).digest()
    header, _ = files.read(path)
    assert json.dumps(header) and header["kind"] == "fedpaq run 4"
    assert len(data) < 4 * logistic.dimension + 56 * (config.num_rounds + 1) + 2500
