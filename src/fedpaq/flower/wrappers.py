"""Wrappers: Flower's strategies that drive FedPAQ from outside, and what they cannot do.

Central differential privacy with client-side clipping works: clients clip before they quantize, and
the noise is in the model that the strategy is given. Server-side clipping needs the clients' models.
"""

import os
from traceback import walk_stack

from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedpaq.errors import ConfigError

SERVER_SIDE_CLIPPING = (DifferentialPrivacyServerSideAdaptiveClipping, DifferentialPrivacyServerSideFixedClipping)


def refuse_what_cannot_work(checkpoint: str | os.PathLike[str] | None) -> None:
    """Raise ConfigError if the calling strategy is driven in a way that cannot work, before any work."""
    if checkpoint is not None:
        raise ConfigError(
            f"checkpoint={str(checkpoint)!r} works with FedPAQ's own start only; inside another strategy, "
            "whose loop always begins at round 1, use checkpoint=None"
        )
    # Flower does not tell a strategy what wraps it; the stack of calls does.
    if any(isinstance(frame.f_locals.get("self"), SERVER_SIDE_CLIPPING) for frame, _ in walk_stack(None)):
        raise ConfigError(
            "FedPAQ's uploads are quantized updates, which server-side clipping cannot read; use "
            "DifferentialPrivacyClientSideFixedClipping with mods=[quantize_mod(...), fixedclipping_mod]"
        )
