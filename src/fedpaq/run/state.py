"""RunState: where the runs of a sweep stand between two rounds. The one owner of what changes.

Randomness is stateless, so the state is small: the rounds done, the params and the records of every run, what
was sent down, and why some have ended early. A run continued from it ends bit-identical to one that was never
interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpaq.arrays import AnyArray, Int64
from fedpaq.config import require_int
from fedpaq.downlink import Broadcast
from fedpaq.hardware.devices import to_array
from fedpaq.run.history import History, Record, from_columns, to_columns
from fedpaq.run.settings import RunSettings

DOWNLINK = "downlink."  # before the names of what the downlink remembers


@dataclass(eq=False)
class RunState:
    """Every run after ``rounds_done`` rounds."""

    params: Any  # (runs, p) float32: an array, or a tensor once a GPU has made the next one
    records: list[list[Record]]
    broadcast: Broadcast  # what has been sent down
    diverged: dict[int, str] = field(default_factory=dict)  # run -> why it ended early
    rounds_done: int = 0

    @classmethod
    def begin(cls, broadcast: Broadcast) -> RunState:
        """Return the state before the first round: x_0 in every run, nothing recorded."""
        params = np.array(broadcast.params)
        return cls(params, [[] for _ in params], broadcast)

    def running(self) -> Int64:
        """Return the numbers of the runs that have not diverged."""
        return np.array([run for run in range(len(self.records)) if run not in self.diverged], np.int64)

    def advance(self, runs: Int64, params: Any) -> None:
        """Go one round further; params (runs, p) are those of the given runs."""
        if isinstance(self.params, np.ndarray) and not isinstance(params, np.ndarray):
            self.params = params.new_tensor(self.params)
        self.params[runs] = params
        self.rounds_done += 1

    def histories(self, settings: RunSettings) -> list[History]:
        """Return the history of every run."""
        return [
            History(
                problem=settings.problem.name,
                dimension=settings.problem.dimension,
                num_clients=settings.problem.num_clients,
                config=config.to_dict(),
                quantizer=settings.quantizer.name,
                cost_model=settings.cost_model.to_dict(),
                executor=settings.executor,
                records=self.records[run],
                params=np.array(to_array(self.params[run])),
                diverged=self.diverged.get(run),
                aggregation=settings.aggregation.name,
                downlink=settings.downlink.name,
                payload_size_source=settings.payload_size_source,
            )
            for run, config in enumerate(settings.configs)
        ]

    def to_parts(self) -> tuple[dict[str, Any], dict[str, AnyArray]]:
        """Return the state as a JSON object and arrays."""
        diverged = {str(run): why for run, why in self.diverged.items()}
        header = {"rounds_done": self.rounds_done, "diverged": diverged}
        downloads = {DOWNLINK + name: array for name, array in self.broadcast.to_arrays().items()}
        return header, {"params": to_array(self.params), **to_columns(self.records), **downloads}

    def take_up(self, header: Mapping[str, Any], arrays: Mapping[str, AnyArray], settings: RunSettings) -> None:
        """Become the state that ``to_parts`` gave; raise ValueError or KeyError if it cannot be one."""
        params, runs, done = arrays["params"], len(self.records), header["rounds_done"]
        if params.shape != self.params.shape or params.dtype != np.float32:
            raise ValueError(f"params {params.shape} {params.dtype}")
        require_int("rounds_done", done, 0, settings.num_rounds)
        downloads = {name.removeprefix(DOWNLINK): each for name, each in arrays.items() if name.startswith(DOWNLINK)}
        records = from_columns(arrays, settings.configs[0].local_steps)
        diverged = {int(run): str(why) for run, why in header["diverged"].items()}
        if len(records) != runs or not set(diverged) <= set(range(runs)):
            raise ValueError(f"records of {len(records)} runs, not of {runs}")
        for run, rows in enumerate(records):
            if len(rows) > done + 1 or (run not in diverged and len(rows) != done + 1):
                raise ValueError(f"run {run} has {len(rows)} records after {done} rounds")
        alive = [run for run in range(runs) if run not in diverged]
        if not np.isfinite(params[alive]).all():
            raise ValueError("params are not finite")
        self.broadcast.take_up(params, downloads)
        self.params, self.records, self.diverged, self.rounds_done = params.copy(), records, diverged, done
