"""Registry: the quantizer that a text such as ``low-precision:1`` names."""

from __future__ import annotations

from typing import Any

from fedpaq.errors import ConfigError, unknown_name
from fedpaq.quantizers.identity import Identity
from fedpaq.quantizers.low_precision import LowPrecision

QUANTIZERS: dict[str, Any] = {"low-precision": LowPrecision, "none": Identity}


def parse(text: str) -> Any:
    """Return the quantizer of a text ``name:value,option=value``.

    >>> parse("low-precision:4,bucket_size=128"), parse("none")
    (LowPrecision(levels=4, bucket_size=128), Identity())
    """
    name, _, rest = text.partition(":")
    if name not in QUANTIZERS:
        raise unknown_name("quantizer", name, QUANTIZERS)
    parts = [part.partition("=") for part in rest.split(",")] if rest else []
    try:
        values = [int(key) for key, equals, _ in parts if not equals]
        options = {key: int(value) for key, equals, value in parts if equals}
        return QUANTIZERS[name](*values, **options)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"quantizer={text!r} is not understood; write e.g. low-precision:1 or none") from None
