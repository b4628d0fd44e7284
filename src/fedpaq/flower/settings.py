"""Settings: what the strategy takes, checked by name before any work, and what stands in for FedAvg's arguments."""

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord, RecordDict

from fedpaq.config import (
    plain_number,
    require_function,
    require_instance_with,
    require_int,
    require_path,
    require_positive,
)
from fedpaq.cost_model import CostModel, require_cost_model
from fedpaq.downlink import Changes, Dense, Downlink, as_downlink
from fedpaq.errors import ConfigError
from fedpaq.flower.layout import EXACT
from fedpaq.flower.metrics import mean_metrics
from fedpaq.flower.state import State
from fedpaq.quantizers import Quantizer
from fedpaq.quantizers.registry import as_quantizer
from fedpaq.run.log import RoundLog
from fedpaq.server.aggregation import Aggregation, Mean, as_aggregation
from fedpaq.storage.atomic_file import StrPath

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
Log = StrPath | RoundLog

INSTEAD = {  # what FedAvg's users write, and what they write here
    "fraction_train": "clients_per_round=..., the number of clients to draw",
    "min_train_nodes": "clients_per_round=... for the clients to draw, min_replies=... for the replies that are enough",
    "min_available_nodes": "num_clients=..., the clients to wait for before each draw",
}
NUMBERS = (
    "clients_per_round", "num_clients", "seed", "min_replies", "max_failed_rounds", "min_evaluate_nodes",
    "deadline", "patience", "fraction_evaluate", "max_update_norm", "gradients_per_client",
)  # fmt: skip
SAVED_AS = (".npz", ".safetensors")
UNSAID = {"max_update_norm": None, "weighted_by_key": "num-examples"}  # defaults that the first line leaves out


class Settings:
    """The arguments of ``FedPAQ``, which says what they mean, as attributes."""

    def __init__(
        self,
        *,
        clients_per_round: int | None = None,
        num_clients: int | None = None,
        seed: int = 0,
        deadline: float = 600.0,
        patience: float = 60.0,
        min_replies: int = 1,
        max_failed_rounds: int = 3,
        max_update_norm: float | None = None,
        quantizer: Quantizer | str | None = None,
        aggregation: Aggregation | str | None = None,
        exact: Sequence[str] | str = EXACT,
        checkpoint: StrPath | None = None,
        save: StrPath | None = None,
        log: Log | Sequence[Log] | None = None,
        cost_model: CostModel | None = None,
        gradients_per_client: int | None = None,
        downlink: Downlink | str | None = None,
        fraction_evaluate: float = 1.0,
        min_evaluate_nodes: int = 1,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        **unknown: Any,
    ) -> None:
        _refuse_unknown(unknown)
        self.clients_per_round = _require_clients(clients_per_round)
        self.num_clients = self.clients_per_round if num_clients is None else num_clients
        self.seed, self.min_replies = seed, min_replies
        self.deadline, self.patience = deadline, patience
        self.checkpoint, self.save = checkpoint, save
        logs = [] if log is None else list(log) if isinstance(log, list | tuple) else [log]
        self.log: list[Log] = logs  # type: ignore[assignment]
        self.max_failed_rounds, self.max_update_norm = max_failed_rounds, max_update_norm
        self.quantizer = None if quantizer is None else as_quantizer(quantizer)
        self.aggregation = as_aggregation(Mean() if aggregation is None else aggregation)
        self.exact = _patterns(exact)
        self.downlink = as_downlink(Dense() if downlink is None else downlink)
        self.cost_model, self.gradients_per_client = cost_model, gradients_per_client
        self.fraction_evaluate, self.min_evaluate_nodes = fraction_evaluate, min_evaluate_nodes
        self.train_metrics_aggr_fn = mean_metrics if train_metrics_aggr_fn is None else train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = mean_metrics if evaluate_metrics_aggr_fn is None else evaluate_metrics_aggr_fn
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self._check()

    def _fixed(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the run it continues."""
        coded = {} if isinstance(self.downlink, Dense) else {"downlink": self.downlink.name}
        return {
            "clients_per_round": self.clients_per_round,
            "num_clients": self.num_clients,
            "seed": self.seed,
            "quantizer": "any" if self.quantizer is None else self.quantizer.name,
            "aggregation": self.aggregation.name,
            **coded,
            "max_update_norm": None if self.max_update_norm is None else float(self.max_update_norm),
            "weighted_by_key": self.weighted_by_key,
            "min_replies": int(self.min_replies),
        }

    def _described(self, state: State | None) -> Iterator[str]:
        """Yield the lines with which a run begins."""
        more = {name: getattr(self, name) for name in ("deadline", "patience", "min_replies", "max_failed_rounds")}
        own = self._fixed().items()
        first = {name: value for name, value in own if name not in more and UNSAID.get(name, ...) != value}
        shown = ", ".join(f"{name}={value}" for name, value in {**first, **more}.items())
        yield f"{type(self).__name__}: {shown}"
        if state is not None:
            size = f"p={state.layout.dimension}, {state.layout.exact_bytes} bytes of exact arrays"
            yield f"run={state.run}: {size}, from round {state.rounds_done + 1}"
        if self.checkpoint is None:
            yield "checkpoint=None: a run that stops must start over; set checkpoint=FILE to resume it"
        else:
            yield f"if this run stops, run the app again as it is: it goes on from checkpoint={self.checkpoint}"

    def _check(self) -> None:
        """Raise ConfigError for the first setting of a strategy that is out of range."""
        require_int("num_clients", self.num_clients, self.clients_per_round)
        require_int("seed", self.seed, 0, 2**64 - 1)
        require_int("min_replies", self.min_replies, 1, self.clients_per_round)
        require_int("max_failed_rounds", self.max_failed_rounds, 1)
        require_int("min_evaluate_nodes", self.min_evaluate_nodes, 0)
        require_positive("deadline", self.deadline)
        require_positive("patience", self.patience, zero_allowed=True)
        require_positive("fraction_evaluate", self.fraction_evaluate, zero_allowed=True)
        if self.max_update_norm is not None:
            require_positive("max_update_norm", self.max_update_norm)
        if self.gradients_per_client is not None:
            require_int("gradients_per_client", self.gradients_per_client, 1)
        if type(self.downlink) is not Dense and not isinstance(self.downlink, Changes):
            raise ConfigError(
                f"downlink={self.downlink.name!r} cannot be sent through Flower, whose clients read a whole model or "
                "coded changes; choose 'dense', fedpaq.Changes(...) or a text such as 'rotated:1'"
            )
        for name in NUMBERS:  # NumPy's may overflow, and Flower's messages do not take them
            number = plain_number(getattr(self, name))
            setattr(self, name, number if number is None or isinstance(number, float) else operator.index(number))
        if self.cost_model is not None:
            require_cost_model(self.cost_model)
            if self.cost_model.accounting != "payload":
                raise ConfigError(
                    f"accounting={self.cost_model.accounting!r} of the cost model is the simulator's only; a "
                    "deployment charges the bytes that it sends: choose accounting='payload'"
                )
        for name in ("weighted_by_key", "arrayrecord_key", "configrecord_key"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name}={getattr(self, name)!r} is not text; write e.g. {name}='my-key'")
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            require_function(name, getattr(self, name))
        for log in self.log:
            if not isinstance(log, str | os.PathLike):
                require_instance_with("log", log, ("add", "__enter__", "__exit__"), "'run.csv', open_log('run.csv')")
        if self.checkpoint is not None:
            require_path("checkpoint", self.checkpoint, "run.ckpt")
        if self.save is not None:
            _check_save(self.save)


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    """Raise for arguments that FedPAQ does not have; name what replaces those of FedAvg."""
    for name, value in given.items():
        if name in INSTEAD:
            raise ConfigError(f"{name}={value!r} is FedAvg's and has no meaning in FedPAQ; write {INSTEAD[name]}")
        raise TypeError(f"FedPAQ() got an unexpected keyword argument {name!r}")


def _require_clients(given: int | None) -> int:
    """Return ``clients_per_round``, the one setting without a default."""
    if given is None:
        raise ConfigError("clients_per_round is missing; say how many clients to draw for each round, e.g. 10")
    require_int("clients_per_round", given, 1)
    return given


def _patterns(given: Any) -> tuple[str, ...]:
    """Return the patterns of exact arrays, or the only one, as texts."""
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigError(f"exact={pattern!r} is not a pattern of names; write e.g. exact=['*running_mean']")
    return tuple(map(str, patterns))


def _check_save(path: StrPath) -> None:
    """Raise ConfigError unless a model can be written to this file; say so now, not after a night of training."""
    require_path("save", path, "model.npz")
    target = Path(path)
    if target.suffix not in SAVED_AS:
        raise ConfigError(f"save={str(path)!r} has an unknown form; choose FILE.npz or FILE.safetensors")
    if not os.access(target.absolute().parent, os.W_OK):
        raise ConfigError(
            f"save={str(path)!r} is in a folder that does not exist or cannot be written; create it first"
        )
