"""Everything fedpaq raises on purpose.

Messages read ``name=value``, then what is wrong, then what is allowed.
"""

import difflib
from collections.abc import Iterable


class FedPAQError(Exception):
    """Base of every error fedpaq raises on purpose."""


class ConfigError(FedPAQError, ValueError):
    """A parameter, name or combination of them that cannot work."""


class WireFormatError(FedPAQError, ValueError):
    """Bytes that are not a valid payload."""


class NonFiniteUpdateError(FedPAQError, ValueError):
    """A client's update holds NaN or infinity."""


class DivergedError(FedPAQError, ArithmeticError):
    """Training blew up: the loss is no longer finite."""


class MissingExtraError(FedPAQError, ImportError):
    """An optional dependency is not installed."""


class DatasetError(FedPAQError, OSError):
    """A dataset is missing, corrupt or of the wrong shape."""


class CheckpointError(FedPAQError, OSError):
    """A checkpoint is corrupt, foreign or from a future version."""


class LostRankError(FedPAQError, ConnectionError):
    """A process of a run that several share has gone, or does not answer."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """Build the error for a name that is not in a registry, with the nearest known one.

    >>> str(unknown_name("quantizer", "low-precison", ["identity", "low-precision"]))
    "unknown quantizer 'low-precison'; known: identity, low-precision (did you mean 'low-precision'?)"
    """
    known = list(known)
    nearest = difflib.get_close_matches(str(name)[:100], known, n=1)  # a name may come from a file
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return ConfigError(f"unknown {kind} {name!r}; known: {', '.join(known)}{hint}")
