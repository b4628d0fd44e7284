"""The server's half: one line in a Flower ServerApp.

    strategy = FedPAQ(clients_per_round=4)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)

One round (Algorithm 1):

    1  gather    wait until the clients are there                                     roster.py
    2  draw      exactly r of them, by seed and round, over their own numbers         line 2
    3  send      the model packed, to each with its seed, round, number               line 3
    4  collect   replies until the deadline; refuse what is malformed, and say why    replies.py
    5  mean      x_{k+1} = x_k + uniform mean of the payloads that counted            line 11, mean.py
    6  save      the state, in one step                                               state_file.py
"""

import logging
import math
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cached_property

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpaq.config import require_function, require_int, require_positive
from fedpaq.errors import ConfigError
from fedpaq.flower import protocol
from fedpaq.flower.loop import EvaluateFn, Loop
from fedpaq.flower.metrics import Pricing, record_of
from fedpaq.flower.model_file import save_model
from fedpaq.flower.replies import Rules
from fedpaq.flower.report import Report, log_for
from fedpaq.flower.roster import Roster, draw
from fedpaq.flower.rounds import OpenRound, Questions, RoundRecord
from fedpaq.flower.settings import Settings
from fedpaq.flower.state import ROUND, State
from fedpaq.flower.state_file import load_state
from fedpaq.flower.wrappers import refuse_what_cannot_work
from fedpaq.randomness import Key
from fedpaq.server.aggregation import WeightedMean
from fedpaq.storage import checkpoint as checkpoints
from fedpaq.storage.lock import hold

log = logging.getLogger("flwr")
TTL_SLACK = 60.0  # seconds; the strategy watches the deadline, not the SuperLink
EVALUATION = 1  # "client" of the stream that draws who evaluates; participants use 0


class FedPAQ(Settings, Strategy):
    """FedPAQ as a Flower strategy; clients need ``quantize_mod``.

    ``clients_per_round`` [r] clients are drawn from those connected. Before each draw the server
    waits for ``num_clients`` [n] of them (default: r), but at most ``patience`` seconds. A round
    closes ``deadline`` seconds after the model was sent. With fewer than ``min_replies`` good
    replies the model stays as it is; ``max_failed_rounds`` such rounds in a row end the run with an
    error.

    The mean is uniform, as in the paper: every counted client has the same weight, whatever its
    number of examples, and ``weighted_by_key`` weights the clients' metrics only. With
    ``aggregation="weighted"`` it weights the model as well, as in Flower's FedAvg.

    ``max_update_norm`` refuses larger updates; ``quantizer`` (an object, or text such as
    ``"low-precision:1"``) refuses payloads made otherwise; ``aggregation`` (one of
    ``fedpaq.server.aggregation``, or its name) replaces the plain mean. ``exact`` names arrays, by pattern, that
    are not quantized. ``checkpoint`` is a file: it is written after each round, and the run continues
    from it if it exists. ``cost_model`` and ``gradients_per_client`` [tau B] add the modelled time to
    each round's metrics. ``downlink`` (``fedpaq.Changes(...)``, or text such as ``"rotated:1"``) sends changes instead
    of the whole model, to training and evaluation alike. ``save`` is a file for the final model, ``.npz`` or
    ``.safetensors``; ``log`` says where the rows of the rounds go (see ``fedpaq.run.log``), one place or several. The
    evaluation arguments, the two functions for metrics and the two record keys are those of Flower's FedAvg.
    """

    _state: State | None = None
    _open: OpenRound | None = None
    _evaluating: OpenRound | None = None
    _failed = 0  # rounds in a row with too few replies

    @cached_property
    def _roster(self) -> Roster:
        return Roster()

    @property
    def history(self) -> list[RoundRecord]:
        """What happened in each round so far: who was asked, counted, rejected (and why), late."""
        return [] if self._state is None else self._state.history

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run rounds until ``num_rounds`` are done, from the checkpoint where there is one.

        The arguments are those of Flower's strategies; ``timeout`` caps the deadline. A second
        server on the same checkpoint is refused.
        """
        require_int("num_rounds", num_rounds, 1)
        require_positive("timeout", timeout)
        require_function("evaluate_fn", evaluate_fn)
        if not isinstance(initial_arrays, ArrayRecord):
            kind = type(initial_arrays).__name__
            raise ConfigError(f"initial_arrays of type {kind} is not an ArrayRecord; write ArrayRecord(...)")
        for name, given in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if given is not None and not isinstance(given, ConfigRecord):
                raise ConfigError(f"{name}={given!r} is not a ConfigRecord; write ConfigRecord({{...}})")
        configs = {
            "train_config": ConfigRecord() if train_config is None else train_config,
            "evaluate_config": ConfigRecord() if evaluate_config is None else evaluate_config,
        }
        with ExitStack() as stack:
            if self.checkpoint is not None:
                stack.enter_context(hold(self.checkpoint))
            state = self._begin(initial_arrays, configs)
            logs = [stack.enter_context(log_for(each, state)) for each in self.log]
            self.summary()
            report, seconds = Report(type(self).__name__, logs, num_rounds), min(self.deadline, timeout)
            again = self.send_again
            Loop(self, state, grid, seconds, evaluate_fn, self.checkpoint, report.round_done, again).run(num_rounds)
            if self.save is not None:
                save_model(self.save, state.arrays())
            report.end(state, self.save)
            return state.result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the participants and return the message for each, with the model given: lines 2 and 3."""
        if self._state is None or server_round <= self._state.rounds_done:  # driven by another loop than ours
            refuse_what_cannot_work(checkpoint=self.checkpoint, save=self.save, log=self.log or None)
            self._begin(arrays)
        state = self._begun()
        state.adopt(arrays)
        present = self._roster.gather(grid, self.num_clients, self.min_replies, self.patience)
        asked = draw(present, self.clients_per_round, Key(seed=self.seed, round=server_round - 1))
        log.info("round=%d: clients %s of %d present", server_round, list(asked), len(present))
        config[ROUND] = server_round
        if state.downloads is not None:
            state.downloads.open_round(list(asked))
        self._open = OpenRound.ask(server_round, asked, self._questions(MessageType.TRAIN, server_round, config))
        return list(self._open.asked.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and move the model by the mean of those that count: line 11."""
        state, opened = self._begun(), self._open
        if opened is None or opened.server_round != server_round:
            raise ConfigError(f"server_round={server_round} was not opened; call configure_train first")
        weighted_by = self.weighted_by_key if isinstance(self.aggregation, WeightedMean) else None
        replies = list(replies)
        opened.heed(replies, state.downloads)
        rules = Rules(state.layout, self.quantizer, self.max_update_norm, self.seed, server_round - 1, weighted_by)
        closed = opened.close(replies, rules, self.aggregation, state.exact)
        closed.log()
        state.note_makers(closed.counted)
        params, exact = state.params, state.exact
        if len(closed.counted) >= self.min_replies:
            self._failed = 0
            params, exact = closed.mean.apply(state.moved)
        else:
            self._failed += 1
            few = f"round={server_round}: {len(closed.counted)} replies count, min_replies={self.min_replies}"
            log.warning("%s; the model stays as it is", few)
            if self._failed >= self.max_failed_rounds:
                raise ConfigError(
                    f"{few}; max_failed_rounds={self.max_failed_rounds} rounds in a row had too few: "
                    f"{'; '.join(closed.faults()[:3])}"
                )
        pricing = None
        if self.cost_model is not None:
            pricing = Pricing(self.cost_model, self.gradients_per_client, self.seed)
        contents = [upload.content for upload in closed.counted]
        reported = self.train_metrics_aggr_fn(contents, self.weighted_by_key) if contents else MetricRecord()
        record = record_of(closed, state.layout.dimension, reported, pricing)
        state.advance(record, params, exact)
        return state.record(), MetricRecord(record.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each client that evaluates: a fraction of those present."""
        present = self._roster.present(grid) if self.fraction_evaluate else {}
        if not present:
            return []
        count = max(self.min_evaluate_nodes, 1, math.floor(self.fraction_evaluate * len(present)))
        drawn = draw(present, count, Key(seed=self.seed, round=server_round - 1, client=EVALUATION))
        config[ROUND] = server_round
        kind, state = MessageType.EVALUATE, self._state
        if state is not None and state.downloads is not None and state.is_model(arrays):
            self._evaluating = OpenRound.ask(server_round, drawn, self._questions(kind, server_round, config))
            return list(self._evaluating.asked.values())
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        group = str(server_round)
        return [Message(content, node, kind, ttl=self._ttl, group_id=group) for node in drawn.values()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of what the clients measured, weighted by ``weighted_by_key``."""
        replies, good = list(replies), []
        if self._evaluating is not None:
            self._evaluating.heed(replies, self._begun().downloads)
        for reply in replies:
            if reply.has_error():
                log.warning("round=%d: an evaluation failed: %s", server_round, reply.error.reason)
            elif "needs" not in protocol.record_in(reply):
                good.append(reply.content)
        means = self.evaluate_metrics_aggr_fn(good, self.weighted_by_key) if good else MetricRecord()
        return means if means else None

    def send_again(self, reply: Message) -> Message | None:
        """Return the message with the whole model for a client that says it needs it, else None."""
        opened = (each for each in (self._open, self._evaluating) if each is not None)
        return next(filter(None, (each.again(reply) for each in opened)), None)

    def _questions(self, kind: str, server_round: int, config: ConfigRecord) -> Questions:
        state = self._begun()
        content = {self.configrecord_key: config}
        model = state.model_for(self.arrayrecord_key)
        return Questions(kind, server_round, content, model, self.seed, state.layout, self._ttl)

    def summary(self) -> None:
        """Log the settings, and how to go on after a stop."""
        for line in self._described(self._state):
            log.info("%s", line)

    def _begin(self, arrays: ArrayRecord, configs: dict[str, ConfigRecord] | None = None) -> State:
        """Return the state to start from: the checkpoint's, or that of the initial model."""
        self._state, self._failed = State.begin(self._fixed(), arrays, self.exact, configs, self.downlink), 0
        if self.checkpoint is not None and checkpoints.exists(self.checkpoint):
            self._state = load_state(self.checkpoint).continuing(self._state, self.checkpoint)
            log.info("continuing after round %d from %s", self._state.rounds_done, self.checkpoint)
        return self._state

    def _begun(self) -> State:
        if self._state is None:
            raise ConfigError("the strategy has no model yet; call start, or configure_train first")
        return self._state

    @property
    def _ttl(self) -> float:
        return self.deadline + TTL_SLACK
