"""Settings: what the strategy takes, checked by name before any work, and what stands in for FedAvg's arguments."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpaq.config import require_int, require_positive
from fedpaq.downlink import Changes, Dense
from fedpaq.errors import ConfigError
from fedpaq.flower.state import State

INSTEAD = {  # what FedAvg's users write, and what they write here
    "fraction_train": "clients_per_round=..., the number of clients to draw",
    "min_train_nodes": "clients_per_round=... for the clients to draw, min_replies=... for the replies that are enough",
    "min_available_nodes": "num_clients=..., the clients to wait for before each draw",
}
SAVED_AS = (".npz", ".safetensors")
UNSAID = {"max_update_norm": None, "weighted_by_key": "num-examples"}  # defaults that the first line leaves out


def refuse_unknown(given: Mapping[str, Any]) -> None:
    """Raise for arguments that FedPAQ does not have; name what replaces those of FedAvg."""
    for name, value in given.items():
        if name in INSTEAD:
            raise ConfigError(f"{name}={value!r} is FedAvg's and has no meaning in FedPAQ; write {INSTEAD[name]}")
        raise TypeError(f"FedPAQ() got an unexpected keyword argument {name!r}")


def require_clients(given: int | None) -> int:
    """Return ``clients_per_round``, the one setting without a default."""
    if given is None:
        raise ConfigError("clients_per_round is missing; say how many clients to draw for each round, e.g. 10")
    require_int("clients_per_round", given, 1)
    return given


def fixed(settings: Any) -> dict[str, Any]:
    """Return what a resumed run must have in common with the run it continues."""
    coded = {} if isinstance(settings.downlink, Dense) else {"downlink": settings.downlink.name}
    return {
        "clients_per_round": settings.clients_per_round,
        "num_clients": settings.num_clients,
        "seed": settings.seed,
        "quantizer": "any" if settings.quantizer is None else settings.quantizer.name,
        "aggregation": settings.aggregation.name,
        **coded,
        "max_update_norm": None if settings.max_update_norm is None else float(settings.max_update_norm),
        "weighted_by_key": settings.weighted_by_key,
        "min_replies": int(settings.min_replies),
    }


def described(settings: Any, state: State | None) -> Iterator[str]:
    """Yield the lines with which a run begins."""
    more = {name: getattr(settings, name) for name in ("deadline", "patience", "min_replies", "max_failed_rounds")}
    own = fixed(settings).items()
    first = {name: value for name, value in own if name not in more and UNSAID.get(name, ...) != value}
    shown = ", ".join(f"{name}={value}" for name, value in {**first, **more}.items())
    yield f"{type(settings).__name__}: {shown}"
    if state is not None:
        size = f"p={state.layout.dimension}, {state.layout.exact_bytes} bytes of exact arrays"
        yield f"run={state.run}: {size}, from round {state.rounds_done + 1}"
    if settings.checkpoint is None:
        yield "checkpoint=None: a run that stops must start over; set checkpoint=FILE to resume it"
    else:
        yield f"if this run stops, run the app again as it is: it goes on from checkpoint={settings.checkpoint}"


def check(settings: Any) -> None:
    """Raise ConfigError for the first setting of a strategy that is out of range."""
    require_int("num_clients", settings.num_clients, settings.clients_per_round)
    require_int("seed", settings.seed, 0, 2**64 - 1)
    require_int("min_replies", settings.min_replies, 1, settings.clients_per_round)
    require_int("max_failed_rounds", settings.max_failed_rounds, 1)
    require_int("min_evaluate_nodes", settings.min_evaluate_nodes, 0)
    require_positive("deadline", settings.deadline)
    require_positive("patience", settings.patience, zero_allowed=True)
    require_positive("fraction_evaluate", settings.fraction_evaluate, zero_allowed=True)
    if settings.max_update_norm is not None:
        require_positive("max_update_norm", settings.max_update_norm)
    if settings.gradients_per_client is not None:
        require_int("gradients_per_client", settings.gradients_per_client, 1)
    if type(settings.downlink) is not Dense and not isinstance(settings.downlink, Changes):
        raise ConfigError(
            f"downlink={settings.downlink.name!r} cannot be sent through Flower, whose clients read a whole model or "
            "coded changes; choose 'dense', fedpaq.Changes(...) or a text such as 'rotated:1'"
        )
    if settings.cost_model is not None and settings.cost_model.accounting != "payload":
        raise ConfigError(
            f"accounting={settings.cost_model.accounting!r} of the cost model is the simulator's only; a deployment "
            "charges the bytes that it sends: choose accounting='payload'"
        )
    if settings.save is not None:
        check_save(settings.save)


def check_save(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless a model can be written to this file; say so now, not after a night of training."""
    target = Path(path)
    if target.suffix not in SAVED_AS:
        raise ConfigError(f"save={str(path)!r} has an unknown form; choose FILE.npz or FILE.safetensors")
    if not os.access(target.absolute().parent, os.W_OK):
        raise ConfigError(
            f"save={str(path)!r} is in a folder that does not exist or cannot be written; create it first"
        )
