"""Loop: the rounds of a run, from wherever its state stands. Train, save, evaluate.

The state is saved before a round is evaluated. So a run that was interrupted in between evaluates
that round again, from the same model and with the same configs.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedpaq.flower import protocol
from fedpaq.flower.exchange import ask
from fedpaq.flower.state import State
from fedpaq.flower.state_file import save_state
from fedpaq.storage.atomic_file import StrPath

log = logging.getLogger("flwr")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Loop:
    """What drives a strategy: its clients, the seconds they have, where to evaluate and to save."""

    strategy: Strategy
    state: State
    grid: Grid
    seconds: float
    evaluate_fn: EvaluateFn | None
    checkpoint: StrPath | None
    round_done: Callable[[State], None]  # called when the last round is trained and evaluated
    again: Callable[[Message], Message | None] | None = None  # the message for a client that needs the whole model

    def run(self, num_rounds: int) -> None:
        """Go on until ``num_rounds`` are done and evaluated."""
        state = self.state
        if not state.rounds_done and self.evaluate_fn:
            state.note("server", 0, self.evaluate_fn(0, state.record()))
        if state.evaluated < state.rounds_done:
            self._finish()
        for at in range(state.rounds_done + 1, num_rounds + 1):
            log.info("[ROUND %d/%d]", at, num_rounds)
            self._train(at)
            self._save()
            self._finish()
        self._save()

    def _train(self, at: int) -> None:
        begun, state, before = time.monotonic(), self.state, self.state.record()
        messages = list(self.strategy.configure_train(at, before, state.configs["train_config"], self.grid))
        arrays, metrics = self.strategy.aggregate_train(at, ask(self.grid, messages, self.seconds, self.again))
        state.adopt(before if arrays is None else arrays)
        state.report(metrics, time.monotonic() - begun)

    def _finish(self) -> None:
        self._evaluate()
        self.round_done(self.state)

    def _evaluate(self) -> None:
        """Evaluate the last round, on clients and on the server."""
        state, at, arrays = self.state, self.state.rounds_done, self.state.record()
        config = state.configs["evaluate_config"]
        messages = list(self.strategy.configure_evaluate(at, arrays, config, self.grid))
        sent = list(messages)  # and what is sent again
        replies = ask(self.grid, messages, self.seconds, partial(self._again, sent))
        state.history[-1] = replace(state.history[-1], evaluation_bytes=sum(map(model_bytes, sent)))
        state.note("clients", at, self.strategy.aggregate_evaluate(at, replies))
        if self.evaluate_fn:
            state.note("server", at, self.evaluate_fn(at, arrays))
        state.evaluated = at

    def _again(self, sent: list[Message], reply: Message) -> Message | None:
        more = None if self.again is None else self.again(reply)
        sent += [] if more is None else [more]
        return more

    def _save(self) -> None:
        if self.checkpoint is not None:
            save_state(self.checkpoint, self.state)


def model_bytes(message: Message) -> int:
    """Return the bytes of the model in a message: its arrays, and those that travel beside coded changes."""
    arrays = [array.data for record in message.content.array_records.values() for array in record.values()]
    records = message.content.config_records
    places = ((protocol.MODEL, protocol.PACKED), (protocol.MODEL, protocol.FRAMES), (protocol.RECORD, "exact"))
    found = [records[name].get(key) for name, key in places if name in records]
    return sum(map(len, arrays)) + sum(len(data) for data in found if isinstance(data, bytes))
