"""Apps in here are run by Flower, not imported by pytest; the server polls without waiting."""

from __future__ import annotations

import pytest

from fedpaq.flower import exchange, roster

collect_ignore = ["apps"]


@pytest.fixture(autouse=True)
def brisk(monkeypatch):
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.002)
