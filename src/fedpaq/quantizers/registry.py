"""Registry: quantizers by name, and the text that names one with its settings.

    low-precision:4                     LowPrecision(4)
    low-precision:4,bucket_size=128     LowPrecision(4, bucket_size=128)
    rotated:0.03                        Rotated(bits=0.03)
    rotated:payload_bytes=300           Rotated(payload_bytes=300)
    rotated:0.03,blocks=1               Rotated(bits=0.03, blocks=1)
    none                                Identity()

A quantizer from elsewhere joins by one line: ``QUANTIZERS["my-name"] = MyQuantizer`` in Python, or an entry
point of the group ``fedpaq.quantizers`` in the package that holds it, which the command line finds as well.
"""

import functools
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from fedpaq.config import require_instance_with
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.quantizers.identity import Identity
from fedpaq.quantizers.low_precision import LowPrecision

Q = TypeVar("Q")
GROUP = "fedpaq.quantizers"
QUANTIZERS: dict[str, Any] = {  # a class, or where to find it when it is first needed
    "low-precision": LowPrecision,
    "rotated": "fedpaq.quantizers.rotated:Rotated",
    "none": Identity,
}


@functools.cache
def installed() -> dict[str, Any]:
    """Return the entry points of installed packages, by name; none is loaded yet."""
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Return the names of all quantizers, those of installed packages last."""
    return [*QUANTIZERS, *(name for name in installed() if name not in QUANTIZERS)]


def find(name: str) -> type[Any]:
    """Return the quantizer class of this name."""
    found = QUANTIZERS.get(name) or installed().get(name)
    if found is None:
        raise unknown_name("quantizer", name, names())
    if not isinstance(found, type):
        point = EntryPoint(name, found, GROUP) if isinstance(found, str) else found
        try:
            found = QUANTIZERS[name] = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"quantizer={name!r} is installed but cannot be loaded: {error}") from error
    kind: type[Any] = found
    return kind


def parse(text: str) -> Any:
    """Return the quantizer that a text names: a name, then its settings after a colon.

    >>> parse("low-precision:4,bucket_size=128")
    LowPrecision(levels=4, bucket_size=128)
    >>> parse("none")
    Identity()
    """
    if not isinstance(text, str):
        raise ConfigError(f"quantizer={text!r} is not text; write e.g. 'low-precision:4'")
    name, _, rest = text.strip().partition(":")
    kind, given, named = find(name), [], {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = part.partition("=")
        if equals:
            named[key.strip()] = _number(text, value)
        else:
            given.append(_number(text, part))
    try:
        return kind(*given, **named)
    except TypeError as error:
        raise ConfigError(f"quantizer={text!r} has settings that do not fit; write {_usage(name, kind)}") from error
    except ConfigError as error:
        if rest.strip():
            raise
        raise ConfigError(f"quantizer={text!r} needs its settings; write {_usage(name, kind)}") from error


def text_of(quantizer: Any) -> str:
    """Return the text that names a quantizer; what ``parse`` takes, if its class is registered.

    >>> text_of(LowPrecision(4)), text_of(Identity())
    ('low-precision:4', 'none')
    """
    own = type(quantizer)
    name = next((name for name in QUANTIZERS if find(name) is own), own.__qualname__)
    settings = []
    for at, field in enumerate(fields(quantizer) if is_dataclass(quantizer) else ()):
        value = getattr(quantizer, field.name)
        if value is not None and (at == 0 or value != field.default):
            settings.append(f"{value}" if at == 0 else f"{field.name}={value}")
    return f"{name}:{','.join(settings)}" if settings else name


def as_quantizer(given: Q | str) -> Q:
    """Return a quantizer given as one or as its text."""
    if isinstance(given, str):
        return cast(Q, parse(given))
    require_instance_with("quantizer", given, ("name", "quantize", "quantize_batch"), "LowPrecision(1), 'rotated:0.1'")
    return given


def _number(text: str, value: str) -> float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise ConfigError(f"quantizer={text!r}: {value.strip()!r} is not a number")


def _usage(name: str, kind: type[Any]) -> str:
    """Return how to write a quantizer's settings."""
    settings = fields(kind) if is_dataclass(kind) else ()
    words = [field.name.upper() if at == 0 else f"[,{field.name}=...]" for at, field in enumerate(settings)]
    return f"{name}:{''.join(words)}" if words else name
