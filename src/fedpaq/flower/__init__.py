"""FLOWER: FedPAQ in a real deployment. One client mod, one server strategy.

    mod.py       client: replaces the trained model in a reply by the payload of Q(x_local - x_received)
    strategy.py  server: draws the clients, sends the model, takes the mean of the payloads
    settings.py  server: its settings, checked; what replaces FedAvg's arguments
    loop.py      server: the rounds of a run, saved, evaluated and resumed
    report.py    server: what the operator sees: a line per round, a table, rows for trackers
    state.py     server: the run between two rounds
    state_file.py  server: that state on disk
    downloads.py   server: coded downloads, and which model each client holds
    roster.py    server: which client runs on which Flower node
    exchange.py  server: sends messages, and gathers replies until a deadline
    rounds.py    server: one round, from its questions to its record
    replies.py   server: checks everything in a reply before it is used
    mean.py      server: the mean of the uploads that count
    metrics.py   server: what clients reported, and what a round cost
    model_file.py  server: the final model as a file
    wrappers.py  server: which of Flower's wrappers cannot drive the strategy
    kept_model.py  client: the model it keeps between messages, in a file
    layout.py    both: which arrays of a model form the flat vector
    protocol.py  both: names of records and keys on the wire
    trial/       a real deployment on one machine, to try an app

Names load when first used, so that a client imports neither torch nor the strategy.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from fedpaq.errors import MissingExtraError

if importlib.util.find_spec("flwr") is None:
    raise MissingExtraError("fedpaq.flower needs Flower; install it with: pip install 'fedpaq[flower]'")

if TYPE_CHECKING:
    from fedpaq.flower.mod import quantize_mod
    from fedpaq.flower.strategy import FedPAQ

_HOME = {"FedPAQ": "strategy", "quantize_mod": "mod"}

__all__ = ["FedPAQ", "quantize_mod"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedpaq.flower' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedpaq.flower.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
