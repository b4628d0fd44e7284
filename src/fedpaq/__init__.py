"""Federated learning with tiny uploads: FedPAQ as published, entropy-coded on the wire."""

from __future__ import annotations

__version__ = "0.1.0"
