"""Pictures: whether one can be written, told before hours of work rather than after."""

from __future__ import annotations

from pathlib import Path

from fedpaq.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")


def require_picture(path: Path, *, wanted: bool, advice: str) -> None:
    """Raise ConfigError unless ``path`` has the suffix of a picture and the command draws one."""
    if not wanted:
        raise ConfigError(f"plot={str(path)!r} cannot be drawn; {advice}")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"plot={str(path)!r} has no known form; choose FILE{', FILE'.join(SUFFIXES)}")
