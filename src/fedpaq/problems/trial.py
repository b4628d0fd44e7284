"""Trial: the parts of a problem, checked before any training, so that what cannot work fails here, clearly.

Arrays become tensors, the model and the loss are run once on two samples, and targets are recognised
as labels where they are.
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedpaq.errors import ConfigError, DatasetError
from fedpaq.problems.dense_network import Loss
from fedpaq.problems.evaluation import LabelKind, evaluating
from fedpaq.problems.partitions import Partition

if TYPE_CHECKING:
    from fedpaq.problems.problem import Problem


def as_tensor(name: str, values: Any) -> Tensor:
    """Return floats as float32, bytes and bools among inputs too, other integers as int64."""
    tensor = values.detach() if isinstance(values, Tensor) else _from_array(name, values)
    if tensor.ndim == 0 or len(tensor) == 0:
        raise ConfigError(f"{name}.shape={tuple(tensor.shape)} holds no samples; pass one row per sample")
    if tensor.layout != torch.strided:
        raise ConfigError(f"{name}.layout={tensor.layout} is sparse; pass {name}.to_dense()")
    if tensor.is_complex():
        raise ConfigError(f"{name}.dtype={tensor.dtype} is complex; pass real numbers")
    is_pixels = name == "inputs" and tensor.dtype in (torch.uint8, torch.bool)
    wanted = torch.float32 if tensor.is_floating_point() or is_pixels else torch.int64
    return tensor.to(wanted).contiguous()


def _from_array(name: str, values: Any) -> Tensor:
    try:
        array = np.asarray(values, order="C")
        # torch warns about arrays it could write to by accident, such as memory maps.
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot become a tensor ({error}); pass numbers in a rectangular array") from error


def require_types(model: Any, loss: Any, partition: Any, name: Any) -> None:
    """Raise ConfigError unless these are a module with values, a function, a partition and a text."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model={model!r} is not a torch.nn.Module; pass an instance of one")
    for key, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(value) or value.is_meta:
            raise ConfigError(f"model has no values for {key} yet; call it on a sample or load its weights first")
    if isinstance(loss, type):
        raise ConfigError(f"loss={loss.__name__} is a class; pass an instance of it, e.g. {loss.__name__}()")
    if not callable(loss):
        raise ConfigError(f"loss={loss!r} cannot be called; pass a function of outputs and targets")
    if not isinstance(name, str):
        raise ConfigError(f"name={name!r} is not text; write e.g. name='my-problem'")
    if not isinstance(partition, Partition):
        raise ConfigError(
            f"partition={partition!r} is not a Partition; make one with iid, dirichlet, by_label "
            "or Partition.from_lists"
        )


def try_out(problem: Problem) -> tuple[int, LabelKind | None]:
    """Check that the parts fit one another; return the numbers that a sample's output has, and its kind of label."""
    inputs, targets, indices = problem.inputs, problem.targets, problem.partition.indices
    if not problem.dimension:
        raise ConfigError("model has no trainable parameters; there is nothing to learn")
    if any(value.is_complex() for value in problem.model.parameters()):
        raise ConfigError("model has complex parameters; x is a vector of real numbers")
    if len(inputs) != len(targets):
        raise ConfigError(f"inputs hold {len(inputs)} samples but targets {len(targets)}; they must match")
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= len(inputs):
        raise ConfigError(f"partition names sample {low if low < 0 else high}; choose 0..{len(inputs) - 1}")
    for name, values in (("inputs", inputs), ("targets", targets)):
        if not bool(torch.isfinite(values).all()):
            raise DatasetError(f"{name} hold NaN or infinity; clean the data first")
    with evaluating(problem.model):  # a trial must not move torch's global generator
        outputs = _try_model(problem)
    if _has_classes(outputs, targets):
        _require_labels(targets, outputs.shape[1])
    _try_loss(problem, outputs)
    _try_gradient(problem)
    return outputs[0].numel(), _label_kind(outputs, targets, problem.loss)


def _try_model(problem: Problem) -> Tensor:
    """Return the model's outputs for the first samples, or raise ConfigError."""
    x = problem.inputs[:2]
    flat = torch.from_numpy(problem.initial_params).to(x.device)
    if not bool(torch.isfinite(flat).all()):
        raise ConfigError("model has parameters that are NaN or infinity; initialise it first")
    try:
        with torch.no_grad():
            outputs = problem.outputs(flat, x)
    except Exception as error:
        raise ConfigError(
            f"model failed on inputs of shape {tuple(x.shape)} and type {x.dtype}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(x):
        raise ConfigError(
            f"model returned {_shape(outputs)} for {len(x)} inputs; return a tensor with one row per input"
        )
    return outputs


def _try_loss(problem: Problem, outputs: Tensor) -> None:
    """Run the loss on those outputs, and on each of them twice, which must not change a mean."""
    y = _extremes(problem.targets)
    try:
        with torch.no_grad():
            once = torch.as_tensor(problem.loss(outputs, y))
            twice = torch.as_tensor(problem.loss(torch.cat([outputs, outputs]), torch.cat([y, y])))
    except Exception as error:
        raise ConfigError(
            f"loss failed on outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(y.shape)}: {type(error).__name__}: {error}"
        ) from error
    if once.numel() != 1 or not math.isfinite(float(once)):
        raise ConfigError(f"loss={once} is not one finite number; return the mean over the batch")
    if not math.isclose(float(once), float(twice), rel_tol=1e-3, abs_tol=1e-6):
        raise ConfigError(
            f"loss={float(once):.6g} of {len(y)} samples became {float(twice):.6g} when each was counted "
            "twice; return the mean over the batch, not the sum"
        )
    if _compares_all_pairs(problem, outputs):
        raise ConfigError(
            "loss compares each output with every target, since outputs have shape (n, 1) and targets (n,); "
            "pass targets of shape (n, 1), as targets[:, None]"
        )


def _compares_all_pairs(problem: Problem, outputs: Tensor) -> bool:
    """Whether the loss broadcasts outputs (n, 1) against targets (n,), as arithmetic does without a word."""
    if problem.targets.ndim != 1 or outputs.shape != (2, 1):
        return False
    outputs = outputs + torch.tensor([[0.0], [0.25]], device=outputs.device)  # which a new model may have equal
    y = torch.stack([problem.targets.min(), problem.targets.max()])
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            whole, first, second = (float(problem.loss(outputs[at], y[at])) for at in (slice(2), slice(1), slice(1, 2)))
    except Exception:  # not outputs that this loss may see
        return False
    return not math.isclose(whole, (first + second) / 2, rel_tol=1e-3, abs_tol=1e-6)


def _extremes(targets: Tensor) -> Tensor:
    """Return two targets that a loss may stumble over, if any: the least and the largest label, or the first ones."""
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) < 2:
        return targets[:2]
    return torch.stack([targets.min(), targets.max()])


def _try_gradient(problem: Problem) -> None:
    """Take one gradient as local steps do, or raise ConfigError; torch's generator is put back."""
    x, y = problem.inputs[:2], problem.targets[:2]
    if len(x) == 1:  # a batch, whose statistics have a variance
        x, y = torch.cat([x, x]), torch.cat([y, y])
    flat = torch.from_numpy(problem.initial_params).to(x.device).requires_grad_()
    try:
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.autograd.grad(problem.objective(flat, x, y), flat)
    except Exception as error:
        raise ConfigError(
            f"the loss of the model has no gradient on two samples, in training: {type(error).__name__}: {error}"
        ) from error


def draws(problem: Problem) -> bool:
    """Tell whether the model or the loss, as in training, moves torch's generator, which is put back."""
    x, y = problem.inputs[:2], problem.targets[:2]
    flat, gpus = torch.from_numpy(problem.initial_params).to(x.device), [x.device] if x.is_cuda else []

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]

    with torch.no_grad(), torch.random.fork_rng(devices=gpus):
        before = states()
        problem.loss(problem.outputs(flat, x), y)
        return not all(map(torch.equal, before, states()))


def _has_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Tell whether targets are numbers of outputs."""
    return outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1 and not targets.is_floating_point()


def _label_kind(outputs: Tensor, targets: Tensor, loss: Loss) -> LabelKind | None:
    """Tell how accuracy is counted: class numbers, zeros and ones for a single output, or not at all."""
    if _has_classes(outputs, targets):
        return "classes"
    is_single = outputs[0].numel() == 1 and targets[0].numel() == 1
    if not is_single or not bool(((targets == 0) | (targets == 1)).all()):
        return None
    return "probability" if _is_met_by_targets(loss, outputs, targets[:2]) else "logit"


def _is_met_by_targets(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Tell whether an output of 1 meets a target of 1, as a probability does; a logit could be larger still."""
    one = torch.ones_like(targets)
    with torch.no_grad():
        met, missed = (float(loss(torch.full_like(outputs, value), one)) for value in (1.0, 0.0))
    return met < 0.2 * missed


def _require_labels(targets: Tensor, num_outputs: int) -> None:
    """Raise ConfigError unless every target is one of the model's outputs."""
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_outputs:
        raise ConfigError(
            f"target={low if low < 0 else high} is outside the label range; the model has {num_outputs} "
            f"outputs, so labels are 0..{num_outputs - 1}"
        )


def _shape(outputs: Any) -> str:
    return f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
