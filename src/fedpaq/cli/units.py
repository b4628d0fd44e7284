"""Numbers as people write them: 1 Mbit/s, 3.4 MB, 12 min."""

import re

from fedpaq.errors import ConfigError

_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_BANDWIDTH = re.compile(r"^\s*([0-9.eE+-]+)\s*([kKmMgG]?)\s*(bit|b|bps|B|byte|bytes|bits)\s*(?:/s|ps)?\s*$")


def parse_bandwidth(text: str, name: str = "bandwidth") -> float:
    """Return bits per second from ``1Mbit/s``, ``500 kbit/s``, ``2MB/s`` (8 bits per byte) or a plain number.

    >>> parse_bandwidth("1Mbit/s"), parse_bandwidth("2 MB/s"), parse_bandwidth("5e5")
    (1000000.0, 16000000.0, 500000.0)
    """
    try:
        return float(text)
    except ValueError:
        pass
    match = _BANDWIDTH.match(text)
    try:
        if match is None:
            raise ValueError
        number, prefix, unit = match.groups()
        bits = 8.0 if unit in ("B", "byte", "bytes") else 1.0
        return float(number) * _PREFIX[prefix.lower()] * bits
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a rate; write e.g. 1Mbit/s, 500kbit/s or 2MB/s") from None


def format_bytes(count: float) -> str:
    """Return a byte count in B, kB, MB or GB.

    >>> format_bytes(785), format_bytes(3_140_000)
    ('785 B', '3.14 MB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * size:  # rounds to 1 of this unit, not to 1000 of the one below
            return f"{three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Return a time in ms, s, min, h or days.

    >>> format_seconds(0.02), format_seconds(90), format_seconds(7200)
    ('20 ms', '1.5 min', '2 h')
    """
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 0.9995 * size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds * 1e3)} ms"


def three_digits(value: float) -> str:
    """Return a number with three digits, or all digits of a larger one: never an exponent."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
