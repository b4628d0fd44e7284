"""Registry: a quantizer from its text, ``low-precision:1`` or ``none``."""

from __future__ import annotations

from fedpaq.errors import ConfigError
from fedpaq.quantizers.identity import Identity
from fedpaq.quantizers.low_precision import LowPrecision


def parse(text: str) -> LowPrecision | Identity:
    """Return the quantizer that ``text`` names.

    >>> parse("low-precision:1")
    LowPrecision(levels=1, bucket_size=None)
    """
    name, *numbers = text.split(":")
    try:
        if name == "none" and not numbers:
            return Identity()
        if name == "low-precision" and 1 <= len(numbers) <= 2:
            return LowPrecision(*map(int, numbers))
    except ValueError:
        pass
    raise ConfigError(f"quantizer={text!r} is unknown; write low-precision:LEVELS or none")
