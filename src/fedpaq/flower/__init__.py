"""FLOWER: FedPAQ in a real deployment. One client mod, one server strategy.

    mod.py       client: replaces the trained model in a reply by the payload of Q(x_local - x_received)
    strategy.py  server: draws the clients, sends the model, adds up the payloads that arrived
    roster.py    server: which client sits behind which Flower node
    exchange.py  server: send, and gather replies until a deadline
    replies.py   server: believe nothing in a reply before it is checked
    state.py     server: the run between two rounds, saved and resumed
    layout.py    both: which arrays of a model form the flat vector
    protocol.py  both: names of records and keys on the wire
    loopback.py  a real deployment on one machine, to try an app

Names load when first used: a client imports neither torch nor the strategy.
"""

from __future__ import annotations

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
