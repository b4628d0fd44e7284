"""The example of a quantizer of one's own: found by its name, with real bytes, in every tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import fedpaq
from fedpaq.planner import SearchSpace
from fedpaq.quantizers import QUANTIZERS, check_quantizer, parse, registry, text_of
from fedpaq.server.mean import add_messages
from repository import ROOT

EXAMPLE = ROOT / "examples" / "random-sparse"
sys.path.insert(0, str(EXAMPLE))
from random_sparse import RandomSparse  # noqa: E402


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(QUANTIZERS, "random-sparse", RandomSparse)


@pytest.fixture
def installed(tmp_path):
    """An environment in which the example is installed, as pip would leave it."""
    folder = tmp_path / "random_sparse-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: random-sparse\nVersion: 0.1.0\n")
    line = 'random-sparse = "random_sparse:RandomSparse"'
    assert line in (EXAMPLE / "pyproject.toml").read_text()
    (folder / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{line.replace(chr(34), '')}\n")
    paths = [str(tmp_path), str(EXAMPLE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NUMBA_NUM_THREADS": "1"}


def command(environment, *words):
    done = subprocess.run(
        [sys.executable, "-m", "fedpaq", *map(str, words)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_one_file_under_80_lines():
    assert len((EXAMPLE / "random_sparse.py").read_text().splitlines()) < 80


def test_it_is_unbiased_within_its_bound():
    check_quantizer(RandomSparse(0.3))


def test_it_travels_and_comes_back(registered):
    update = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    message = RandomSparse(0.1).quantize(update, key=fedpaq.Key(seed=3))
    payload = fedpaq.encode(message)
    assert fedpaq.decode(payload, dimension=1000) == message and len(payload) == 4 * message.values.size + 16 + 9
    total, expected = np.zeros(1000), np.zeros(1000)
    fedpaq.accumulate(payload, total, weight=0.5)
    message.add_to(expected, 0.5)
    assert np.array_equal(total, expected)
    for cut in (1, 5, 12):
        with pytest.raises(fedpaq.WireFormatError):
            fedpaq.decode(payload[:-cut])
    assert parse("random-sparse:0.25") == RandomSparse(0.25) and text_of(RandomSparse(0.25)) == "random-sparse:0.25"


def test_without_the_package_its_payloads_are_refused_by_name(registered, monkeypatch):
    payload = fedpaq.encode(RandomSparse(0.5).quantize(np.ones(9), key=fedpaq.Key(seed=0)))
    monkeypatch.delitem(QUANTIZERS, "random-sparse")
    with pytest.raises(fedpaq.WireFormatError, match="code=8 of the payload is unknown"):
        fedpaq.decode(payload)


def test_sweep_counts_its_real_bytes(registered, logistic, config):
    (history,) = fedpaq.sweep(logistic, [config], quantizer=RandomSparse(0.5))
    raw = fedpaq.train(logistic, config).final.payload_bytes
    assert history.quantizer == "random-sparse(0.5)" and 0.3 * raw < history.final.payload_bytes < 0.9 * raw


def test_a_plan_prices_its_real_bytes(registered):
    problem = fedpaq.problems.synthetic_logistic(num_clients=8, samples_per_client=20, dimension=60)
    space = SearchSpace(local_steps=(2,), clients_per_round=(4,), quantizers=("random-sparse:0.5",), step_sizes=(1.0,))
    cost = fedpaq.CostModel.from_ratio(100)
    found = fedpaq.plan(problem, target_loss=0.6, cost_model=cost, batch_size=5, space=space, compare=False)
    upload = found.pick.upload_bytes / (4 * found.pick.rounds)
    assert found.quantizer == RandomSparse(0.5) and abs(upload - (4 * 30 + 16 + 8)) < 12  # half of 60 values


def test_the_command_line_finds_it_by_name(installed, tmp_path):
    options = ["--total-steps", "10", "--clients-per-round", "5", "--no-compare", "--json"]
    run = json.loads(command(installed, "run", "mnist-logistic", "--quantizer", "random-sparse:0.1", *options))
    assert "random-sparse(0.1)" in json.dumps(run)
    script = (
        "import sys, numpy as np, fedpaq; quantizer = fedpaq.quantizers.parse('random-sparse:0.1'); "
        "message = quantizer.quantize(np.ones(500), key=fedpaq.Key(seed=1)); "
        "open(sys.argv[1], 'wb').write(fedpaq.encode(message))"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "update.fpq"], env=installed, check=True)
    seen = json.loads(command(installed, "inspect", tmp_path / "update.fpq", "--json"))
    assert seen["code"] == "random-sparse" and seen["dimension"] == 500


@pytest.mark.parametrize("dimension", [1, 39, 41])
def test_a_message_of_the_example_is_added_to_its_own_dimension_only(dimension):
    message = RandomSparse(keep=0.5).quantize(np.ones(40, np.float32), key=fedpaq.Key(seed=0))
    with pytest.raises(fedpaq.ConfigError, match=r"dimension=\[40\] do not fit"):
        add_messages([message], np.zeros(1, np.int64), np.zeros((1, dimension)))
