"""Coverage-guided fuzzing of configuration (needs the package ``atheris``, which is not a dependency).

    python -m tests.fuzz.parse_config tests/fuzz/corpora/config -max_total_time=600

An input is JSON: a mapping of parameters, handed to every object that takes such parameters, or any
other text, handed to what parses text. A finding is anything but ConfigError, or a config that
breaks its own promises.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

NAMES = {
    "FedPAQConfig": ("clients_per_round", "local_steps", "total_steps", "batch_size", "step_size", "seed"),
    "CostModel": ("bandwidth", "ratio", "shift", "scale", "accounting"),
    "LowPrecision": ("levels", "bucket_size"),
    "ClippedMean": ("max_norm",),
    "TrimmedMean": ("trim",),
    "Key": ("seed", "round", "client"),
    "CheckpointPolicy": ("path", "every", "resume"),
}


def check(data: bytes) -> None:
    """Raise AssertionError (or whatever escapes) if parsing mistreats ``data``."""
    text = data.decode("utf-8", "replace")
    _check_text(text)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        for name, parameters in NAMES.items():
            _check_object(name, {key: values[key] for key in parameters if key in values})


def _attempt(make: Callable[[], Any]) -> Any:
    from fedpaq.errors import ConfigError

    try:
        return make()
    except ConfigError:
        return None


def _check_text(text: str) -> None:
    from fedpaq.cli.units import parse_bandwidth
    from fedpaq.server.aggregation import find_aggregation

    rate = _attempt(lambda: parse_bandwidth(text))
    assert rate is None or isinstance(rate, float)
    _attempt(lambda: find_aggregation(text))


def _check_object(name: str, values: dict[str, Any]) -> None:
    import fedpaq
    from fedpaq.run.saving import CheckpointPolicy
    from fedpaq.server import aggregation

    known = {"FedPAQConfig": ("clients_per_round", "local_steps", "total_steps", "step_size"), "Key": ("seed",)}
    needed = {**known, "LowPrecision": ("levels",), "CheckpointPolicy": ("path",)}.get(name, ())
    if any(key not in values for key in needed):
        return
    kind = getattr(aggregation, name, None) or (
        CheckpointPolicy if name == "CheckpointPolicy" else getattr(fedpaq, name)
    )
    made = _attempt(lambda: kind(**values))
    if name == "FedPAQConfig" and made is not None:
        assert made.num_rounds * made.local_steps == made.total_steps
        assert made.step_size_at(0) > 0
        json.dumps(made.to_dict(), allow_nan=False)
        _attempt(lambda: made.check_against(10))
    if name == "CostModel" and made is not None:
        assert made.communication_seconds(8, 785) >= 0
    if name == "LowPrecision" and made is not None:
        assert made.name and made.variance_bound(785) >= 0


def main() -> None:
    """Fuzz until told to stop."""
    import atheris
    from tests.fuzz.cpu_time import within_a_second

    included = ["fedpaq.config", "fedpaq.cost_model", "fedpaq.cli", "fedpaq.server.aggregation", "fedpaq.errors"]
    with atheris.instrument_imports(include=included):
        pass
    check(b"{}")  # what is imported or compiled at first use is no hang
    atheris.Setup(sys.argv, within_a_second(check))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
