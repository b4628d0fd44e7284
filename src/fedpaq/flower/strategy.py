"""The server's half: one line in a Flower ServerApp.

    strategy = FedPAQ(clients_per_round=4)
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)

One round (Algorithm 1):

    1  gather    wait until the clients are there                                    roster.py
    2  draw      exactly r of them, by seed and round, over their own numbers        line 2
    3  send      the model as one packed array, to each with its seed, round, number line 3
    4  collect   replies until the deadline; refuse what is malformed, and say why   replies.py
    5  mean      x_{k+1} = x_k + mean of the payloads that counted                   line 11, mean.py
    6  save      the state, in one step                                              state.py
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpaq.config import require_int, require_positive
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError
from fedpaq.flower import protocol
from fedpaq.flower.exchange import ask
from fedpaq.flower.layout import EXACT, as_record
from fedpaq.flower.metrics import Pricing, mean_metrics, round_metrics
from fedpaq.flower.replies import Rules
from fedpaq.flower.roster import Roster
from fedpaq.flower.rounds import ClosedRound, OpenRound
from fedpaq.flower.state import RoundRecord, State
from fedpaq.quantizers import Quantizer
from fedpaq.randomness import Key, sample_without_replacement
from fedpaq.server.aggregation import Aggregation
from fedpaq.storage import checkpoint as checkpoints

log = logging.getLogger("flwr")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
TTL_SLACK = 60.0  # seconds; the deadline is ours to watch, not the SuperLink's
EVALUATION = 1  # "client" of the stream that draws who evaluates; participants use 0


class FedPAQ(Strategy):
    """FedPAQ as a Flower strategy; clients need ``quantize_mod``.

    ``clients_per_round`` [r] clients are drawn from those connected; before each draw the server
    waits for ``num_clients`` [n] of them (default: r), but after ``patience`` seconds goes on with
    what is there. A round closes ``deadline`` seconds after the model was sent; with fewer than
    ``min_replies`` good replies the model stays as it is.

    ``max_update_norm`` refuses larger updates; ``quantizer`` refuses payloads made otherwise;
    ``aggregation`` (see ``fedpaq.server.aggregation``) replaces the plain mean. ``exact`` names arrays, by
    pattern, that are not quantized. ``checkpoint`` is a file: written after each round, and
    continued from if it exists. ``cost_model`` and ``gradients_per_client`` [tau B] add the
    modelled time to each round's metrics. ``fraction_evaluate``, ``weighted_by_key`` and the two
    record keys mean what they mean in Flower's FedAvg.
    """

    def __init__(
        self,
        *,
        clients_per_round: int,
        num_clients: int | None = None,
        seed: int = 0,
        deadline: float = 600.0,
        patience: float = 60.0,
        min_replies: int = 1,
        max_update_norm: float | None = None,
        quantizer: Quantizer | None = None,
        aggregation: Aggregation | None = None,
        exact: Sequence[str] = EXACT,
        checkpoint: str | os.PathLike[str] | None = None,
        cost_model: CostModel | None = None,
        gradients_per_client: int | None = None,
        fraction_evaluate: float = 1.0,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        self.clients_per_round, self.seed, self.min_replies = clients_per_round, seed, min_replies
        self.num_clients = clients_per_round if num_clients is None else num_clients
        self.deadline, self.patience, self.checkpoint = deadline, patience, checkpoint
        self.max_update_norm, self.quantizer = max_update_norm, quantizer
        self.aggregation, self.exact = aggregation, tuple(exact)
        self.cost_model, self.gradients_per_client = cost_model, gradients_per_client
        self.fraction_evaluate, self.weighted_by_key = fraction_evaluate, weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self._check()
        self._roster = Roster()
        self._state: State | None = None
        self._open: OpenRound | None = None

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

        The arguments are those of Flower's strategies; ``timeout`` caps the deadline.
        """
        require_int("num_rounds", num_rounds, 1)
        state = self._begin(initial_arrays)
        self.summary()
        train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        seconds = min(self.deadline, timeout)
        if evaluate_fn and not state.rounds_done:
            state.note("server", 0, evaluate_fn(0, initial_arrays))
        for at in range(state.rounds_done + 1, num_rounds + 1):
            log.info("[ROUND %d/%d]", at, num_rounds)
            messages = list(self.configure_train(at, initial_arrays, train_config, grid))
            arrays, _ = self.aggregate_train(at, ask(grid, messages, seconds))
            messages = list(self.configure_evaluate(at, arrays, evaluate_config, grid))
            state.note("clients", at, self.aggregate_evaluate(at, ask(grid, messages, seconds)))
            if evaluate_fn:
                state.note("server", at, evaluate_fn(at, arrays))
        self._save()
        return self._result()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the participants and return the message for each: lines 2 and 3."""
        state = self._state or self._begin(arrays)
        present = self._roster.gather(grid, self.num_clients, self.min_replies, self.patience)
        clients = list(present)
        key = Key(seed=self.seed, round=server_round - 1)
        drawn = sample_without_replacement(key, len(clients), min(self.clients_per_round, len(clients)))
        participants = [clients[at] for at in drawn]
        log.info("round=%d: clients %s of %d present", server_round, participants, len(clients))
        config["server-round"] = server_round
        packed = protocol.bytes_array(protocol.PACKED, state.layout.pack(state.arrays()))
        model = ArrayRecord({protocol.PACKED: packed})
        messages = {
            client: self._train_message(server_round, client, present[client], model, config)
            for client in participants
        }
        self._open = OpenRound(server_round, messages)
        return list(messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Check the replies, take the mean of those that count, save: line 11."""
        state, opened = self._begun(), self._open
        if opened is None or opened.server_round != server_round:
            raise ConfigError(f"server_round={server_round} was not opened; call configure_train first")
        rules = Rules(state.layout, self.quantizer, self.max_update_norm, self.seed, server_round - 1)
        closed = opened.close(replies, rules, self.aggregation)
        closed.log()
        params, exact = state.params, state.exact
        if len(closed.counted) >= self.min_replies:
            params, exact = closed.mean.apply(params)
        else:
            log.warning(
                "round=%d: %d replies count, min_replies=%d; the model stays as it is",
                server_round,
                len(closed.counted),
                self.min_replies,
            )
        record = self._record(closed)
        state.advance(record, params, exact)
        self._save()
        log.info("round=%d: %s", server_round, record.metrics)
        return as_record(state.arrays()), MetricRecord(record.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each client that evaluates: a fraction of those present."""
        present = self._roster.present(grid) if self.fraction_evaluate else {}
        if not present:
            return []
        count = min(len(present), max(1, math.floor(self.fraction_evaluate * len(present))))
        key = Key(seed=self.seed, round=server_round - 1, client=EVALUATION)
        nodes = [list(present.values())[at] for at in sample_without_replacement(key, len(present), count)]
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [self._message(content, node, MessageType.EVALUATE, server_round) for node in nodes]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of what the clients measured, weighted by their number of examples."""
        reports = []
        for reply in replies:
            if reply.has_error():
                log.warning("round=%d: an evaluation failed: %s", server_round, reply.error.reason)
            else:
                reports += list(reply.content.metric_records.values())[:1]
        means = mean_metrics(reports, self.weighted_by_key)
        return MetricRecord(means) if means else None

    def summary(self) -> None:
        """Log the settings."""
        log.info(
            "FedPAQ: clients_per_round=%d of num_clients=%d, seed=%d, deadline=%g s, min_replies=%d, p=%d, "
            "from round %d",
            self.clients_per_round,
            self.num_clients,
            self.seed,
            self.deadline,
            self.min_replies,
            self._begun().layout.dimension,
            self._begun().rounds_done + 1,
        )

    def _check(self) -> None:
        require_int("clients_per_round", self.clients_per_round, 1)
        require_int("num_clients", self.num_clients, self.clients_per_round)
        require_int("seed", self.seed, 0, 2**64 - 1)
        require_int("min_replies", self.min_replies, 1, self.clients_per_round)
        require_positive("deadline", self.deadline)
        require_positive("patience", self.patience, zero_allowed=True)
        require_positive("fraction_evaluate", self.fraction_evaluate, zero_allowed=True)
        if self.max_update_norm is not None:
            require_positive("max_update_norm", self.max_update_norm)
        if self.gradients_per_client is not None:
            require_int("gradients_per_client", self.gradients_per_client, 1)

    def _begin(self, arrays: ArrayRecord) -> State:
        """Return the state to start from: the checkpoint's, or that of the initial model."""
        settings = {
            "clients_per_round": self.clients_per_round,
            "num_clients": self.num_clients,
            "seed": self.seed,
            "aggregation": "mean" if self.aggregation is None else self.aggregation.name,
        }
        self._state = State.begin(settings, arrays, self.exact)
        if self.checkpoint is not None and checkpoints.exists(self.checkpoint):
            self._state = State.load(self.checkpoint).continuing(self._state, self.checkpoint)
            log.info("continuing after round %d from %s", self._state.rounds_done, self.checkpoint)
        return self._state

    def _begun(self) -> State:
        if self._state is None:
            raise ConfigError("the strategy has no model yet; call start, or configure_train first")
        return self._state

    def _train_message(
        self, server_round: int, client: int, node: int, model: ArrayRecord, config: ConfigRecord
    ) -> Message:
        asked = protocol.question(
            protocol.TRAIN,
            seed=str(self.seed),  # beyond the range of a record's integers
            round=server_round - 1,
            client=client,
            layout=self._begun().layout.to_json(),
        )
        content = RecordDict(
            {self.arrayrecord_key: model, self.configrecord_key: config, protocol.RECORD: asked}
        )
        return self._message(content, node, MessageType.TRAIN, server_round)

    def _message(self, content: RecordDict, node: int, kind: str, server_round: int) -> Message:
        return Message(content, node, kind, ttl=self.deadline + TTL_SLACK, group_id=str(server_round))

    def _record(self, closed: ClosedRound) -> RoundRecord:
        pricing = None
        if self.cost_model is not None:
            pricing = Pricing(self.cost_model, self.gradients_per_client, self.seed)
        reported = mean_metrics([upload.metrics for upload in closed.counted], self.weighted_by_key)
        return RoundRecord(
            server_round=closed.server_round,
            asked=closed.asked,
            counted=[upload.client for upload in closed.counted],
            rejected=closed.rejected,
            late=closed.late,
            metrics=reported | round_metrics(closed, self._begun().layout.dimension, pricing),
        )

    def _save(self) -> None:
        if self.checkpoint is not None:
            self._begun().save(self.checkpoint)

    def _result(self) -> Result:
        """Return Flower's result, with the rounds before a restart."""
        state = self._begun()
        result = Result(arrays=as_record(state.arrays()))
        for record in state.history:
            result.train_metrics_clientapp[record.server_round] = MetricRecord(record.metrics)
        for at, values in state.evaluations["clients"].items():
            result.evaluate_metrics_clientapp[at] = MetricRecord(values)
        for at, values in state.evaluations["server"].items():
            result.evaluate_metrics_serverapp[at] = MetricRecord(values)
        return result
