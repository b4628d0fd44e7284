"""RunRecorder: prices and evaluates every round of every run, and adds the record to the run's state."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedpaq.arrays import Float32, Int64
from fedpaq.config import require_function
from fedpaq.hardware.devices import to_array
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.run.history import Record
from fedpaq.run.settings import RunSettings
from fedpaq.run.state import RunState

Callback = Callable[[int, Record, Float32], None]  # run, record, params (p,)
Measured = dict[str, float | None]  # loss and accuracy of a record
NOT_EVALUATED: Measured = {"loss": None, "accuracy": None}


class RunRecorder:
    """Records the rounds of a sweep; a run whose params or loss are not finite ends there."""

    def __init__(self, settings: RunSettings, callback: Callback | None = None, ranks: Ranks = ALONE) -> None:
        require_function("callback", callback)
        self._settings, self._ranks = settings, ranks
        self._callback = callback if ranks.is_first else None

    def start(self, state: RunState) -> None:
        """Record the state before training, unless it was taken up further on."""
        if state.records[0]:
            return
        alike = bool((state.params == state.params[0]).all())  # unless a downlink codes each run's first model
        found = self._evaluate(0, state.params[:1] if alike else state.params)
        for run in range(len(state.records)):
            record = Record(
                round=0,
                steps=0,
                **found[0 if alike else run],
                payload_bytes=0,
                download_bytes=0,
                upload_bits=0,
                computation_seconds=0.0,
                seconds=0.0,
            )
            self._keep(state, run, record)

    def round_done(
        self, state: RunState, runs: Int64, participants: Int64, payload_bytes: Int64, download_bytes: Int64
    ) -> None:
        """Record the last round of the given runs: participants and download_bytes (runs, r), payload_bytes (runs,)."""
        round, settings = state.rounds_done, self._settings
        found = self._evaluate(round, state.params if len(runs) == len(state.records) else state.params[runs])
        for row, run in enumerate(runs.tolist()):
            before, config = state.records[run][-1], settings.configs[run]
            bits = settings.counted_bits(int(payload_bytes[row]))
            price, clients = settings.cost_model, config.clients_per_round
            per_step = settings.problem.partition.samples_per_step(participants[row], config.batch_size)
            gradients = config.local_steps * per_step
            computing = price.computation_seconds(config.seed, round - 1, participants[row], gradients)
            sending = price.communication_seconds(bits, settings.problem.dimension, clients)
            sending += price.download_seconds(download_bytes[row]) + price.round_seconds
            record = Record(
                round=round,
                steps=round * config.local_steps,
                **found[row],
                payload_bytes=before.payload_bytes + int(payload_bytes[row]),
                download_bytes=before.download_bytes + int(download_bytes[row].sum()),
                upload_bits=before.upload_bits + bits,
                computation_seconds=before.computation_seconds + computing,
                seconds=before.seconds + computing + sending,
            )
            if _is_finite(record, state.params[run]):
                self._keep(state, run, record)
            else:
                state.diverged[run] = self._why(state, run)

    def _keep(self, state: RunState, run: int, record: Record) -> None:
        state.records[run].append(record)
        if self._callback is not None:
            self._callback(run, record, np.array(to_array(state.params[run])))  # its own: the state moves on

    def _evaluate(self, round: int, params: Any) -> list[Measured]:
        every = self._settings.evaluate_every
        if round != self._settings.num_rounds and (every == 0 or round % every):
            return [NOT_EVALUATED] * len(params)
        found = self._settings.problem.evaluate_batch(params) if self._ranks.is_first else []
        pairs = np.array([(each.loss, each.accuracy) for each in found], np.float64)  # NaN for no accuracy
        agreed = np.frombuffer(self._ranks.broadcast(pairs.tobytes()))  # so that all agree on which runs go on
        return [
            {"loss": loss, "accuracy": None if math.isnan(accuracy) else accuracy}
            for loss, accuracy in agreed.reshape(-1, 2).tolist()
        ]

    def _why(self, state: RunState, run: int) -> str:
        losses = [record.loss for record in state.records[run] if record.loss is not None]
        last = f"last loss={losses[-1]:.4g}" if losses else "loss not evaluated before"
        config, round = self._settings.configs[run], state.rounds_done
        return (
            f"round={round}: the params or the loss are no longer finite ({last}); lower step_size="
            f"{config.step_size_at(round - 1):.4g} or local_steps={config.local_steps}, or quantize less"
        )


def _is_finite(record: Record, params: Any) -> bool:
    if record.loss is not None:
        return math.isfinite(record.loss)
    finite = np.isfinite(params) if isinstance(params, np.ndarray) else params.isfinite()
    return bool(finite.all())
