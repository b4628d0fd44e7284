"""Tracing: a dense network found in a model and a loss that are written in some other way.

``torch.fx`` says which operations a module or a loss is made of. Only Linear, ReLU and changes of shape are
accepted, and only one known loss with its default settings. Then values and gradients on random numbers must agree
with those of the network: a trace can overlook what a comparison shows, and a comparison what a trace shows.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

RELU = "relu"
_RELUS = (functional.relu, torch.relu, "relu", "relu_")
_METHODS = ("flatten", "view", "reshape", "size", "squeeze", "dim")
_SHAPES = (torch.flatten, torch.squeeze, torch.reshape, getattr, operator.getitem, *_METHODS)
_CASTS = ("float", "long", "to", "contiguous", "view_as", "type_as", "unsqueeze")
_DEFAULTS = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0}  # all others: None
_CLOSE = 1e-3  # relative to the norm


class _Through(fx.Tracer):
    """Looks into every module but PyTorch's own layers; a loss may use a module from outside."""

    def __init__(self, leaves: bool) -> None:
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._leaves and super().is_leaf_module(m, module_qualified_name)

    def path_of_module(self, mod: nn.Module) -> str:
        try:
            return super().path_of_module(mod)
        except NameError:
            return "outside"


def linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """Return the layers of Linear (ReLU Linear)*, in order, or None for any other model."""
    if any(map(is_altered, model.modules())):
        return None
    whole = nn.Sequential(model)  # a root is looked into, even a Linear
    nodes, modules = _nodes(whole, leaves=True), dict(whole.named_modules())
    steps: list[nn.Linear | str] = []
    for node in nodes or ():
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        if type(module) is nn.Linear:
            steps.append(module)
        elif type(module) is nn.ReLU or (module is None and node.target in _RELUS):
            steps.append(RELU)
        elif not (type(module) in (nn.Flatten, nn.Identity) or (module is None and _is_shape(node))):
            return None
    layers = [step for step in steps[::2] if isinstance(step, nn.Linear)]
    fits = len(steps) % 2 == 1 and len(layers) == len(steps[::2]) and set(steps[1::2]) <= {RELU}
    return layers if fits else None


def is_altered(module: nn.Module) -> bool:
    """Tell whether more happens in a module than its class says, forwards or backwards."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def known_loss(loss: Callable[..., Any], known: Sequence[Any]) -> Any:
    """Return the function among those ``known`` that a loss is, apart from shapes and types; None if it is another."""
    found = []
    for node in _nodes(loss, leaves=False) or ():
        if node.op == "call_function" and node.target in known:
            if len(node.args) > 2 or any(value != _DEFAULTS.get(name) for name, value in node.kwargs.items()):
                return None
            found.append(node.target)
        elif not (_is_shape(node) or (node.op == "call_method" and node.target in _CASTS)):
            return None
    return found[0] if len(found) == 1 else None


def agree(one: Callable[[list[Tensor]], Tensor], other: Callable[[list[Tensor]], Tensor], start: list[Tensor]) -> bool:
    """Tell whether two functions of tensors have the same value and gradient where those start, and far from there."""
    for scale in (1.0, 30.0):
        found = []
        for function in (one, other):
            leaves = [(scale * tensor).requires_grad_() for tensor in start]
            try:
                value = function(leaves)
                gradients = torch.autograd.grad(value, leaves)
            except (RuntimeError, ValueError, TypeError, IndexError):
                return False
            found.append(torch.cat([value.detach().reshape(-1), *(gradient.reshape(-1) for gradient in gradients)]))
        if not float((found[0] - found[1]).norm()) <= _CLOSE * float(found[1].norm()):
            return False
    return True


def _nodes(root: Any, *, leaves: bool) -> list[fx.Node] | None:
    """Return the operations of a module or function, or None where they depend on the data."""
    try:
        graph = _Through(leaves).trace(root)
    except Exception:  # whatever the user's code raises when it meets a proxy
        return None
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


def _is_shape(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method") and node.target in _SHAPES
