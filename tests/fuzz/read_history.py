"""Coverage-guided fuzzing of histories (needs the package ``atheris``, which is not a dependency).

    python -m tests.fuzz.read_history tests/fuzz/corpora/history -max_total_time=600

A finding is anything but ConfigError, or a history that JSON does not carry over unchanged.
"""

from __future__ import annotations

import sys


def check(data: bytes) -> None:
    """Raise AssertionError (or whatever escapes) if reading mistreats ``data``."""
    from fedpaq.errors import ConfigError
    from fedpaq.run.history import History

    try:
        history = History.from_json(data.decode("utf-8", "replace"))
    except ConfigError:
        return
    history.seconds_to(0.5)
    text = history.to_json()
    assert History.from_json(text).to_json() == text


def main() -> None:
    """Fuzz until told to stop."""
    import atheris
    from tests.fuzz.cpu_time import within_a_second

    with atheris.instrument_imports(include=["fedpaq.run.history", "json", "base64"]):
        import fedpaq.run.history  # noqa: F401
    check(b"{}")  # what is imported or compiled at first use is no hang
    atheris.Setup(sys.argv, within_a_second(check))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
