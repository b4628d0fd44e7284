"""SearchSpace: which local steps, cohorts, quantizers, downlinks and step sizes a plan chooses from."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any

from fedpaq.config import plain_number, require_int, require_step_size
from fedpaq.downlink import Changes, Dense, Downlink, as_downlink
from fedpaq.errors import ConfigError
from fedpaq.quantizers import Identity, LowPrecision, Quantizer, as_quantizer, text_of
from fedpaq.quantizers.rotated.quantizer import LEAST_BYTES, MOST_BITS, Rotated
from fedpaq.theory.round_setting import RoundSetting

LOCAL_STEPS = (1, 2, 5, 10, 20, 50)
LEVELS = (1, 5, 10)
RATES = (0.03, 0.3)  # bits per coordinate of Rotated; a plan then tries rates between them
RATE_FACTOR = 2.5
DOWNLINKS = ("dense", "rotated:1", "rotated:0.2")  # where downloads are priced
SHARES = (0.1, 0.2, 0.5, 1.0)  # of the clients that may take part
CHOICES = ("local_steps", "clients_per_round", "quantizers", "step_sizes", "downlinks")
STEP_SIZES = tuple(2.0**power for power in range(-1, 7))  # times 1 / L


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The choices; every combination of local steps, cohort, quantizer and downlink is a round setting.

    A quantizer or downlink may be given as its text, such as "low-precision:4,bucket_size=128". ``levels`` is the
    short form: s for ``LowPrecision(s)``, None for no quantizer. With ``refine`` a plan also tries the rates
    beside those of its best settings.

    >>> space = SearchSpace(local_steps=[2], clients_per_round=[5], levels=[4, None], step_sizes=[0.1])
    >>> [str(setting) for setting in space.settings()]
    ['tau=2, r=5, s=4', 'tau=2, r=5, no quantizer']
    """

    local_steps: Sequence[int]
    clients_per_round: Sequence[int]
    quantizers: Sequence[Quantizer | str] = ()
    levels: InitVar[Sequence[int | None]] = ()
    step_sizes: Sequence[float]
    downlinks: Sequence[Downlink | str] = (Dense(),)
    refine: bool = False

    def __post_init__(self, levels: Sequence[int | None]) -> None:
        chosen = {name: _listed(name, getattr(self, name)) for name in CHOICES}
        by_levels = [Identity() if s is None else LowPrecision(s) for s in _listed("levels", levels)]
        chosen["quantizers"] = [*map(as_quantizer, chosen["quantizers"]), *by_levels]
        chosen["downlinks"] = [*map(as_downlink, chosen["downlinks"])]
        for name in ("local_steps", "clients_per_round"):
            for value in chosen[name]:
                require_int(name, value, 1)
        for step_size in chosen["step_sizes"]:
            require_step_size("step_sizes", step_size)
        for name, values in chosen.items():
            if not values or any(value in values[:at] for at, value in enumerate(values)):
                shown = [text_of(value) for value in values] if name == "quantizers" else values
                raise ConfigError(f"{name}={shown} is empty or repeats a value; give at least one, each once")
            object.__setattr__(self, name, [*map(plain_number, values)])

    def settings(self) -> list[RoundSetting]:
        """Return every round setting."""
        return [
            RoundSetting(steps, clients, as_quantizer(quantizer), as_downlink(downlink))
            for downlink in self.downlinks
            for quantizer in self.quantizers
            for clients in self.clients_per_round
            for steps in self.local_steps
        ]


def _listed(name: str, values: Any) -> list[Any]:
    """Return some choices as a list, or raise ConfigError."""
    try:
        if not isinstance(values, str):
            return list(values)
    except TypeError:
        pass
    raise ConfigError(f"{name}={values!r} is not a list; write [...], also around a single choice")


def default_cohorts(max_clients: int) -> list[int]:
    """Return a tenth, a fifth, half and all of ``max_clients``.

    >>> default_cohorts(50)
    [5, 10, 25, 50]
    """
    return sorted({max(1, round(share * max_clients)) for share in SHARES})


def default_quantizers(dimension: int) -> list[Quantizer]:
    """Return 1, 5 and 10 levels, ``Rotated`` at rates above its shortest payload, and none.

    >>> [text_of(quantizer) for quantizer in default_quantizers(785)]
    ['low-precision:1', 'low-precision:5', 'low-precision:10', 'rotated:0.3', 'none']
    """
    rates = [rate for rate in RATES if rate * dimension / 8 > LEAST_BYTES]
    return [*map(LowPrecision, LEVELS), *(Rotated(bits=rate) for rate in rates), Identity()]


def beside(setting: RoundSetting, dimension: int) -> list[RoundSetting]:
    """Return the setting with a lower and a higher rate up and down, where it has one that can be changed.

    >>> [str(other) for other in beside(RoundSetting(5, 10, LowPrecision(4)), 785)]
    ['tau=5, r=10, s=2', 'tau=5, r=10, s=10']
    """
    found = [replace(setting, quantizer=other) for other in _other_rates(setting.quantizer, dimension)]
    down = setting.downlink
    if isinstance(down, Changes):
        found += [
            replace(setting, downlink=replace(down, quantizer=q)) for q in _other_rates(down.quantizer, dimension)
        ]
    return found


def _other_rates(own: Quantizer, dimension: int) -> list[Quantizer]:
    others: list[Quantizer] = []
    for factor in (1 / RATE_FACTOR, RATE_FACTOR):
        if isinstance(own, LowPrecision):
            others.append(replace(own, levels=max(1, round(own.levels * factor))))
        elif isinstance(own, Rotated) and own.bits is not None:
            other = Rotated(bits=min(float(f"{own.bits * factor:.2g}"), MOST_BITS))
            if other.target_bytes(dimension) != own.target_bytes(dimension):
                others.append(other)
    return [other for other in others if other != own]
