"""The five figures of the paper, as data: four panels each, a few curves per panel.

A figure is a problem, a ratio of communication to computation cost, and settings (s, r, tau).
Everything else (n = 50, T = 100, B = 10) is the same for all.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any

from fedpaq.cost_model import CostModel

NUM_CLIENTS, TOTAL_STEPS, BATCH_SIZE = 50, 100, 10  # n, T, B
LEVELS = (1, 5, 10, None)
CLIENTS_PER_ROUND = (5, 10, 25, 50)
LOCAL_STEPS = (1, 2, 5, 10, 20, 50)


@dataclass(frozen=True)
class PaperSetting:
    """What varies from curve to curve: s (None: no quantization) or another quantizer, r and tau."""

    levels: int | None
    clients_per_round: int
    local_steps: int
    other: str | None = None  # the text of a quantizer that the paper does not have, in place of s

    @property
    def slug(self) -> str:
        """A name for files.

        >>> PaperSetting(1, 25, 5).slug, PaperSetting(None, 25, 5).slug
        ('s1-r25-tau5', 'none-r25-tau5')
        >>> PaperSetting(None, 25, 5, "rotated:payload_bytes=30").slug
        'rotated-payload_bytes-30-r25-tau5'
        """
        levels = "none" if self.levels is None else f"s{self.levels}"
        name = levels if self.other is None else re.sub(r"[^\w.]+", "-", self.other)
        return f"{name}-r{self.clients_per_round}-tau{self.local_steps}"

    @property
    def quantizer(self) -> str:
        """The quantizer, as the text that ``fedpaq.quantizers.parse`` reads."""
        if self.other is not None:
            return self.other
        return "none" if self.levels is None else f"low-precision:{self.levels}"

    @property
    def values(self) -> dict[str, Any]:
        """The fields as JSON has them: a setting of the paper's says nothing of other quantizers."""
        return {name: value for name, value in asdict(self).items() if name != "other" or value is not None}

    @property
    def num_rounds(self) -> int:
        """K = T / tau."""
        return TOTAL_STEPS // self.local_steps


@dataclass(frozen=True)
class Panel:
    """One plot: a title, what is fixed, and its curves by label."""

    name: str
    title: str
    fixed: str
    curves: dict[str, PaperSetting]


@dataclass(frozen=True)
class Figure:
    """One row of four plots in the paper, or one plot beside it."""

    name: str
    title: str
    where: str
    problem: str
    ratio: float
    panels: tuple[Panel, ...]
    beside: str | None = None  # the figure whose curves it shares
    downlink_bandwidth: float | None = None  # bits per mean gradient time; None, as in the paper: downloads are free
    round_seconds: float = 0.0  # mean gradient times that every round takes on top
    prices: str = ""  # what its network charges and the paper's does not, in words

    @property
    def folder(self) -> str:
        """The folder of its curves."""
        return self.beside or self.name

    @property
    def settings(self) -> tuple[PaperSetting, ...]:
        """Every distinct setting, in the order the panels need them."""
        return tuple(dict.fromkeys(s for panel in self.panels for s in panel.curves.values()))

    @property
    def cost_model(self) -> CostModel:
        """How its time is modelled; the unit is one mean gradient."""
        more = {"downlink_bandwidth": self.downlink_bandwidth, "round_seconds": self.round_seconds}
        return CostModel.from_ratio(self.ratio, **more)

    def panel(self, name: str) -> Panel:
        """Return the panel called ``name``."""
        return next(panel for panel in self.panels if panel.name == name)


def _panels(fixed: PaperSetting, fedpaq: PaperSetting, qsgd: PaperSetting) -> tuple[Panel, ...]:
    """Vary s, r and tau around ``fixed``, then compare methods; FedAvg is FedPAQ unquantized."""
    s, r, tau = fixed.levels, fixed.clients_per_round, fixed.local_steps
    fedavg = PaperSetting(None, fedpaq.clients_per_round, fedpaq.local_steps)
    methods = {"FedPAQ": fedpaq, "FedAvg": fedavg, "QSGD": qsgd}
    return (
        Panel(
            "levels",
            "quantization levels s",
            f"τ = {tau}, r = {r}",
            {"no quantization" if v is None else f"s = {v}": PaperSetting(v, r, tau) for v in LEVELS},
        ),
        Panel(
            "clients",
            "clients per round r",
            f"s = {s}, τ = {tau}",
            {f"r = {v}": PaperSetting(s, v, tau) for v in CLIENTS_PER_ROUND},
        ),
        Panel("steps", "local steps τ", f"s = {s}, r = {r}", {f"τ = {v}": PaperSetting(s, r, v) for v in LOCAL_STEPS}),
        Panel("methods", "against FedAvg and QSGD", _described(fedpaq, qsgd), methods),
    )


def _described(fedpaq: PaperSetting, qsgd: PaperSetting) -> str:
    return (
        f"s = {fedpaq.levels}, r = {fedpaq.clients_per_round}, τ = {fedpaq.local_steps}; "
        f"QSGD r = {qsgd.clients_per_round}, τ = {qsgd.local_steps}"
    )


_LOGISTIC = _panels(PaperSetting(1, 25, 5), fedpaq=PaperSetting(1, 50, 2), qsgd=PaperSetting(1, 50, 1))
_NETWORK = _panels(PaperSetting(1, 25, 2), fedpaq=PaperSetting(1, 20, 10), qsgd=PaperSetting(1, 50, 1))

FIGURES = {
    "mnist": Figure(
        "mnist", "Logistic regression on MNIST (digits 0 and 8)", "Figure 1, top", "mnist-logistic", 100.0, _LOGISTIC
    ),
    "cifar10-92k": Figure(
        "cifar10-92k",
        "Neural network with 92K parameters on CIFAR-10",
        "Figure 1, bottom",
        "cifar10-mlp-92k",
        1000.0,
        _NETWORK,
    ),
    "cifar10-248k": Figure(
        "cifar10-248k",
        "Neural network with 248K parameters on CIFAR-10",
        "Figure 2, supplement",
        "cifar10-mlp-248k",
        1000.0,
        _NETWORK,
    ),
    "cifar100": Figure(
        "cifar100",
        "Neural network with one hidden layer on CIFAR-100",
        "Figure 3, supplement",
        "cifar100-mlp",
        1000.0,
        _NETWORK,
    ),
    "fashion": Figure(
        "fashion",
        "Neural network with one hidden layer on Fashion-MNIST",
        "Figure 4, supplement",
        "fashion-mlp",
        1000.0,
        _NETWORK,
    ),
}
