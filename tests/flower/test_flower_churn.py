"""SuperNodes come and go for forty seconds, and the SuperLink is restarted: every mean stays right."""

from __future__ import annotations

import pytest

from fedpaq.flower.trial.watchdog import processes_of
from flower.deployments import warm_kernels
from repository import ROOT

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def test_every_mean_is_that_of_the_payloads_it_says_it_counted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import flower_churn

    warm_kernels()
    found = flower_churn.churn(tmp_path, seconds=40, supernodes=5, every=8, deadline=20)
    assert found["rounds"] >= 2 and found["counted"] >= 2  # the check itself raises where a mean is wrong
    events = [event["event"] for event in found["events"]]
    assert events.count("SuperLink killed and restarted") == 1 and len(events) >= 4
    assert not processes_of(tmp_path / "flwr-home")
