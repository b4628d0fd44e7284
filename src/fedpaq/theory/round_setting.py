"""RoundSetting: what fixes the cost of a round, tau, r, Q and the way down; what theorems and plans compare."""

from dataclasses import dataclass, field
from typing import Any

from fedpaq.downlink import Dense, Downlink
from fedpaq.quantizers import Identity, LowPrecision, Quantizer, text_of


@dataclass(frozen=True)
class RoundSetting:
    """One choice of tau, r, quantizer and downlink.

    >>> str(RoundSetting(5, 10, LowPrecision(4))), str(RoundSetting(5, 10))
    ('tau=5, r=10, s=4', 'tau=5, r=10, no quantizer')
    """

    local_steps: int  # tau
    clients_per_round: int  # r
    quantizer: Quantizer = field(default_factory=Identity)
    downlink: Downlink = field(default_factory=Dense)

    @property
    def levels(self) -> int | None:
        """s of the paper's quantizer, 0 without a quantizer, None for any other."""
        if isinstance(self.quantizer, LowPrecision) and self.quantizer.bucket_size is None:
            return self.quantizer.levels
        return 0 if self.quantizer == Identity() else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; ``quantizers.parse`` takes the quantizer's."""
        return {
            "local_steps": self.local_steps,
            "clients_per_round": self.clients_per_round,
            "levels": self.levels,
            "quantizer": text_of(self.quantizer),
            "downlink": self.downlink.name,
        }

    def __str__(self) -> str:
        named = {0: "no quantizer", None: text_of(self.quantizer)}.get(self.levels, f"s={self.levels}")
        down = "" if self.downlink == Dense() else f", down {self.downlink.name}"
        return f"tau={self.local_steps}, r={self.clients_per_round}, {named}{down}"
