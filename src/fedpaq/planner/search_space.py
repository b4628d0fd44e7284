"""SearchSpace: which local steps, cohorts, quantizers and step sizes a plan chooses from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass

from fedpaq.config import require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.quantizers import Identity, LowPrecision, Quantizer, as_quantizer, text_of
from fedpaq.theory.round_setting import RoundSetting

LOCAL_STEPS = (1, 2, 5, 10, 20, 50)
QUANTIZERS: tuple[Quantizer, ...] = (LowPrecision(1), LowPrecision(5), LowPrecision(10), Identity())
SHARES = (0.1, 0.2, 0.5, 1.0)  # of the clients that may take part
STEP_SIZES = tuple(2.0**power for power in range(-1, 7))  # times 1 / L


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The choices; every combination of local steps, cohort and quantizer is a round setting.

    A quantizer may be given as its text, such as "low-precision:4,bucket_size=128". ``levels`` is the
    short form: s for ``LowPrecision(s)``, None for no quantizer.

    >>> space = SearchSpace(local_steps=[2], clients_per_round=[5], levels=[4, None], step_sizes=[0.1])
    >>> [str(setting) for setting in space.settings()]
    ['tau=2, r=5, s=4', 'tau=2, r=5, no quantizer']
    """

    local_steps: Sequence[int]
    clients_per_round: Sequence[int]
    quantizers: Sequence[Quantizer | str] = ()
    levels: InitVar[Sequence[int | None]] = ()
    step_sizes: Sequence[float]

    def __post_init__(self, levels: Sequence[int | None]) -> None:
        by_levels = [Identity() if s is None else LowPrecision(s) for s in levels]
        object.__setattr__(self, "quantizers", [*map(as_quantizer, self.quantizers), *by_levels])
        for name in ("local_steps", "clients_per_round", "quantizers", "step_sizes"):
            values = list(getattr(self, name))
            if not values or len(set(values)) < len(values):
                shown = [text_of(value) for value in values] if name == "quantizers" else values
                raise ConfigError(f"{name}={shown} is empty or repeats a value; give at least one, each once")
        for name in ("local_steps", "clients_per_round"):
            for value in getattr(self, name):
                require_int(name, value, 1)
        for step_size in self.step_sizes:
            require_positive("step_sizes", step_size)

    def settings(self) -> list[RoundSetting]:
        """Return every round setting."""
        return [
            RoundSetting(steps, clients, as_quantizer(quantizer))
            for quantizer in self.quantizers
            for clients in self.clients_per_round
            for steps in self.local_steps
        ]


def default_cohorts(max_clients: int) -> list[int]:
    """Return a tenth, a fifth, half and all of ``max_clients``.

    >>> default_cohorts(50)
    [5, 10, 25, 50]
    """
    return sorted({max(1, round(share * max_clients)) for share in SHARES})
