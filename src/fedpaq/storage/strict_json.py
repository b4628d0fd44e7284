"""StrictJson: JSON as the standard defines it, for untrusted text. No NaN, no infinity, not even as 1e999."""

import json
import math
from typing import Any, NoReturn


def loads(text: str | bytes) -> Any:
    """Return the value of ``text``, or raise ValueError.

    >>> loads('{"loss": 0.5}')
    {'loss': 0.5}
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond a double")
    return value
