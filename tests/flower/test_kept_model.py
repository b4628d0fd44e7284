"""KeptModel: where a client keeps its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fedpaq.flower.kept_model import KeptModel

pytestmark = pytest.mark.flower


def place(run="abc", client=3, **node_config):
    asked = ConfigRecord({"run": run, "client": client})
    return KeptModel.of(asked, Context(1, 1, node_config, RecordDict(), {})).path


def test_the_node_config_comes_before_the_environment_and_that_before_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDPAQ_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "fedpaq" in place().parts
    monkeypatch.setenv("FEDPAQ_CACHE", str(tmp_path / "env"))
    assert place() == tmp_path / "env" / "abc-3.model"
    assert place(**{"fedpaq-cache": str(tmp_path / "node")}) == tmp_path / "node" / "abc-3.model"


def test_a_hostile_run_id_stays_in_the_folder(monkeypatch):
    monkeypatch.setenv("FEDPAQ_CACHE", "kept")
    assert place(run="../../etc/passwd") == Path("kept/etcpasswd-3.model")
