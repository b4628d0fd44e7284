"""RunSettings: what a run is, apart from where it stands. Fixed before the first round."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpaq import codec
from fedpaq.config import FedPAQConfig, require_int
from fedpaq.cost_model import CostModel, require_cost_model
from fedpaq.downlink import Downlink
from fedpaq.errors import ConfigError
from fedpaq.problems import Problem
from fedpaq.quantizers import Identity, Quantizer, text_of
from fedpaq.run.fingerprint import fingerprint
from fedpaq.server.aggregation import Aggregation


@dataclass(frozen=True, eq=False, kw_only=True)
class RunSettings:
    """The settings of ``sweep``, with the names of what it chose."""

    problem: Problem
    configs: Sequence[FedPAQConfig]
    quantizer: Quantizer
    aggregation: Aggregation
    downlink: Downlink
    cost_model: CostModel
    executor: str
    payload_size_source: str
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        require_cost_model(self.cost_model)
        require_int("evaluate_every", self.evaluate_every, 0)
        object.__setattr__(self, "evaluate_every", operator.index(self.evaluate_every))
        self.counted_bits(1)

    @property
    def num_rounds(self) -> int:
        """K."""
        return self.configs[0].num_rounds

    def identity(self) -> dict[str, Any]:
        """Return what fixes the bits of these runs."""
        return fingerprint(
            self.problem,
            self.configs,
            quantizer=text_of(self.quantizer),
            quantizer_name=self.quantizer.name,  # the text of a plug-in may lack its settings
            cost_model=self.cost_model,
            aggregation=self.aggregation,
            downlink=self.downlink,
            executor=self.executor,
            evaluate_every=self.evaluate_every,
            payload_size_source=self.payload_size_source,
        )

    def counted_bits(self, payload_bytes: int) -> int:
        """Return the bits charged for a round's uploads by the cost model's accounting."""
        accounting = self.cost_model.accounting
        if accounting == "payload":
            return 8 * payload_bytes
        levels, bucket_size = (getattr(self.quantizer, name, None) for name in ("levels", "bucket_size"))
        if levels is None and not isinstance(self.quantizer, Identity):
            raise ConfigError(
                f"accounting={accounting!r} counts levels, and quantizer={self.quantizer.name} has none; "
                "choose accounting='payload'"
            )
        each = codec.message_bits(self.problem.dimension, levels, accounting, bucket_size=bucket_size)
        return self.configs[0].clients_per_round * each
