"""Trial: what arrays become, what kind of labels targets are, and what is refused before training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpaq.errors import ConfigError
from fedpaq.problems import Partition, Problem, iid
from problem_parts import FEATURES, LABELS, N, data, make, network


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


@pytest.mark.parametrize(
    ("last", "loss"),
    [
        (nn.Sigmoid(), nn.functional.binary_cross_entropy),
        (nn.Sigmoid(), lambda o, t: nn.BCELoss()(o, 0.9 * t + 0.05)),
        (nn.Identity(), nn.functional.mse_loss),
        (nn.Identity(), nn.functional.l1_loss),
    ],
)
def test_a_single_probability_is_judged_by_one_half(last, loss):
    ones = (np.arange(N) % 4 == 0)[:, None].astype(np.float32)
    problem = make(model=nn.Sequential(nn.Linear(FEATURES, 1), last), targets=ones, loss=loss)
    params = np.zeros(FEATURES + 1, np.float32)
    params[-1] = -1.0 if isinstance(last, nn.Sigmoid) else 0.3  # says 0.27 or 0.3: below one half
    assert problem.evaluate(params).accuracy == 0.75


@pytest.mark.parametrize("weight", [0.1, 1.0, 20.0])
def test_a_weighted_logit_is_judged_by_its_sign(weight):
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weight))
    ones = (np.arange(N) % 4 == 0)[:, None].astype(np.float32)
    problem = make(model=nn.Linear(FEATURES, 1), targets=ones, loss=loss)
    params = np.zeros(FEATURES + 1, np.float32)
    params[-1] = 0.3
    assert problem.evaluate(params).accuracy == 0.25


def test_regression_has_no_accuracy():
    problem = make(model=nn.Linear(FEATURES, 1), targets=np.linspace(0, 1, N)[:, None], loss=nn.functional.mse_loss)
    assert problem.evaluate(problem.initial_params).accuracy is None


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
    assert torch.equal(make(inputs=inputs[::-1], targets=targets[::-1]).inputs, torch.tensor(inputs[::-1].copy()))
    make(inputs=inputs)


def test_tensors_that_require_grad_are_detached():
    assert not make(inputs=torch.randn(N, FEATURES, requires_grad=True)).inputs.requires_grad


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
        ({"model": nn.LazyLinear(LABELS)}, "model has no values for weight yet; call it on a sample or load its weigh"),
        ({"model": nn.Sequential(nn.Linear(FEATURES, LABELS), nn.LazyBatchNorm1d())}, "model has no values for 1.weig"),
        ({"model": nn.Linear(FEATURES, LABELS, device="meta")}, "model has no values for weight yet"),
        ({"loss": nn.CrossEntropyLoss}, r"loss=CrossEntropyLoss is a class; .* of it, e.g. CrossEntropyLoss\(\)"),
        ({"loss": None}, "loss=None cannot be called; pass a function of outputs and targets"),
        ({"loss": "mse"}, "loss='mse' cannot be called"),
        ({"name": None}, "name=None is not text; write e.g. name='my-problem'"),
        ({"name": 3}, "name=3 is not text"),
        ({"known": {}}, "known={} is not ExactConstants; leave it out where they are not known"),
        ({"inputs": torch.zeros(N, FEATURES).to_sparse()}, r"inputs.layout=torch.sparse_coo is sparse; .*to_dense\(\)"),
        ({"model": nn.Linear(3, LABELS)}, r"model failed on inputs of shape \(2, 6\) and type torch.float32"),
        ({"model": nan_model()}, "model has parameters that are NaN or infinity"),
        ({"model": Broken(lambda x: x.sum())}, r"model returned shape \(\) for 2 inputs; return a tensor with one row"),
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
        ({"inputs": [[1.0], [1.0, 2.0]]}, "inputs cannot become a tensor .*; pass numbers in a rectangular array"),
        ({"inputs": np.array([["a"]] * N)}, "inputs cannot become a tensor"),
        ({"inputs": data()[0].astype(complex)}, "inputs.dtype=torch.complex128 is complex"),
        ({"regularization": -1.0}, "regularization=-1.0 is not allowed; choose a finite number >= 0"),
        ({"loss": nn.functional.mse_loss}, r"loss failed on outputs of shape \(2, 4\) and targets of shape \(2,\)"),
        ({"loss": nn.CrossEntropyLoss(reduction="none")}, "is not one finite number; return the mean"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "counted twice; return the mean over the batch, not the sum"),
        ({"loss": lambda o, t: torch.tensor(torch.nan)}, "is not one finite number"),
        ({"loss": lambda o, t: "high"}, "loss failed on outputs"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_what_cannot_work_is_refused_in_the_constructor(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def squeezed(outputs, targets):
    return nn.functional.binary_cross_entropy_with_logits(outputs.squeeze(), targets)


def test_a_loss_that_squeezes_its_batch_is_taken():
    problem = make(model=nn.Linear(FEATURES, 1), targets=torch.arange(float(N)) % 2, loss=squeezed)
    assert problem._label_kind == "logit"


def test_a_label_beyond_the_outputs_is_found_wherever_it_stands():
    targets = torch.zeros(N, dtype=torch.int64)
    targets[11] = 1
    with pytest.raises(ConfigError, match="loss failed"):
        make(model=nn.Linear(FEATURES, 1), targets=targets, loss=nn.functional.cross_entropy)


class Auxiliary(nn.Module):
    """Returns a pair while it trains."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, LABELS)

    def forward(self, inputs):
        outputs = self.layer(inputs)
        return (outputs, outputs) if self.training else outputs


@pytest.mark.parametrize(
    "parts",
    [
        {"model": Auxiliary()},
        {"loss": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets).item()},
        {"loss": lambda outputs, targets: (outputs.argmax(1) != targets).float().mean()},
    ],
    ids=["a pair in training", "a number", "no gradient"],
)
def test_what_has_no_gradient_is_refused_before_any_training(parts):
    with pytest.raises(ConfigError, match="no gradient on two samples"):
        make(**parts)


def test_complex_parameters_are_refused():
    with pytest.raises(ConfigError, match="complex"):
        make(model=nn.Linear(FEATURES, LABELS, dtype=torch.complex64))


def test_the_trial_leaves_torch_s_generator_alone():
    model = nn.Sequential(nn.Linear(FEATURES, LABELS), nn.Dropout())
    inputs, targets = data()
    before = torch.get_rng_state()
    Problem(model=model, loss=nn.functional.cross_entropy, inputs=inputs, targets=targets, partition=iid(N, 6))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("model", [nn.Linear(FEATURES, 1), nn.Sequential(nn.Linear(FEATURES, 1), nn.Sigmoid())])
@pytest.mark.parametrize(
    "loss",
    [nn.functional.mse_loss, nn.functional.l1_loss, lambda outputs, targets: (outputs - targets).square().mean()],
)
def test_a_loss_that_compares_each_output_with_every_target_is_refused(model, loss):
    """Outputs (n, 1) and targets (n,) broadcast to (n, n), and the model learns the mean target."""
    targets = torch.arange(N) / 7.0
    with pytest.raises(ConfigError, match=r"compares each output with every target, .* pass targets of shape \(n, 1\)"):
        make(model=model, loss=loss, targets=targets)
    nn.init.zeros_(model[0].weight if isinstance(model, nn.Sequential) else model.weight)
    with pytest.raises(ConfigError, match="compares each output with every target"):
        make(model=model, loss=loss, targets=targets)
    assert make(model=model, loss=loss, targets=targets[:, None]).dimension == FEATURES + 1
    squeezed = make(model=model, loss=lambda outputs, targets: loss(outputs.squeeze(-1), targets), targets=targets)
    assert squeezed.dimension == FEATURES + 1
