"""Meter: what every round of every run cost and achieved, until it becomes a history."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq import codec
from fedpaq.config import FedPAQConfig, require_int
from fedpaq.cost_model import CostModel
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Evaluation, Problem
from fedpaq.quantizers import Quantizer
from fedpaq.run.fingerprint import fingerprint
from fedpaq.run.history import History, Record, from_columns, to_columns
from fedpaq.server.aggregation import Aggregation, Mean

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Callback = Callable[[int, Record, Float32], None]  # run, record, params (p,)


class Meter:
    """Keeps the records of each run of a sweep; a run whose loss is not finite stops there."""

    def __init__(
        self,
        problem: Problem,
        configs: Sequence[FedPAQConfig],
        quantizer: Quantizer,
        cost_model: CostModel,
        executor: str,
        payload_sizes: str,
        evaluate_every: int,
        callback: Callback | None = None,
        aggregation: Aggregation | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        require_int("evaluate_every", evaluate_every, 0)
        self._problem, self._configs, self._quantizer = problem, configs, quantizer
        self._cost_model, self._executor = cost_model, executor
        self._evaluate_every, self._ranks = evaluate_every, ranks
        self._callback = callback if ranks.is_first else None
        self._aggregation, self._payload_sizes = aggregation or Mean(), payload_sizes
        self._records: list[list[Record]] = [[] for _ in configs]
        self._diverged: dict[int, str] = {}

    def running(self) -> Int64:
        """Return the numbers of the runs that have not diverged."""
        return np.array([run for run in range(len(self._configs)) if run not in self._diverged], np.int64)

    def start(self, params: Float32) -> None:
        """Record the state before training: params (runs, p), all equal."""
        first = self._evaluate(0, params[:1])[0]
        for run in range(len(self._configs)):
            self._keep(
                run,
                Record(
                    round=0,
                    steps=0,
                    loss=first.loss if first else None,
                    accuracy=first.accuracy if first else None,
                    payload_bytes=0,
                    upload_bits=0,
                    computation_seconds=0.0,
                    seconds=0.0,
                ),
                params[run],
            )

    def round_done(
        self, round: int, runs: Int64, params: Float32, participants: Int64, payload_bytes: Int64
    ) -> None:
        """Record one round of the given runs: params (runs, p), participants (runs, r)."""
        evaluations = self._evaluate(round + 1, params)
        for row, run in enumerate(runs.tolist()):
            before, config = self._records[run][-1], self._configs[run]
            bits = self._bits(int(payload_bytes[row]))
            computing = self._computing(config, round, participants[row])
            evaluation = evaluations[row]
            record = Record(
                round=round + 1,
                steps=(round + 1) * config.local_steps,
                loss=evaluation.loss if evaluation else None,
                accuracy=evaluation.accuracy if evaluation else None,
                payload_bytes=before.payload_bytes + int(payload_bytes[row]),
                upload_bits=before.upload_bits + bits,
                computation_seconds=before.computation_seconds + computing,
                seconds=before.seconds
                + computing
                + self._cost_model.communication_seconds(bits, self._problem.dimension),
            )
            if self._is_finite(record, params[row]):
                self._keep(run, record, params[row])
            else:
                self._diverged[run] = self._why(run, round)

    def histories(self, params: Float32) -> list[History]:
        """Return the history of every run; params (runs, p) are the final ones."""
        return [
            History(
                problem=self._problem.name,
                dimension=self._problem.dimension,
                num_clients=self._problem.num_clients,
                config=config.to_dict(),
                quantizer=self._quantizer.name,
                cost_model=self._cost_model.to_dict(),
                executor=self._executor,
                records=self._records[run],
                params=params[run].copy(),
                diverged=self._diverged.get(run),
                aggregation=self._aggregation.name,
                payload_sizes=self._payload_sizes,
            )
            for run, config in enumerate(self._configs)
        ]

    @property
    def num_rounds(self) -> int:
        """K."""
        return self._configs[0].num_rounds

    def identity(self) -> dict[str, Any]:
        """Return what fixes the bits of these runs."""
        return fingerprint(
            self._problem,
            self._configs,
            quantizer=self._quantizer,
            cost_model=self._cost_model,
            aggregation=self._aggregation,
            executor=self._executor,
            evaluate_every=self._evaluate_every,
            payload_sizes=self._payload_sizes,
        )

    def state(self) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
        """Return why runs have diverged, and all records as columns."""
        return {str(run): why for run, why in self._diverged.items()}, to_columns(self._records)

    def restore(
        self, rounds_done: int, diverged: Mapping[str, str], columns: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Take up a ``state`` after ``rounds_done`` rounds; raise ValueError if it cannot be one."""
        records = from_columns(columns, self._configs[0].local_steps)
        ended = {int(run): str(why) for run, why in diverged.items()}
        if len(records) != len(self._configs) or not set(ended) <= set(range(len(records))):
            raise ValueError(f"records of {len(records)} runs, not of {len(self._configs)}")
        for run, rows in enumerate(records):
            if len(rows) > rounds_done + 1 or (run not in ended and len(rows) != rounds_done + 1):
                raise ValueError(f"run {run} has {len(rows)} records after {rounds_done} rounds")
        self._records, self._diverged = records, ended

    def _keep(self, run: int, record: Record, params: Float32) -> None:
        self._records[run].append(record)
        if self._callback is not None:
            self._callback(run, record, params)

    def _evaluate(self, round: int, params: Float32) -> Sequence[Evaluation | None]:
        last = round == self._configs[0].num_rounds
        if not last and (self._evaluate_every == 0 or round % self._evaluate_every):
            return [None] * len(params)
        found = self._problem.evaluate_batch(params) if self._ranks.is_first else []
        told = np.frombuffer(self._ranks.broadcast(_as_bytes(found)))  # so that all agree on which runs go on
        return [_evaluation(*pair) for pair in told.reshape(-1, 2).tolist()]

    def _bits(self, payload_bytes: int) -> int:
        if self._cost_model.accounting == "payload":
            return 8 * payload_bytes
        levels, bucket_size = (getattr(self._quantizer, name, None) for name in ("levels", "bucket_size"))
        each = codec.message_bits(
            self._problem.dimension, levels, self._cost_model.accounting, bucket_size=bucket_size
        )
        return self._configs[0].clients_per_round * each

    def _computing(self, config: FedPAQConfig, round: int, participants: Int64) -> float:
        per_step = (
            self._problem.partition.sizes(participants)
            if config.batch_size is None
            else np.full(len(participants), config.batch_size)
        )
        return self._cost_model.computation_seconds(
            config.seed, round, participants, config.local_steps * per_step
        )

    @staticmethod
    def _is_finite(record: Record, params: Float32) -> bool:
        if record.loss is not None:
            return math.isfinite(record.loss)
        return bool(np.isfinite(params).all())

    def _why(self, run: int, round: int) -> str:
        losses = [record.loss for record in self._records[run] if record.loss is not None]
        last = f"last loss={losses[-1]:.4g}" if losses else "loss not evaluated before"
        return (
            f"round={round + 1}: the params or the loss are no longer finite ({last}); lower "
            f"step_size={self._configs[run].step_size_at(round):.4g} or local_steps="
            f"{self._configs[run].local_steps}, or raise levels"
        )


def _as_bytes(evaluations: Sequence[Evaluation]) -> bytes:
    pairs = [(each.loss, math.nan if each.accuracy is None else each.accuracy) for each in evaluations]
    return np.array(pairs, np.float64).tobytes()


def _evaluation(loss: float, accuracy: float) -> Evaluation:
    return Evaluation(loss, None if math.isnan(accuracy) else accuracy)
