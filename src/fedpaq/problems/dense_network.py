"""DenseNetwork: the paper's own models (logistic regression, dense ReLU networks), recognised.

A recognised model can be trained by plain matrix products without autograd, and many params can
be evaluated by one large product. Anything else takes the general path.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
CROSS_ENTROPY, LOGISTIC, SQUARED = "cross-entropy", "logistic", "squared"


@dataclass(frozen=True)
class DenseNetwork:
    """Linear, ReLU, ..., Linear; ``widths`` d_0..d_L, the params of layer l are W (out, in), then b (out)."""

    widths: tuple[int, ...]
    loss: str

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


def recognise(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> DenseNetwork | None:
    """Return the network if the model is Linear (ReLU Linear)* under a known loss, else None."""
    layers = list(model) if type(model) is nn.Sequential else [model]
    if any(module._forward_hooks or module._forward_pre_hooks for module in (model, *layers)):
        return None  # pruning, weight norms: the outputs are not those of the layers alone
    if len(layers) % 2 == 0 or any(type(layer) is not nn.ReLU for layer in layers[1::2]):
        return None
    linear = [layer for layer in layers[::2] if isinstance(layer, nn.Linear) and _is_plain(layer)]
    if len(linear) != len(layers[::2]) or inputs.ndim != 2:
        return None
    if len({id(value) for layer in linear for value in (layer.weight, layer.bias)}) < 2 * len(linear):
        return None  # layers share weights, so x holds them once
    if inputs.dtype != torch.float32:
        return None
    widths = (linear[0].in_features, *(layer.out_features for layer in linear))
    kind = _loss_kind(loss)
    expected = (torch.int64, (len(inputs),)) if kind == CROSS_ENTROPY else (torch.float32, (len(inputs), widths[-1]))
    if kind is None or (targets.dtype, tuple(targets.shape)) != expected:
        return None
    return DenseNetwork(widths, kind)


def _is_plain(layer: nn.Linear) -> bool:
    return (
        type(layer) is nn.Linear
        and layer.bias is not None
        and layer.weight.dtype == torch.float32
        and layer.weight.requires_grad
        and layer.bias.requires_grad
    )


def _loss_kind(loss: Loss) -> str | None:
    if loss is functional.cross_entropy:
        return CROSS_ENTROPY
    if loss is functional.binary_cross_entropy_with_logits:
        return LOGISTIC
    if loss is functional.mse_loss:
        return SQUARED
    return _module_loss_kind(loss) if getattr(loss, "reduction", None) == "mean" else None


def _module_loss_kind(loss: Loss) -> str | None:
    """Recognise loss modules with nothing but default settings."""
    if type(loss) is nn.CrossEntropyLoss:
        plain = loss.weight is None and loss.ignore_index == -100 and loss.label_smoothing == 0
        return CROSS_ENTROPY if plain else None
    if type(loss) is nn.BCEWithLogitsLoss:
        return LOGISTIC if loss.weight is None and loss.pos_weight is None else None
    return SQUARED if type(loss) is nn.MSELoss else None
