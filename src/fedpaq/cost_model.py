"""The paper's cost model (Section 5): how long a round would take on a given network.

    communication = uploaded bits / BW                          (all r uploads share the bandwidth)
    computation   = max over the r participants of  tau B shift + Exp(mean tau B / scale)

The paper gives only the ratio C_comm / C_comp = (p F / BW) / (shift + 1 / scale), F = 32. A model
made by ``from_ratio`` measures time in mean gradient times: shift + 1 / scale = 1. The paper does not
say how the mean is split; we take shift = 1 / scale. Nor does it give a formula for the bits of a
message: p (1 + ceil(log2(s + 1))) + 32, called ``fixed-width`` here, is our reading of it.

The paper charges nothing else, and neither do the defaults. What a real network adds: downloads over a link of their
own, a fixed time per round, clients with an uplink each, and clients that are slow in every round.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from fedpaq.arrays import Bools, Int64
from fedpaq.config import plain_number, require_positive
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.randomness import Purpose, first_uniforms

FLOAT_BITS = 32  # F
ACCOUNTINGS = ("payload", "fixed-width", "elias")
MOST_SLOW = 1e6
TIME_RANGE = (1e-100, 1e100)  # seconds of a gradient, of a bit and of an upload: all their sums stay finite


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Bandwidth in bits per second (or the ratio that fixes it), and shifted-exponential gradients.

    ``shift`` is the shortest time of one sample's gradient in seconds, and 1 / ``scale`` the mean of the
    random part on top. ``accounting`` says which bits are charged: the real ``payload``, the
    ``fixed-width`` count that we read into the paper, or QSGD's ``elias`` bound.

    ``downlink_bandwidth`` in bits per second charges downloads; None, as in the paper: they are free.
    ``round_seconds`` is added to every round: start-up, latency, evaluation. The participants of a round share both
    links. With ``shared_uplink=False`` each has an uplink of ``bandwidth``, and a round's uploads take as long as one
    of their mean size. With ``shared_downlink=False`` the largest download of a round is charged, once: the server
    broadcasts, or each client has a downlink of its own. A share ``slow_share`` of the clients, the same in every
    round and evenly spread over their numbers, computes ``slow_factor`` times as long as the others.

    >>> CostModel.from_ratio(100).bandwidth_for(785)
    251.2
    >>> CostModel(bandwidth=1e6, downlink_bandwidth=1e7, round_seconds=5).download_seconds(np.full(25, 3149))
    0.06298
    """

    bandwidth: float | None = None
    ratio: float | None = None
    shift: float = 0.5
    scale: float = 2.0
    accounting: str = "payload"
    downlink_bandwidth: float | None = None
    round_seconds: float = 0.0
    shared_uplink: bool = True
    shared_downlink: bool = True
    slow_share: float = 0.0
    slow_factor: float = 1.0

    def __post_init__(self) -> None:
        if (self.bandwidth is None) == (self.ratio is None):
            raise ConfigError(
                f"bandwidth={self.bandwidth} and ratio={self.ratio}: give exactly one; "
                "bandwidth in bits per second, or the ratio of communication to computation"
            )
        for name in ("bandwidth", "ratio", "downlink_bandwidth"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        require_positive("shift", self.shift, zero_allowed=True)
        require_positive("scale", self.scale)
        if not isinstance(self.accounting, str) or self.accounting not in ACCOUNTINGS:
            raise unknown_name("accounting", self.accounting, ACCOUNTINGS)
        require_positive("round_seconds", self.round_seconds, zero_allowed=True)
        for name in ("shared_uplink", "shared_downlink"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ConfigError(f"{name}={getattr(self, name)!r} is neither True nor False; choose one of them")
            object.__setattr__(self, name, bool(getattr(self, name)))
        for field in fields(self):
            object.__setattr__(self, field.name, plain_number(getattr(self, field.name)))
        if not _is_within(self.slow_share, 0, 1):
            raise ConfigError(f"slow_share={self.slow_share!r} is not a share of the clients; choose 0..1")
        if not _is_within(self.slow_factor, 1, MOST_SLOW):
            raise ConfigError(f"slow_factor={self.slow_factor!r} is out of range; choose 1..{MOST_SLOW:g}")
        self._require_finite_times()

    def _require_finite_times(self) -> None:
        gradient = self.shift + 1 / self.scale
        times = {"a gradient": gradient}
        if self.bandwidth is not None:
            times["a bit"] = 1 / self.bandwidth
        else:
            times["a float32 upload"] = (self.ratio or 0.0) * gradient
        if self.downlink_bandwidth is not None:
            times["a bit down"] = 1 / self.downlink_bandwidth
        if self.round_seconds:
            times["a round"] = self.round_seconds
        low, high = TIME_RANGE
        if not all(low <= seconds <= high for seconds in times.values()):
            names = ("bandwidth", "ratio", "shift", "scale", "downlink_bandwidth", "round_seconds")
            given = ", ".join(f"{name}={getattr(self, name)}" for name in names if getattr(self, name) is not None)
            taken = " and ".join(f"{what} takes {seconds:g} s" for what, seconds in times.items())
            raise ConfigError(f"{given}: {taken}; choose values that keep each within {low:g}..{high:g} s")

    @classmethod
    def from_ratio(cls, ratio: float, **others: Any) -> CostModel:
        """Return the model with C_comm / C_comp = ``ratio`` for whatever dimension it is used on."""
        require_positive("ratio", ratio)
        return cls(ratio=float(ratio), **others)

    @property
    def is_in_seconds(self) -> bool:
        """Whether times are seconds; otherwise they are multiples of one mean gradient.

        >>> CostModel.from_ratio(100).is_in_seconds, CostModel(bandwidth=1e6).is_in_seconds
        (False, True)
        """
        return self.bandwidth is not None or not math.isclose(self.shift + 1 / self.scale, 1.0)

    def bandwidth_for(self, dimension: int) -> float:
        """Return BW in bits per second; a ratio fixes it through p F / BW."""
        if self.bandwidth is not None:
            return self.bandwidth
        assert self.ratio is not None  # exactly one is set, checked at construction
        return dimension * FLOAT_BITS / (self.ratio * (self.shift + 1 / self.scale))

    def communication_seconds(self, upload_bits: float, dimension: int, clients: int = 1) -> float:
        """Return the seconds that ``upload_bits``, all uploads of a round's ``clients`` together, take."""
        return upload_bits / (self.bandwidth_for(dimension) * (1 if self.shared_uplink else clients))

    def download_seconds(self, download_bytes: Int64) -> float:
        """Return the seconds that the downloads of a round take: the bytes of each participant (r,)."""
        if self.downlink_bandwidth is None:
            return 0.0
        charged = download_bytes.sum() if self.shared_downlink else download_bytes.max()
        return float(8 * charged / self.downlink_bandwidth)

    def computation_seconds(self, seed: int, round: int, clients: Int64, gradients: Int64) -> float:
        """Return the slowest participant's seconds for its ``gradients`` [tau B] sample gradients."""
        seeds = np.full(len(clients), seed, np.uint64)
        numbers = np.ascontiguousarray(clients, np.int64)  # the kernel takes no other kind
        u = first_uniforms(Purpose.COMPUTE_TIME, seeds, round, numbers)
        seconds = gradients * (self.shift - np.log(u) / self.scale)
        return float((seconds * np.where(self.is_slow(numbers), self.slow_factor, 1.0)).max())

    def is_slow(self, clients: Int64) -> Bools:
        """Return which clients are slow: of n clients floor(n ``slow_share``), evenly spread.

        >>> CostModel(ratio=1.0, slow_share=0.4, slow_factor=3.0).is_slow(np.arange(5)).tolist()
        [False, False, True, False, True]
        """
        before, after = (np.floor(np.round((clients + one) * self.slow_share, 9)) for one in (0, 1))
        return np.asarray(after > before)

    def expected_computation_seconds(
        self, clients_per_round: int, gradients: float, num_clients: int | None = None
    ) -> float:
        """Return the mean of ``computation_seconds`` for r of n clients with equal ``gradients`` [tau B].

        The slowest of r shifted exponentials takes shift + H_r / scale on average, with
        H_r = 1 + 1/2 + ... + 1/r. It does not depend on what the clients learn, so two settings can be
        compared by their means, and neither gains from clients that happened to be fast. ``num_clients`` counts only
        where some are slow; None: so many that each participant is slow independently.

        >>> CostModel(ratio=1.0, shift=0.5, scale=2.0).expected_computation_seconds(2, gradients=30)
        37.5
        """
        if self.slow_share and self.slow_factor > 1:
            return gradients * _mean_slowest(self, clients_per_round, num_clients)
        harmonic = sum(1 / i for i in range(1, clients_per_round + 1))
        return gradients * (self.shift + harmonic / self.scale)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def require_cost_model(given: object) -> None:
    """Raise ConfigError unless this is a cost model."""
    if not isinstance(given, CostModel):
        raise ConfigError(f"cost_model={given!r} is not a CostModel; e.g. CostModel.from_ratio(100)")


def _is_within(value: object, low: float, high: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and low <= plain_number(value) <= high


@lru_cache(maxsize=256)
def _mean_slowest(model: CostModel, clients_per_round: int, num_clients: int | None) -> float:
    """Return the mean seconds per gradient of the slowest participant, some of whom are slow.

    It is the integral of 1 - P(all r have finished by t), over how many of them are slow.
    """
    import scipy.integrate
    import scipy.stats

    r, factor = clients_per_round, model.slow_factor
    slow = np.arange(r + 1)
    if num_clients is None:
        chance = scipy.stats.binom.pmf(slow, r, model.slow_share)
    else:
        chance = scipy.stats.hypergeom.pmf(slow, num_clients, model.is_slow(np.arange(num_clients)).sum(), r)

    def still_running(seconds: float) -> float:
        fast_done, slow_done = (
            -np.expm1(-max(0.0, seconds / times - model.shift) * model.scale) for times in (1, factor)
        )
        return float(1 - chance @ (fast_done ** (r - slow) * slow_done**slow))

    kinks = [model.shift, factor * model.shift]
    end = factor * (model.shift + (np.log(r) + 40) / model.scale)
    parts = [0.0, *kinks, factor * (model.shift + (np.log(r) + 3) / model.scale), end]
    return float(sum(scipy.integrate.quad(still_running, *part, limit=200)[0] for part in pairwise(parts)))
