"""Fingerprint: everything that fixes the bits of a run, as plain JSON values.

Two runs with equal fingerprints end in equal params, so one may continue the other's checkpoint.
Data and schedules are hashed by value: an object's repr or address says nothing in another process.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import torch

from fedpaq.config import FedPAQConfig
from fedpaq.problems import Problem


def fingerprint(problem: Problem, configs: Sequence[FedPAQConfig], **settings: Any) -> dict[str, Any]:
    """Return what identifies a run: the problem with its data, the configs, the other settings."""
    return {
        "problem": describe_problem(problem),
        "configs": [describe_config(config) for config in configs],
        **{name: describe(value) for name, value in settings.items()},
    }


def describe_problem(problem: Problem) -> dict[str, Any]:
    """Return the problem's name, sizes and layers, and one hash over its data, partition and numbers."""
    digest, loss = hashlib.sha256(), problem.loss
    of_loss = loss.state_dict().values() if isinstance(loss, torch.nn.Module) else ()
    constants = [*problem.constants(), *of_loss]
    for values in (
        problem.inputs.cpu().numpy(),
        problem.targets.cpu().numpy(),
        problem.partition.indices,
        problem.partition.offsets,
        problem.initial_params,
        *(constant.detach().cpu().reshape(-1).view(torch.uint8).numpy() for constant in constants),
    ):
        digest.update(f"{values.dtype.str}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)  # type: ignore[arg-type]
    return {
        "name": problem.name,
        "dimension": problem.dimension,
        "num_clients": problem.num_clients,
        "regularization": problem.regularization,
        "model": " ".join(repr(problem.model).split()),  # the layers too: two Sequentials may differ in them
        "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
        "data_sha256": digest.hexdigest(),
        "probe": probe(problem),
    }


def probe(problem: Problem) -> str:
    """Return loss and gradient of two samples at x_0: two models, or two losses, may have one name.

    Three digits, so that another machine or number of threads does not make it another run.
    """
    x, y = problem.inputs[:2], problem.targets[:2]
    params = torch.from_numpy(problem.initial_params).to(x.device)
    with problem.quiet(), torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(0)  # of dropout
        (gradient,) = torch.autograd.grad(problem.objective(params.requires_grad_(), x, y), params)
        with torch.no_grad():
            loss = problem.objective(params, x, y)
    return f"loss {float(loss):.3g}, gradient {float(gradient.double().norm()):.3g}"


def describe_config(config: FedPAQConfig) -> dict[str, Any]:
    """Return the config; a schedule of step sizes by the hash of its values."""
    values = config.to_dict()
    if callable(config.step_size):
        steps = [config.step_size_at(round) for round in range(config.num_rounds)]
        values["step_size"] = f"sha256:{hashlib.sha256(np.array(steps, '<f8').tobytes()).hexdigest()}"
    return values


def describe(value: Any) -> Any:
    """Return a plain value, or the type, name and fields of an object such as a quantizer."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    fields = asdict(value) if is_dataclass(value) and not isinstance(value, type) else {}
    fields = {key: field.item() if isinstance(field, np.generic) else field for key, field in fields.items()}
    plain = {key: field for key, field in fields.items() if isinstance(field, bool | int | float | str | None)}
    return {"type": type(value).__qualname__, "name": getattr(value, "name", ""), **plain}
