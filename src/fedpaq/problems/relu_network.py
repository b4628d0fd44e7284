"""ReLU networks: Linear and ReLU layers over flat inputs, with initial weights of our own.

Weights are uniform in +-sqrt(6 / fan_in) before a ReLU (He), so activations keep their scale, and in
+-sqrt(1 / fan_in) before the outputs, so training starts near the loss of a uniform guess; biases
are zero. The draws are Philox words: a seed gives the same network on every platform, and torch's
global generator is left alone.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

from fedpaq.randomness import Key, Purpose, uniforms


def relu_network(widths: Sequence[int], *, seed: int = 0) -> nn.Sequential:
    """Return Linear, ReLU, Linear, ... from ``widths[0]`` inputs to ``widths[-1]`` outputs.

    >>> sum(value.numel() for value in relu_network([3072, 29, 29, 29, 29, 10]).parameters())
    92027
    """
    layers: list[nn.Module] = []
    for number, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        is_last = number == len(widths) - 2
        layers.append(zero_linear(fan_in, fan_out))
        _fill(layers[-1], bound=math.sqrt((1 if is_last else 6) / fan_in), key=Key(seed=seed, round=number))
        if not is_last:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def zero_linear(fan_in: int, fan_out: int) -> nn.Linear:
    """Return a Linear layer of zeros, drawing nothing from torch's generator."""
    layer = nn.Linear(fan_in, fan_out, device="meta")  # ``to_empty`` would import sympy, for half a second
    layer.weight, layer.bias = (
        nn.Parameter(torch.zeros(fan_out, fan_in, dtype=torch.float32)),
        nn.Parameter(torch.zeros(fan_out, dtype=torch.float32)),
    )
    return layer


def _fill(layer: nn.Module, *, bound: float, key: Key) -> None:
    weight = layer.get_parameter("weight")
    draws = (2.0 * uniforms(Purpose.INITIAL_PARAMS, key, weight.numel()) - 1.0) * bound
    with torch.no_grad():
        weight.copy_(torch.from_numpy(draws).view(weight.shape))
