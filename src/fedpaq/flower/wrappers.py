"""Wrappers: Flower's strategies that drive FedPAQ from outside, and what they cannot do.

Central differential privacy with client-side clipping works: clients clip before they quantize, and
the noise is in the model that the strategy is given. Server-side clipping needs the clients' models.
"""

from traceback import walk_stack
from typing import Any

from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedpaq.errors import ConfigError

SERVER_SIDE_CLIPPING = (DifferentialPrivacyServerSideAdaptiveClipping, DifferentialPrivacyServerSideFixedClipping)


def refuse_what_cannot_work(**settings: Any) -> None:
    """Raise ConfigError if the calling strategy is driven in a way that cannot work, before any work.

    ``settings`` are those that FedPAQ's own loop sees to.
    """
    for name, value in settings.items():
        if value is not None:
            shown = repr(value if isinstance(value, list) else str(value))
            raise ConfigError(
                f"{name}={shown} works with FedPAQ's own start only; inside another strategy, whose loop always "
                f"begins at round 1 and does not say when it ends, leave {name} out"
            )
    # Flower does not tell a strategy what wraps it; the stack of calls does.
    if any(isinstance(frame.f_locals.get("self"), SERVER_SIDE_CLIPPING) for frame, _ in walk_stack(None)):
        raise ConfigError(
            "FedPAQ's uploads are quantized updates, which server-side clipping cannot read; use "
            "DifferentialPrivacyClientSideFixedClipping with mods=[quantize_mod(...), fixedclipping_mod]"
        )
