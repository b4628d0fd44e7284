"""History: what a run returns. One record per round, JSON in and out."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from fedpaq.arrays import AnyArray, Float32
from fedpaq.config import LARGEST, require_path
from fedpaq.errors import ConfigError, DivergedError
from fedpaq.storage import strict_json
from fedpaq.storage.atomic_file import atomic_write

FORMAT = "fedpaq-history-2"
_TEXTS = ("problem", "quantizer", "executor", "aggregation", "downlink", "payload_size_source")
_MAPPINGS = ("config", "cost_model")
_COUNTS = ("dimension", "num_clients")
_PLAIN = ("problem", *_COUNTS, "config", "quantizer", "cost_model", "executor", *_TEXTS[3:], "diverged")
_COLUMNS = {  # how a checkpoint stores records; round and steps follow from the position
    "loss": np.float64,
    "accuracy": np.float64,
    "payload_bytes": np.int64,
    "download_bytes": np.int64,
    "upload_bits": np.int64,
    "computation_seconds": np.float64,
    "seconds": np.float64,
}


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
    download_bytes: int = 0  # real bytes of all downloads


# In JSON a whole number may stand for a float.
_RECORD_TYPES = {name: kind if kind is int else kind | int for name, kind in get_type_hints(Record).items()}


def as_row(record: Record | Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as a row: its numbers by name."""
    return dict(record) if isinstance(record, Mapping) else asdict(record)


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
    params: Float32  # (p,)
    diverged: str | None = None  # why the run ended early, if it did
    aggregation: str = "mean"
    downlink: str = "dense"
    payload_size_source: str = "encoded"  # or "estimated", on a GPU

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
            **{name: getattr(self, name) for name in _PLAIN},
            "records": [asdict(record) for record in self.records],
            "params": base64.b64encode(self.params.astype("<f4").tobytes()).decode("ascii"),
        }
        return json.dumps(values, indent=1, allow_nan=False, default=dict)

    @classmethod
    def from_json(cls, text: str) -> History:
        """Return the run that ``to_json`` wrote."""
        try:
            values = strict_json.loads(text)
            if values["format"] != FORMAT:
                raise ConfigError(f"format={values['format']!r} is of another version; this one reads {FORMAT!r}")
            params = np.frombuffer(base64.b64decode(values["params"], validate=True), "<f4")
            history = cls(
                **{name: values[name] for name in _PLAIN},
                records=[Record(**record) for record in values["records"]],
                params=params.astype(np.float32),
            )
            history._check()
            return history
        except KeyError as error:
            raise ConfigError(f"not a history in the form {FORMAT!r}: it has no {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"not a history in the form {FORMAT!r}: {error}") from error

    def _check(self) -> None:
        """Raise ValueError unless every field has its type: JSON from elsewhere may hold anything."""
        for names, kind in ((_TEXTS, str), (_MAPPINGS, dict), (_COUNTS, int)):
            for name in names:
                _require_type(name, getattr(self, name), kind)
        _require_type("diverged", self.diverged, str | None)
        if self.params.shape != (self.dimension,) or not self.records:
            raise ValueError(f"dimension={self.dimension}, {self.params.size} params, {len(self.records)} records")
        for record in self.records:
            _require_types(record)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON in one step: a reader sees the old file or the whole new one."""
        require_path("history", path, "run.json")
        atomic_write(path, self.to_json().encode("utf-8"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read a run written by ``save``."""
        require_path("history", path, "run.json")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"history={str(path)!r} is not a text file: {error}") from error
        return cls.from_json(text)


def to_columns(runs: Sequence[Sequence[Record]]) -> dict[str, AnyArray]:
    """Return the records of several runs as flat columns, run after run; NaN stands for None."""
    records = [record for run in runs for record in run]
    columns: dict[str, AnyArray] = {
        name: np.array([getattr(record, name) for record in records], dtype) for name, dtype in _COLUMNS.items()
    }
    return {"records_per_run": np.array([len(run) for run in runs], np.int64), **columns}


def from_columns(columns: Mapping[str, AnyArray], local_steps: int) -> list[list[Record]]:
    """Return the records that ``to_columns`` wrote; anything else raises ValueError or KeyError."""
    counts = columns["records_per_run"]
    values = [columns[name] for name in _COLUMNS]
    fits = counts.ndim == 1 and counts.dtype == np.int64 and bool((counts >= 1).all())
    total = sum(counts.tolist()) if fits else 0  # Python's integers: a sum of int64 could wrap around
    for column, dtype in zip(values, _COLUMNS.values(), strict=True):
        fits = fits and column.shape == (total,) and column.dtype == dtype
    if not fits:
        raise ValueError("the records do not fit together")
    rows = iter(zip(*(column.tolist() for column in values), strict=True))
    return [[_record(round, local_steps, next(rows)) for round in range(count)] for count in counts.tolist()]


def _record(round: int, local_steps: int, row: tuple[Any, ...]) -> Record:
    values: dict[str, Any] = {
        name: None if value != value else value for name, value in zip(_COLUMNS, row, strict=True)
    }
    record = Record(round=round, steps=round * local_steps, **values)
    _require_types(record)
    return record


def _require_types(record: Record) -> None:
    for field, kind in _RECORD_TYPES.items():
        _require_type(field, getattr(record, field), kind)


def _require_type(name: str, value: object, kind: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name}={value!r:.40} has the wrong type")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:  # also refuses NaN
        raise ValueError(f"{name}={value!r:.40} is not finite")
