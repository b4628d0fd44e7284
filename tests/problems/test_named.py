"""Named problems: exact sizes, the same on every platform and from every source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedpaq import problems
from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems.datasets import npz
from fedpaq.problems.datasets.catalogue import spec
from fedpaq.problems.named import PROBLEMS
from repository import DATA

NETWORKS = {
    "fashion-mlp": (784, 128, 10),
    "cifar10-mlp-92k": (3072, 29, 29, 29, 29, 10),
    "cifar10-mlp-248k": (3072, 75, 75, 75, 75, 10),
    "cifar100-mlp": (3072, 100, 100),
}


DIMENSIONS = {
    "mnist-logistic": 785,
    "fashion-mlp": 101_770,
    "cifar10-mlp-92k": 92_027,
    "cifar10-mlp-248k": 248_335,
    "cifar100-mlp": 317_400,
    "synthetic-quadratic": 20,
    "synthetic-logistic": 10,
}


@pytest.fixture
def data_dir(tmp_path) -> Path:
    """A folder with small stand-ins for the image datasets: random pixels, all labels."""
    generator = np.random.default_rng(0)
    for name in ("fashion-mnist", "cifar10", "cifar100"):
        dataset = spec(name)
        parts = {}
        for part, count in (("train", 300), ("test", 10)):
            parts[f"x_{part}"] = generator.integers(0, 256, (count, *dataset.image_shape)).astype(np.uint8)
            parts[f"y_{part}"] = (np.arange(count) % dataset.num_labels).astype(np.uint8)
        np.savez(tmp_path / dataset.npz_names[1], **parts)
    return tmp_path


@pytest.mark.parametrize("name", problems.names())
def test_dimensions_are_the_papers_and_the_summary_says_so(name, data_dir):
    problem = problems.load(name, num_clients=10, samples_per_client=5, data_dir=data_dir)
    assert problem.dimension == DIMENSIONS[name] == problem.initial_params.size
    assert f"p = {DIMENSIONS[name]:,}" in problems.describe(name)
    assert problem.name == name and problem.num_clients == 10
    assert problem.partition.sizes().tolist() == [5] * 10
    assert np.isfinite(problem.evaluate(problem.initial_params).loss)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_are_linear_and_relu_layers_over_flat_inputs(name, data_dir):
    problem = problems.load(name, num_clients=2, samples_per_client=20, data_dir=data_dir)
    layers = list(problem.model)
    assert [type(layer) for layer in layers[::2]] == [nn.Linear] * (len(NETWORKS[name]) - 1)
    assert all(type(layer) is nn.ReLU for layer in layers[1::2])
    assert problem.dense_network.widths == NETWORKS[name]
    assert problem.inputs.shape == (40, NETWORKS[name][0]) and problem.inputs.dtype == torch.float32


def test_networks_see_pixels_standardised_per_channel(data_dir):
    problem = problems.load("cifar10-mlp-92k", num_clients=1, samples_per_client=3, data_dir=data_dir)
    with np.load(data_dir / "cifar10_10k.npz") as archive:
        image = archive["x_train"][2] / 255.0  # (32, 32, 3)
    expected = (image - np.array(spec("cifar10").mean)) / np.array(spec("cifar10").deviation)
    np.testing.assert_allclose(problem.inputs[2].numpy(), expected.reshape(-1), atol=1e-5)


def test_mnist_logistic_is_the_papers_first_experiment():
    problem = problems.load("mnist-logistic", num_clients=50, seed=0)
    assert problem.partition.sizes().tolist() == [200] * 50
    assert problem.regularization == 1 / 10_000
    assert not problem.initial_params.any()
    found = problem.evaluate(problem.initial_params)
    assert found.loss == pytest.approx(np.log(2), rel=1e-6)
    digits = npz.bundled()
    assert torch.equal(problem.inputs[7], torch.tensor(digits.x_train[7].reshape(-1) / np.float32(255)))
    assert np.array_equal(problem.targets[:, 0].numpy(), digits.y_train[:10_000] == 8)


def test_mnist_logistic_is_strongly_convex_with_its_regularization():
    problem = problems.load("mnist-logistic")
    params = torch.zeros(785)
    x, y = problem.batch(np.arange(100))
    hessian = torch.func.hessian(lambda p: problem.objective(p, x, y))(params).double()
    lowest = float(torch.linalg.eigvalsh(hessian)[0])  # 100 samples in 785 dimensions: only mu is left
    assert lowest == pytest.approx(problem.regularization, abs=1e-5)


def test_the_seed_moves_the_partition_and_weights_but_not_the_samples(data_dir):
    first, second, again = (
        problems.load("fashion-mlp", num_clients=5, samples_per_client=8, seed=seed, data_dir=data_dir)
        for seed in (0, 1, 0)
    )
    assert torch.equal(first.inputs, second.inputs)
    assert not np.array_equal(first.partition.indices, second.partition.indices)
    assert not np.array_equal(first.initial_params, second.initial_params)
    assert np.array_equal(first.initial_params, again.initial_params)
    assert np.array_equal(first.partition.indices, again.partition.indices)


def test_a_subset_and_the_full_dataset_give_the_same_problem(data_dir, tmp_path_factory):
    full = tmp_path_factory.mktemp("full")
    with np.load(data_dir / "cifar10_10k.npz") as archive:
        more = {key: np.concatenate([archive[key], archive[key]]) for key in archive.files}
    np.savez(full / "cifar10.npz", **more)
    options = {"num_clients": 5, "samples_per_client": 40}
    small = problems.load("cifar10-mlp-92k", data_dir=data_dir, **options)
    large = problems.load("cifar10-mlp-92k", data_dir=full, **options)
    assert torch.equal(small.inputs, large.inputs)
    assert np.array_equal(small.partition.indices, large.partition.indices)


def test_loading_leaves_torchs_generator_alone(data_dir):
    before = torch.random.get_rng_state()
    for name in problems.names():
        problems.load(name, num_clients=3, samples_per_client=3, data_dir=data_dir)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("partition", ["dirichlet", "by-label"])
def test_uneven_partitions_are_uneven(partition):
    problem = problems.load("mnist-logistic", num_clients=20, partition=partition, alpha=0.1, labels_per_client=1)
    ones = [float(problem.targets[problem.partition.samples_of(client)].mean()) for client in range(20)]
    even = problems.load("mnist-logistic", num_clients=20)
    expected = [float(even.targets[even.partition.samples_of(client)].mean()) for client in range(20)]
    assert np.std(ones) > 3 * np.std(expected)
    assert np.unique(problem.partition.indices).size == 10_000


def test_the_environment_names_the_data_folder_unless_an_argument_does(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPAQ_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DatasetError, match="nowhere' is not a folder"):
        problems.load("fashion-mlp")
    problems.load("fashion-mlp", num_clients=2, samples_per_client=2, data_dir=data_dir)
    monkeypatch.setenv("FEDPAQ_DATA", str(data_dir))
    problems.load("fashion-mlp", num_clients=2, samples_per_client=2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mnist-logistc", {}, r"unknown problem 'mnist-logistc'; known: .* \(did you mean 'mnist-logistic'\?\)"),
        ("mnist-logistic", {"partition": "idd"}, r"unknown partition 'idd'; .* \(did you mean 'iid'\?\)"),
        ("mnist-logistic", {"num_clients": 0}, "num_clients=0 is out of range"),
        ("mnist-logistic", {"num_clients": 10_001}, "num_clients=10001 exceeds the 10000 samples"),
        (
            "mnist-logistic",
            {"samples_per_client": 236},
            "samples_per_client=236 times num_clients=50 exceeds the 11774 samples of .*; choose at most 235",
        ),
        ("mnist-logistic", {"samples_per_client": 0}, "samples_per_client=0 is out of range"),
        ("mnist-logistic", {"seed": -1}, "seed=-1 is out of range"),
        ("mnist-logistic", {"regularization": -1.0}, "regularization=-1.0 is not allowed"),
        ("mnist-logistic", {"partition": "dirichlet", "alpha": 0.0}, "alpha=0.0 is not allowed"),
        (
            "synthetic-quadratic",
            {"partition": "dirichlet"},
            "partition='dirichlet' is not offered by synthetic-quadratic; choose 'iid'",
        ),
        ("synthetic-logistic", {"regularization": float("nan")}, "regularization=nan is not allowed"),
    ],
)
def test_bad_requests_say_what_is_allowed(name, options, message):
    with pytest.raises(ConfigError, match=message):
        problems.load(name, **options)


def test_a_file_with_too_few_samples_says_how_many_are_needed(data_dir):
    with pytest.raises(DatasetError, match="holds 300 training samples; fashion-mlp needs 10000"):
        problems.load("fashion-mlp", data_dir=data_dir)
    with pytest.raises(ConfigError, match=r"exceeds the 300 samples of file=.*; choose at most 30"):
        problems.load("fashion-mlp", num_clients=10, samples_per_client=31, data_dir=data_dir)


def test_importing_problems_loads_neither_rich_nor_pooch():
    code = "import sys, fedpaq.problems; print({'rich', 'pooch', 'requests', 'typer'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == "set()"


def shared_data() -> Path | None:
    named = os.environ.get("FEDPAQ_DATA")
    folder = Path(named) if named else DATA
    return folder if folder.is_dir() else None


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_networks_start_near_a_uniform_guess_on_the_real_data(name):
    if shared_data() is None:
        pytest.skip("needs the image datasets in the folder that FEDPAQ_DATA names")
    problem = problems.load(name, data_dir=shared_data())
    assert len(problem.inputs) == 10_000 and problem.partition.sizes().tolist() == [200] * 50
    guess = np.log(NETWORKS[name][-1])
    assert guess - 0.01 < problem.evaluate(problem.initial_params).loss < guess + 0.5


def test_every_name_has_a_dataset_that_exists():
    assert {named.dataset for named in PROBLEMS.values()} <= {None, "fashion-mnist", "cifar10", "cifar100"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"alpha": 0.1}, "alpha=0.1 has no meaning with partition='iid'; write partition='dirichlet'"),
        (
            {"labels_per_client": 1},
            "labels_per_client=1 has no meaning with partition='iid'; write partition='by-label'",
        ),
        ({"data_dir": ""}, "data_dir='' is not a path"),
        ({"data_dir": 3}, "data_dir=3 is not a path"),
    ],
)
def test_settings_that_would_be_left_out_are_refused(given, why):
    with pytest.raises(ConfigError, match=why):
        problems.load("mnist-logistic", **given)
