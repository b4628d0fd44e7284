"""FedPAQConfig: the parameters of Algorithm 1, validated once.

T = ``total_steps`` local steps are split into K = T / tau rounds of tau = ``local_steps``.
"""

import math
import operator
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, SupportsIndex

from fedpaq.errors import ConfigError, unknown_name

StepSize = float | Callable[[int], float]
_SHAPE = ("clients_per_round", "local_steps", "total_steps", "batch_size", "optimizer", "precision")
_COUNTS = ("clients_per_round", "local_steps", "total_steps", "batch_size", "seed")
OPTIMIZERS = {"sgd": None, "momentum": 0.9, "adamw": 0.01}  # each with the default of its number
PRECISIONS = ("float32", "bfloat16")
LARGEST = sys.float_info.max  # an integer may be larger, and then has no float
STEP_SIZES = (2.0**-126, (2 - 2.0**-23) * 2.0**127)  # float32's normal numbers
EXAMPLE = "FedPAQConfig(clients_per_round=25, local_steps=5, total_steps=100, step_size=0.1)"
MAX_STEPS = 2**53  # bounds count steps in doubles


def require_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise ConfigError unless ``value`` is an integer in [low, high]."""
    if type(value) is int and value >= low and (high is None or value <= high):
        return  # the usual case, before any text is made: keys check three integers per message
    allowed = f"{low}..{high}" if high is not None else f"an integer >= {low}"
    try:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise TypeError
        value = operator.index(value)  # refuses arrays, which have the method all the same
    except TypeError:
        raise ConfigError(f"{name}={value!r} is not an integer; choose {allowed}") from None
    if value < low or (high is not None and value > high):
        raise ConfigError(f"{name}={value} is out of range; choose {allowed}")


def require_positive(name: str, value: object, *, zero_allowed: bool = False) -> None:
    """Raise ConfigError unless ``value`` is a finite positive number."""
    floor = ">= 0" if zero_allowed else "> 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{name}={value!r} is not a number; choose a finite number {floor}")
    number = plain_number(value)
    if not 0 <= number <= LARGEST or (number == 0 and not zero_allowed):  # also refuses NaN
        raise ConfigError(f"{name}={value} is not allowed; choose a finite number {floor}")


def require_step_size(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is positive and a step of that size can be taken in float32."""
    require_positive(name, value)
    low, high = STEP_SIZES
    if not low <= plain_number(value) <= high:
        raise ConfigError(f"{name}={value} is beyond float32, which params are; choose {low:.2g}..{high:.2g}")


def require_instance_with(name: str, value: object, members: Sequence[str], examples: str) -> None:
    """Raise ConfigError unless ``value`` is an object, not a class, that has these members."""
    if isinstance(value, type):
        raise ConfigError(f"{name}={value.__name__} is a class; pass an instance of it, or one of {examples}")
    missing = [member for member in members if not hasattr(value, member)]
    if missing:
        raise ConfigError(f"{name}={value!r} has no {' and no '.join(missing)}; pass one of {examples}")


def require_path(name: str, value: object, example: str) -> None:
    """Raise ConfigError unless ``value`` is a path that names something."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ConfigError(f"{name}={value!r} is not a path; write e.g. {example!r}")


def require_function(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` can be called, or is None."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r} cannot be called; pass a function")


def plain_number(value: Any) -> Any:
    """Return a number of NumPy's as Python's own, which JSON can hold; anything else as it is.

    >>> import numpy as np
    >>> plain_number(np.int64(3)), plain_number(0.5), plain_number(None)
    (3, 0.5, None)
    """
    if type(value) in (bool, int, float) or not isinstance(value, Real):
        return value
    return operator.index(value) if isinstance(value, Integral) else float(value)


def round_to_4_digits(step_size: float) -> float:
    """Return a tuned step size that is short enough to type, to repeat a run.

    >>> round_to_4_digits(0.0883883)
    0.08839
    """
    return float(f"{step_size:.4g}")


def parse_optimizer(text: object) -> tuple[str, float]:
    """Return the optimizer named, and its number: the share of momentum kept, or AdamW's weight decay.

    >>> parse_optimizer("sgd"), parse_optimizer("momentum:0.95"), parse_optimizer("adamw")
    (('sgd', 0.0), ('momentum', 0.95), ('adamw', 0.01))
    """
    name, _, number = str(text).partition(":")
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, tuple(OPTIMIZERS))
    default = OPTIMIZERS[name]
    try:
        value = float(number) if number else default or 0.0
    except ValueError:
        value = math.nan
    if not 0 <= value < 1 or (number and default is None):
        allowed = "'sgd'" if default is None else f"{name!r} or '{name}:x' with 0 <= x < 1"
        raise ConfigError(f"optimizer={text!r} cannot be read; choose {allowed}")
    return name, value


@dataclass(frozen=True)
class WarmupCosine:
    """A step size that grows to ``peak`` over ``warmup`` rounds and falls along a cosine to ``last``.

    It reaches ``last`` after ``rounds`` and stays there: a longer run needs ``last`` above 0.

    >>> schedule = WarmupCosine(peak=0.1, rounds=10, warmup=2)
    >>> [round(schedule(k), 4) for k in (0, 1, 2, 6, 9)]
    [0.05, 0.1, 0.1, 0.05, 0.0038]
    """

    peak: float
    rounds: int
    warmup: int = 0
    last: float = 0.0

    def __post_init__(self) -> None:
        require_step_size("peak", self.peak)
        require_int("rounds", self.rounds, 1)
        require_int("warmup", self.warmup, 0, self.rounds - 1)
        require_positive("last", self.last, zero_allowed=True)
        if self.last > self.peak:
            raise ConfigError(f"last={self.last} is above peak={self.peak}; choose 0..{self.peak}")

    def __call__(self, round: int) -> float:
        """Return eta of the given round."""
        if round < self.warmup:
            return self.peak * (round + 1) / self.warmup
        share = min(1.0, (round - self.warmup) / (self.rounds - self.warmup))
        return self.last + (self.peak - self.last) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True, kw_only=True)
class FedPAQConfig:
    """Parameters of one FedPAQ run (the paper's symbol in brackets).

    ``clients_per_round`` [r], ``local_steps`` [tau], ``total_steps`` [T], ``batch_size`` [B]
    (None: each step uses all of the client's samples), ``step_size`` [eta]: a number, or a
    function of the round k = 0, 1, ... (``WarmupCosine`` is one); ``seed`` fixes every draw of the run.

    ``optimizer`` says how a local step uses its gradient: ``sgd`` as in the paper, ``momentum:0.9`` or
    ``adamw:0.01`` (the number is the share kept, or the weight decay). Its state starts anew in every round.
    ``precision="bfloat16"`` computes local gradients under autocast; params and updates stay float32.

    >>> config = FedPAQConfig(clients_per_round=25, local_steps=5, total_steps=100, step_size=0.5)
    >>> config.num_rounds
    20
    """

    clients_per_round: int
    local_steps: int
    total_steps: int
    batch_size: int | None = 10
    step_size: StepSize
    seed: int = 0
    optimizer: str = "sgd"
    precision: str = "float32"

    def __post_init__(self) -> None:
        require_int("clients_per_round", self.clients_per_round, 1)
        require_int("local_steps", self.local_steps, 1)
        require_int("total_steps", self.total_steps, 1)
        if self.batch_size is not None:
            require_int("batch_size", self.batch_size, 1)
        require_int("seed", self.seed, 0, 2**64 - 1)
        for name in _COUNTS:  # NumPy's integers overflow, and JSON cannot hold them
            if getattr(self, name) is not None:
                object.__setattr__(self, name, operator.index(getattr(self, name)))
        parse_optimizer(self.optimizer)
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.total_steps % self.local_steps:
            raise ConfigError(
                f"total_steps={self.total_steps} is not a multiple of local_steps={self.local_steps}; "
                f"a round is local_steps steps, so choose a multiple, e.g. "
                f"{-(-self.total_steps // self.local_steps) * self.local_steps}"
            )
        if not callable(self.step_size):
            require_step_size("step_size", self.step_size)
            object.__setattr__(self, "step_size", plain_number(self.step_size))
            return
        require_instance_with("step_size", self.step_size, (), "0.1, WarmupCosine(peak=0.1, rounds=20)")
        if isinstance(self.step_size, WarmupCosine) and not self.step_size(self.num_rounds - 1):
            raise ConfigError(
                f"step_size={self.step_size} is 0 from round {self.step_size.rounds} on, and the run has "
                f"{self.num_rounds}; choose rounds={self.num_rounds}, or last above 0"
            )

    @property
    def num_rounds(self) -> int:
        """K = T / tau."""
        return self.total_steps // self.local_steps

    def step_size_at(self, round: int) -> float:
        """Return eta of the given round, checked when it comes from a schedule."""
        if not callable(self.step_size):
            return float(self.step_size)
        value = self.step_size(round)
        require_step_size(f"step_size(round={round})", value)
        return float(value)

    def check_against(self, num_clients: int) -> None:
        """Raise ConfigError if ``num_clients`` clients cannot supply a round's participants."""
        if self.clients_per_round > num_clients:
            raise ConfigError(
                f"clients_per_round={self.clients_per_round} exceeds num_clients={num_clients}; "
                f"participants are drawn without replacement, so choose 1..{num_clients}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; a schedule is named by its repr."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if callable(self.step_size):
            values["step_size"] = repr(self.step_size)
        return values


def require_same_shape(configs: Sequence[FedPAQConfig]) -> FedPAQConfig:
    """Return the first config after checking that all share r, tau, T, B and the optimizer, as one batch must."""
    if not configs:
        raise ConfigError("configs=[] is empty; a sweep needs at least one config")
    for config in configs:
        if not isinstance(config, FedPAQConfig):
            raise ConfigError(f"config={config!r} is not a FedPAQConfig; make one, e.g. with {EXAMPLE}")
    for name in _SHAPE:
        values = {getattr(config, name) for config in configs}
        if len(values) > 1:
            raise ConfigError(
                f"{name} takes {len(values)} values in one sweep; only step_size and seed may differ, "
                f"so sweep each {name} on its own"
            )
    return configs[0]
