"""Federated learning with tiny uploads: FedPAQ as published, entropy-coded on the wire.

Names are loaded when first used, so that ``import fedpaq`` costs nothing and a Flower client that
only quantizes never imports torch. Settings of torch's threads are made here, where torch is not loaded yet and the
user has not made them.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedpaq import codec, downlink, problems, quantizers
    from fedpaq.algorithm import sweep, train
    from fedpaq.codec import accumulate, decode, encode, encode_batch, message_bits, read_header
    from fedpaq.config import FedPAQConfig, WarmupCosine
    from fedpaq.cost_model import CostModel
    from fedpaq.downlink import Changes, Dense
    from fedpaq.errors import (
        CheckpointError,
        ConfigError,
        DatasetError,
        DivergedError,
        FedPAQError,
        LostRankError,
        MissingExtraError,
        NonFiniteUpdateError,
        WireFormatError,
    )
    from fedpaq.planner import plan
    from fedpaq.problems import Problem
    from fedpaq.quantizers import Identity, LowPrecision
    from fedpaq.quantizers.rotated import Rotated
    from fedpaq.randomness import Key
    from fedpaq.run.history import History, Record

_NAMES = {
    "algorithm": "sweep train",
    "codec": "accumulate decode encode encode_batch message_bits read_header",
    "config": "FedPAQConfig WarmupCosine",
    "cost_model": "CostModel",
    "downlink": "Changes Dense",
    "errors": "CheckpointError ConfigError DatasetError DivergedError FedPAQError LostRankError MissingExtraError "
    "NonFiniteUpdateError WireFormatError",
    "planner": "plan",
    "problems": "Problem",
    "quantizers": "Identity LowPrecision",
    "quantizers.rotated": "Rotated",
    "randomness": "Key",
    "run.history": "History Record",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("codec", "downlink", "problems", "quantizers")

__all__ = [*sorted(_HOME), *_PACKAGES]


def _set_up_threads() -> None:
    """Have OpenMP's threads, which torch uses, wait for a few microseconds instead of a millisecond.

    Beside other busy processes they would otherwise take each other's time. A container's quota limits their number.
    """
    from fedpaq.kernels.threads import quota_of_cores

    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"
    quota = quota_of_cores()
    if quota is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(quota))


_set_up_threads()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fedpaq.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fedpaq' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedpaq.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
