"""State: a run between two rounds. All that a restarted server needs to go on as if nothing happened.

No generator is saved: every draw is a function of (seed, round, client).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedpaq.errors import CheckpointError, ConfigError
from fedpaq.flower.layout import Arrays, Float32, Layout
from fedpaq.storage import checkpoint

KIND = "fedpaq-flower-1"
SIDES = ("clients", "server")  # where an evaluation was made


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in one round: who was asked, whose upload counted, and why others did not."""

    server_round: int  # as Flower counts, from 1; FedPAQ's round is one less
    asked: list[int]
    counted: list[int]
    rejected: dict[int, str]
    late: list[int]
    metrics: dict[str, Any]


@dataclass
class State:
    """The run after ``rounds_done`` rounds."""

    settings: dict[str, Any]
    layout: Layout
    params: Float32  # x_k, (p,)
    exact: bytes
    history: list[RoundRecord] = field(default_factory=list)
    evaluations: dict[str, dict[int, dict[str, Any]]] = field(
        default_factory=lambda: {side: {} for side in SIDES}
    )

    @classmethod
    def begin(cls, settings: dict[str, Any], record: ArrayRecord, exact: Sequence[str]) -> State:
        """Return the state before the first round, of a finite model."""
        layout = Layout.of(record, exact)
        arrays = layout.read(record)
        for name, values in arrays.items():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ConfigError(f"array {name!r} of the initial model holds NaN or infinity")
        return cls(settings, layout, layout.vector(arrays), layout.exact(arrays))

    @property
    def rounds_done(self) -> int:
        """How many rounds are behind us."""
        return len(self.history)

    def arrays(self) -> Arrays:
        """Return the model."""
        return self.layout.arrays(self.params, self.exact)

    def advance(self, record: RoundRecord, params: Float32, exact: bytes) -> None:
        """Go one round further."""
        self.params, self.exact = params, exact
        self.history.append(record)

    def note(self, side: str, server_round: int, metrics: Mapping[str, Any] | None) -> None:
        """Keep an evaluation, if there is one."""
        if metrics is not None:
            self.evaluations[side][server_round] = dict(metrics)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state in one step: a crash leaves the old file or the new one."""
        header = {
            "kind": KIND,
            "settings": self.settings,
            "layout": self.layout.to_json(),
            "history": [_finite(asdict(record)) for record in self.history],
            "evaluations": _finite(self.evaluations),
        }
        checkpoint.save(path, header, {"params": self.params, "exact": np.frombuffer(self.exact, np.uint8)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> State:
        """Read a state; raise CheckpointError on anything that is not one."""
        header, arrays = checkpoint.load(path)
        try:
            if header["kind"] != KIND:
                raise ValueError(f"kind={header['kind']!r} is not {KIND!r}")
            return _parse(header, arrays["params"], arrays["exact"].tobytes())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint={str(path)!r} is no state of a Flower run ({error}); "
                "choose another file or move it away"
            ) from error

    def continuing(self, fresh: State, path: str | os.PathLike[str]) -> State:
        """Return this saved state; raise CheckpointError unless it belongs to the run ``fresh`` begins."""
        for name, value in fresh.settings.items():
            if self.settings.get(name) != value:
                raise CheckpointError(
                    f"checkpoint={str(path)!r} was made with {name}={self.settings.get(name)!r}, but this "
                    f"run has {value!r}; use the same settings, or another file for a new run"
                )
        if self.layout != fresh.layout:
            raise CheckpointError(
                f"checkpoint={str(path)!r} holds another model (p={self.layout.dimension}, this run has "
                f"p={fresh.layout.dimension}); use the same model, or another file for a new run"
            )
        return self


def _parse(header: dict[str, Any], params: Float32, exact: bytes) -> State:
    layout = Layout.from_json(header["layout"])
    if params.shape != (layout.dimension,) or len(exact) != layout.exact_bytes:
        raise ValueError("params do not fit the layout")
    evaluations = {
        side: {int(at): _numbers(values) for at, values in header["evaluations"][side].items()}
        for side in SIDES
    }
    history = [_record(values) for values in header["history"]]
    return State(header["settings"], layout, params.astype(np.float32), exact, history, evaluations)


def _record(values: dict[str, Any]) -> RoundRecord:
    rejected = {int(client): reason for client, reason in values["rejected"].items()}
    return RoundRecord(**{**values, "rejected": rejected, "metrics": _numbers(values["metrics"])})


def _finite(values: Any) -> Any:
    """Return values with NaN and infinities as None: JSON has no word for them."""
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _numbers(values: Any) -> Any:
    """Return values with None as NaN, the inverse as far as there is one."""
    if isinstance(values, dict):
        return {key: _numbers(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return math.nan if values is None else values
