"""Problem: any module, loss and arrays through one flat vector; bad ones fail early and clearly."""

import numpy as np
import pytest
import torch
from torch import nn

from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems import Partition, Problem, iid

N, FEATURES, LABELS = 60, 6, 4


def data(num_samples: int = N) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((num_samples, FEATURES)).astype(np.float32)
    return inputs, generator.integers(0, LABELS, num_samples)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, LABELS))


def make(**changes) -> Problem:
    inputs, targets = data()
    arguments = {
        "model": network(),
        "loss": nn.functional.cross_entropy,
        "inputs": inputs,
        "targets": targets,
        "partition": iid(N, 6),
    }
    return Problem(**{**arguments, **changes})


def by_hand(problem: Problem, params: np.ndarray, samples: list[int]) -> tuple[float, float]:
    """One sample at a time, through the module itself."""
    model = problem.model
    flat, start = torch.from_numpy(params), 0
    losses, right = [], 0
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(flat[start : start + value.numel()].view(value.shape))
            start += value.numel()
        for sample in samples:
            outputs = model(problem.inputs[sample : sample + 1])
            losses.append(float(problem.loss(outputs, problem.targets[sample : sample + 1])))
            right += int(outputs.argmax()) == int(problem.targets[sample])
    loss = np.mean(losses) + 0.5 * problem.regularization * float(np.sum(params.astype(float) ** 2))
    return loss, right / len(samples)


@pytest.mark.parametrize("held", [list(range(N)), [5, 3, 3, 17, 59, 0]])
def test_evaluate_equals_a_loop_over_the_samples_held(held):
    partition = Partition.from_lists([held[:2], held[2:]])
    problem = make(regularization=0.1, partition=partition)
    params = np.random.default_rng(2).standard_normal(problem.dimension).astype(np.float32)
    loss, accuracy = by_hand(problem, params, sorted(set(held)))
    found = problem.evaluate(params)
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.accuracy == pytest.approx(accuracy)


def test_evaluation_does_not_depend_on_how_samples_are_cut_into_passes():
    inputs, targets = data(9000)  # more than one pass of 8192
    problem = make(inputs=inputs, targets=targets, partition=iid(9000, 3))
    outputs = problem.model(torch.from_numpy(inputs)).detach()
    expected = float(nn.functional.cross_entropy(outputs, torch.from_numpy(targets)))
    assert problem.evaluate(problem.initial_params).loss == pytest.approx(expected, rel=1e-5)


def test_many_params_are_evaluated_like_each_of_them():
    problem = make(regularization=0.1, partition=iid(N, 6, samples_per_client=3))
    rows = np.random.default_rng(3).standard_normal((4, problem.dimension)).astype(np.float32)
    for found, row in zip(problem.evaluate_batch(rows), rows, strict=True):
        alone = problem.evaluate(row)
        assert found.loss == pytest.approx(alone.loss, rel=1e-5)
        assert found.accuracy == alone.accuracy


def test_objective_has_the_gradient_of_the_regularised_loss():
    problem = make(regularization=0.3)
    x, y = problem.batch(np.array([4, 9, 4]))
    params = torch.from_numpy(problem.initial_params.copy()).requires_grad_()
    problem.objective(params, x, y).backward()
    loss = nn.functional.cross_entropy(problem.model(x), y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(problem.model.parameters()))])
    torch.testing.assert_close(params.grad, gradient + 0.3 * params.detach())


def test_the_model_is_left_alone_and_its_parameters_are_remembered():
    model = network()
    problem = make(model=model)
    before = problem.initial_params.copy()
    problem.evaluate(np.zeros(problem.dimension, np.float32))
    flat = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    assert np.array_equal(flat.numpy(), before)
    with torch.no_grad():
        model[0].weight.zero_()
    assert np.array_equal(problem.initial_params, before)


def test_frozen_parameters_are_not_part_of_x():
    model = network()
    model[0].weight.requires_grad_(False)
    problem = make(model=model)
    assert problem.dimension == 5 + 5 * LABELS + LABELS
    whole = make(model=network())
    assert problem.evaluate(problem.initial_params).loss == pytest.approx(
        whole.evaluate(whole.initial_params).loss, rel=1e-6
    )


def test_layers_that_share_weights_are_counted_once_and_evaluated_right():
    layer = nn.Linear(FEATURES, FEATURES)
    problem = make(model=nn.Sequential(layer, nn.ReLU(), layer))
    assert problem.dimension == FEATURES * FEATURES + FEATURES
    rows = np.stack([problem.initial_params, problem.initial_params * 2])
    assert problem.evaluate_batch(rows)[1] == problem.evaluate(rows[1])


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (np.arange(N) % 2, lambda o, t: nn.functional.binary_cross_entropy_with_logits(o[:, 0], t.float())),
        ((np.arange(N) % 2)[:, None].astype(np.float32), nn.functional.binary_cross_entropy_with_logits),
    ],
)
def test_a_single_logit_is_judged_by_its_sign(targets, loss):
    problem = make(model=nn.Linear(FEATURES, 1), targets=targets, loss=loss)
    params = np.zeros(FEATURES + 1, np.float32)
    params[-1] = 1.0  # always says 1
    assert problem.evaluate(params).accuracy == 0.5


def test_regression_has_no_accuracy():
    problem = make(
        model=nn.Linear(FEATURES, 1), targets=np.linspace(0, 1, N)[:, None], loss=nn.functional.mse_loss
    )
    assert problem.evaluate(problem.initial_params).accuracy is None


class LossModule(nn.Module):
    """A user's loss without the attributes of torch's own."""

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


def test_a_loss_may_be_any_module():
    assert make(loss=LossModule()).dense_network is None
    assert make(loss=nn.CrossEntropyLoss()).dense_network is not None


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_inputs_stay_token_numbers(dtype):
    model = nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(6, LABELS))
    problem = make(model=model, inputs=np.arange(2 * N, dtype=dtype).reshape(N, 2) % 10)
    assert problem.inputs.dtype == torch.int64
    assert np.isfinite(problem.evaluate(problem.initial_params).loss)


@pytest.mark.parametrize("dtype", [np.uint8, bool, np.float64, np.float16])
def test_other_inputs_become_float32(dtype):
    assert make(inputs=data()[0].astype(dtype)).inputs.dtype == torch.float32


def test_read_only_and_reversed_arrays_are_taken_without_a_warning():
    inputs, targets = data()
    inputs.flags.writeable = False
    assert torch.equal(
        make(inputs=inputs[::-1], targets=targets[::-1]).inputs, torch.tensor(inputs[::-1].copy())
    )
    make(inputs=inputs)


def test_tensors_that_require_grad_are_detached():
    assert not make(inputs=torch.randn(N, FEATURES, requires_grad=True)).inputs.requires_grad


def test_moving_to_where_it_is_returns_the_problem_itself():
    problem = make()
    assert problem.to("cpu") is problem


def test_making_and_evaluating_draws_nothing_from_torchs_generator():
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.5), nn.Linear(5, LABELS))
    inputs, targets = data()
    before = torch.random.get_rng_state()
    problem = Problem(
        model=model, loss=nn.CrossEntropyLoss(), inputs=inputs, targets=targets, partition=iid(N, 6)
    )
    first, second = problem.evaluate(problem.initial_params), problem.evaluate(problem.initial_params)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first == second and problem.draws_at_random and model.training


def test_running_statistics_start_afresh_in_every_evaluation():
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, LABELS))
    problem = make(model=model)
    assert problem.evaluate(problem.initial_params) == problem.evaluate(problem.initial_params)
    assert int(model[1].num_batches_tracked) == 0


class Broken(nn.Module):
    """Returns whatever it is told to."""

    def __init__(self, result):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1))
        self.result = result

    def forward(self, inputs):
        return self.result(inputs)


def nan_model() -> nn.Module:
    model = network()
    with torch.no_grad():
        model[0].bias[0] = torch.nan
    return model


def labels_with(value: int) -> np.ndarray:
    targets = data()[1].copy()
    targets[-1] = value
    return targets


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "network"}, "model='network' is not a torch.nn.Module"),
        ({"model": nn.ReLU()}, "model has no trainable parameters"),
        ({"model": nn.Linear(3, LABELS)}, r"model failed on inputs of shape \(2, 6\) and type torch.float32"),
        ({"model": nan_model()}, "model has parameters that are NaN or infinity"),
        (
            {"model": Broken(lambda x: x.sum())},
            r"model returned shape \(\) for 2 inputs; return a tensor with one row",
        ),
        ({"model": Broken(lambda x: (x, x))}, "model returned tuple for 2 inputs"),
        ({"partition": [[0, 1]]}, r"partition=\[\[0, 1\]\] is not a Partition"),
        ({"partition": iid(N + 1, 2)}, "partition names sample 60; choose 0..59"),
        ({"partition": Partition.from_lists([[0], [-2]])}, "partition names sample -2; choose 0..59"),
        (
            {"targets": labels_with(4)},
            "target=4 is outside the label range; the model has 4 outputs, so labels are 0..3",
        ),
        ({"targets": labels_with(-1)}, "target=-1 is outside the label range"),
        ({"targets": data()[1][:-1]}, "inputs hold 60 samples but targets 59; they must match"),
        ({"inputs": np.zeros((0, FEATURES))}, r"inputs.shape=\(0, 6\) holds no samples"),
        ({"inputs": 3.0}, r"inputs.shape=\(\) holds no samples"),
        (
            {"inputs": [[1.0], [1.0, 2.0]]},
            "inputs cannot become a tensor .*; pass numbers in a rectangular array",
        ),
        ({"inputs": np.array([["a"]] * N)}, "inputs cannot become a tensor"),
        ({"inputs": data()[0].astype(complex)}, "inputs.dtype=torch.complex128 is complex"),
        ({"regularization": -1.0}, "regularization=-1.0 is not allowed; choose a finite number >= 0"),
        (
            {"loss": nn.functional.mse_loss},
            r"loss failed on outputs of shape \(2, 4\) and targets of shape \(2,\)",
        ),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "is not one finite number; return the mean"),
        (
            {"loss": nn.CrossEntropyLoss(reduction="sum")},
            "counted twice; return the mean over the batch, not the sum",
        ),
        ({"loss": lambda o, t: torch.tensor(torch.nan)}, "is not one finite number"),
        ({"loss": lambda o, t: "high"}, "loss failed on outputs"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_what_cannot_work_is_refused_in_the_constructor(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)


@pytest.mark.parametrize("name", ["inputs", "targets"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_is_not_finite_is_refused(name, value):
    arrays = {"inputs": data()[0].copy(), "targets": np.linspace(0, 1, N)[:, None].astype(np.float32)}
    arrays[name][7, 0] = value
    with pytest.raises(DatasetError, match=f"{name} hold NaN or infinity; clean the data first"):
        make(model=nn.Linear(FEATURES, 1), loss=nn.functional.mse_loss, **arrays)


@pytest.mark.parametrize("shape", [(3,), (1, 59), ()])
def test_params_of_the_wrong_shape_are_refused(shape):
    with pytest.raises(ConfigError, match=r"params.shape=.* does not fit the model; it has dimension=59"):
        make().evaluate(np.zeros(shape, np.float32))
