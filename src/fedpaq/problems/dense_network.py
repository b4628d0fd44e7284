"""DenseNetwork: the paper's own models (logistic regression, dense ReLU networks), recognised.

A recognised model can be trained by plain matrix products without autograd, and many params can
be evaluated by one large product. Anything else takes the general path.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpaq.problems import tracing

Loss = Callable[[Tensor, Tensor], Tensor]
CROSS_ENTROPY, LOGISTIC, SQUARED = "cross-entropy", "logistic", "squared"
_KNOWN: dict[str, Loss] = {
    CROSS_ENTROPY: functional.cross_entropy,
    LOGISTIC: functional.binary_cross_entropy_with_logits,
    SQUARED: functional.mse_loss,
}
_FUNCTIONS: dict[Any, str] = {function: name for name, function in _KNOWN.items()}


@dataclass(frozen=True)
class DenseNetwork:
    """Linear, ReLU, ..., Linear; ``widths`` d_0..d_L, the params of layer l are W (out, in), then b (out)."""

    widths: tuple[int, ...]
    loss: str
    squeezed: bool = False  # the model returns (rows,), not (rows, 1)

    def data(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (N, d_0) and labels (N,) or numbers (N, d_L)."""
        flat = inputs.flatten(1)
        return flat, targets.flatten() if self.loss == CROSS_ENTROPY else targets.reshape(len(flat), -1).float()

    def layers(self, params: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (W (runs, out, in), b (runs, out)) of each layer as views of params (runs, p)."""
        views, start = [], 0
        for before, after in zip(self.widths, self.widths[1:], strict=False):
            weight = params[:, start : start + after * before].view(-1, after, before)
            start += after * before
            views.append((weight, params[:, start : start + after]))
            start += after
        return views

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs of every run on the same inputs: (runs, rows, d_L).

        The first layer of all runs is one product: inputs are read once, whatever the number of runs.
        """
        (first, bias), *rest = self.layers(params)
        runs, width, before = first.shape
        hidden = inputs @ first.reshape(runs * width, before).T  # (rows, runs * d_1)
        hidden = hidden.view(len(inputs), runs, width).transpose(0, 1) + bias[:, None, :]
        for weight, bias in rest:
            hidden = torch.baddbmm(bias[:, None, :], hidden.relu_(), weight.transpose(1, 2))
        return hidden

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of every run on the same samples, from outputs (runs, rows, d_L): (runs,) float64."""
        runs = len(outputs)
        if self.loss == CROSS_ENTROPY:
            each = functional.cross_entropy(outputs.flatten(0, 1), targets.repeat(runs), reduction="none")
            return each.view(runs, -1).double().mean(1)
        measure = functional.binary_cross_entropy_with_logits if self.loss == LOGISTIC else functional.mse_loss
        return measure(outputs, targets.expand_as(outputs), reduction="none").double().mean((1, 2))


def recognise(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> DenseNetwork | None:
    """Return the network if the model is Linear (ReLU Linear)* under a known loss, else None.

    What is written with PyTorch's own modules is known by their types; anything else is traced and compared.
    """
    if inputs.dtype != torch.float32 or inputs.ndim < 2 or len(inputs) != len(targets):
        return None
    return _by_types(model, loss, inputs, targets) or _by_tracing(model, loss, inputs, targets)


def _by_types(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> DenseNetwork | None:
    layers = list(model) if type(model) is nn.Sequential else [model]
    if any(map(tracing.is_altered, (model, *layers))):
        return None  # pruning, weight norms: the outputs are not those of the layers alone
    if len(layers) % 2 == 0 or any(type(layer) is not nn.ReLU for layer in layers[1::2]):
        return None
    linear = [layer for layer in layers[::2] if type(layer) is nn.Linear]
    if len(linear) != len(layers[::2]) or inputs.ndim != 2 or not _are_plain(linear):
        return None
    widths, kind = _widths(linear), _loss_kind(loss)
    expected = (torch.int64, (len(inputs),)) if kind == CROSS_ENTROPY else (torch.float32, (len(inputs), widths[-1]))
    if kind is None or (targets.dtype, tuple(targets.shape)) != expected:
        return None
    return DenseNetwork(widths, kind)


def _by_tracing(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> DenseNetwork | None:
    params = list(model.parameters())
    if not params or params[0].ndim != 2 or params[0].shape[1] != inputs[0].numel() or list(model.buffers()):
        return None  # no need to trace a convolution
    if not all(value.requires_grad for value in params):
        return None  # a forward pass may change what is frozen, and a trace would run it
    linear = tracing.linear_layers(model)
    if linear is None or not _are_plain(linear):
        return None
    if [id(value) for value in params] != [id(value) for layer in linear for value in (layer.weight, layer.bias)]:
        return None  # in another order than x has them
    traced = tracing.known_loss(loss, tuple(_FUNCTIONS))
    kind = _loss_kind(loss) or (_FUNCTIONS[traced] if traced is not None else None)
    widths = _widths(linear)
    expected = (torch.int64, 1) if kind == CROSS_ENTROPY else (targets.dtype, widths[-1])
    if kind is None or (targets.dtype, targets[0].numel()) != expected:
        return None
    if targets.dtype not in (torch.int64, torch.float32):
        return None
    return _compared(DenseNetwork(widths, kind), model, loss, inputs, targets)


def _compared(
    network: DenseNetwork, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor
) -> DenseNetwork | None:
    """Return the network if value and gradient are those of the model and loss on random numbers."""
    generator = torch.Generator().manual_seed(0)
    rows, outputs = max(8, network.widths[-1] + 1), network.widths[-1]
    x = torch.randn(rows, *inputs.shape[1:], generator=generator)
    if network.loss == CROSS_ENTROPY:
        y = (torch.arange(rows) % outputs).view(rows, *targets.shape[1:])  # every label
    else:
        y = torch.randint(0, 2, (rows, *targets.shape[1:]), generator=generator).to(targets.dtype)
    names = [name for name, _ in model.named_parameters()]
    start = [torch.randn(value.shape, generator=generator) / value.shape[-1] ** 0.5 for value in model.parameters()]
    shapes = []

    def given(leaves: list[Tensor]) -> Tensor:
        found = torch.func.functional_call(model, dict(zip(names, leaves, strict=True)), (x,))
        shapes.append(tuple(found.shape))
        return loss(found, y)

    def recognised(leaves: list[Tensor]) -> Tensor:
        flat, wanted = network.data(x, y)
        found = network.outputs(torch.cat([leaf.reshape(-1) for leaf in leaves])[None], flat)[0]
        return _KNOWN[network.loss](found, wanted)

    if not tracing.agree(given, recognised, start) or set(shapes) not in ({(rows, outputs)}, {(rows,)}):
        return None
    return replace(network, squeezed=shapes[0] == (rows,))


def _widths(linear: list[nn.Linear]) -> tuple[int, ...]:
    return (linear[0].in_features, *(layer.out_features for layer in linear))


def _are_plain(linear: list[nn.Linear]) -> bool:
    """Tell whether x is made of the weights and biases of these layers, each once."""
    values = [value for layer in linear for value in (layer.weight, layer.bias)]
    if any(value is None or value.dtype != torch.float32 or not value.requires_grad for value in values):
        return False
    return len({id(value) for value in values}) == len(values)  # shared weights are in x once


def _loss_kind(loss: Loss) -> str | None:
    for known, name in _FUNCTIONS.items():
        if loss is known:  # a loss of the user's own need not be hashable
            return name
    return _module_loss_kind(loss) if getattr(loss, "reduction", None) == "mean" else None


def _module_loss_kind(loss: Loss) -> str | None:
    """Recognise loss modules with nothing but default settings."""
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.ignore_index == -100 and loss.label_smoothing == 0
        return CROSS_ENTROPY if plain else None
    if type(loss) is nn.BCEWithLogitsLoss:
        return LOGISTIC if loss.weight is None and loss.pos_weight is None else None
    return SQUARED if type(loss) is nn.MSELoss else None
