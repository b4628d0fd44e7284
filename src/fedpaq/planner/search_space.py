"""SearchSpace: which local steps, cohorts, levels and step sizes a plan chooses from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedpaq.config import require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.quantizers import Identity, LowPrecision, Quantizer

LOCAL_STEPS = (1, 2, 5, 10, 20, 50)
LEVELS = (1, 5, 10, None)
SHARES = (0.1, 0.2, 0.5, 1.0)  # of the clients that may take part
STEP_SIZES = tuple(2.0**power for power in range(-1, 7))  # times 1 / L


@dataclass(frozen=True, order=True)
class RoundSetting:
    """What fixes the cost of a round: tau, r and s (0: no quantizer)."""

    local_steps: int
    clients_per_round: int
    levels: int

    @property
    def quantizer(self) -> Quantizer:
        """The quantizer of this setting."""
        return LowPrecision(self.levels) if self.levels else Identity()

    def __str__(self) -> str:
        levels = f"s={self.levels}" if self.levels else "no quantizer"
        return f"tau={self.local_steps}, r={self.clients_per_round}, {levels}"


@dataclass(frozen=True)
class SearchSpace:
    """The choices; every combination of the first three is a setting."""

    local_steps: Sequence[int]
    clients_per_round: Sequence[int]
    levels: Sequence[int | None]
    step_sizes: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("local_steps", "clients_per_round", "levels", "step_sizes"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name}={list(values)} must hold at least one value, and none twice")
        for name in ("local_steps", "clients_per_round"):
            for value in getattr(self, name):
                require_int(name, value, 1)
        for step_size in self.step_sizes:
            require_positive("step_sizes", step_size)
        self.settings()

    def settings(self) -> list[RoundSetting]:
        """Return every setting."""
        return list(self._settings())

    def _settings(self) -> Iterator[RoundSetting]:
        for levels in self.levels:
            if levels is not None:
                LowPrecision(levels)  # refuses what the quantizer would
            for clients in self.clients_per_round:
                for steps in self.local_steps:
                    yield RoundSetting(steps, clients, levels or 0)


def default_cohorts(max_clients: int) -> list[int]:
    """Return tenth, fifth, half and all of ``max_clients``.

    >>> default_cohorts(50)
    [5, 10, 25, 50]
    """
    return sorted({max(1, round(share * max_clients)) for share in SHARES})
