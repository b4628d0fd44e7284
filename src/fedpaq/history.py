"""History: what a run returns. One record per round, JSON in and out."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.errors import ConfigError, DivergedError

FORMAT = "fedpaq-history-1"


@dataclass(frozen=True, kw_only=True)
class Record:
    """The state after ``round`` rounds (0: before training); all amounts add up from the start.

    ``loss`` and ``accuracy`` are None in rounds that were not evaluated.
    """

    round: int
    steps: int  # local steps so far: round * tau
    loss: float | None
    accuracy: float | None
    payload_bytes: int  # real bytes of all uploads
    upload_bits: float  # bits charged by the cost model's accounting
    computation_seconds: float
    seconds: float  # modelled training time: computation + communication


@dataclass(frozen=True, eq=False)
class History:
    """A finished run: its settings, one record per round, the final params."""

    problem: str
    dimension: int
    num_clients: int
    config: Mapping[str, Any]
    quantizer: str
    cost_model: Mapping[str, Any]
    executor: str
    records: list[Record]
    params: npt.NDArray[np.float32]  # (p,)
    diverged: str | None = None  # why the run ended early, if it did

    @property
    def final(self) -> Record:
        """The last record."""
        return self.records[-1]

    def raise_if_diverged(self) -> History:
        """Return this history, or raise DivergedError if the run blew up."""
        if self.diverged is not None:
            raise DivergedError(self.diverged)
        return self

    def seconds_to(self, loss: float) -> float | None:
        """Return the modelled seconds after which the loss was first at most ``loss``, or None."""
        for record in self.records:
            if record.loss is not None and record.loss <= loss:
                return record.seconds
        return None

    def to_json(self) -> str:
        """Return the run as JSON; params are base64 of little-endian float32."""
        values = {
            "format": FORMAT,
            "problem": self.problem,
            "dimension": self.dimension,
            "num_clients": self.num_clients,
            "config": dict(self.config),
            "quantizer": self.quantizer,
            "cost_model": dict(self.cost_model),
            "executor": self.executor,
            "diverged": self.diverged,
            "records": [asdict(record) for record in self.records],
            "params": base64.b64encode(self.params.astype("<f4").tobytes()).decode("ascii"),
        }
        return json.dumps(values, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> History:
        """Return the run that ``to_json`` wrote."""
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise ConfigError(f"format={values['format']!r} is not {FORMAT!r}")
            params = np.frombuffer(base64.b64decode(values["params"], validate=True), "<f4")
            records = [Record(**record) for record in values["records"]]
            return cls(
                **{key: values[key] for key in ("problem", "dimension", "num_clients", "config", "quantizer")},
                **{key: values[key] for key in ("cost_model", "executor", "diverged")},
                records=records,
                params=params.astype(np.float32),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"not a history in the form {FORMAT!r}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON in one step: a reader sees the old file or the whole new one."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            partial.write_text(self.to_json(), encoding="utf-8")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a run written by ``save``."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))
