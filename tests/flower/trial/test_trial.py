"""The trial's command line."""

from __future__ import annotations

import sys

import pytest

from fedpaq.flower.trial import __main__

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rounds=3", 3),
        ("rate=0.5", 0.5),
        ("rate=.5", 0.5),
        ("name=x", "x"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("tiny=1e-3", 1e-3),
        ("flag=false", False),
        ("flag=true", True),
        ('name="x y"', "x y"),
        ("name='3'", "3"),
        ("quantizer=rotated:0.5,blocks=8", "rotated:0.5,blocks=8"),
        ("day=2026-01-02", "2026-01-02"),
        ("list=[1, 2]", "[1, 2]"),
    ],
)
def test_a_setting_on_the_command_line_is_read_as_toml_where_it_can(text, value):
    key, found = __main__._setting(text)
    assert key == text.split("=")[0] and found == value and type(found) is type(value)


def test_the_trial_s_command_line_has_sensible_defaults(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "app", "--tls", "--run-config", "a=1", "b=2"])
    found = __main__._parse()
    assert (found.app, found.supernodes, found.tls, found.run_config) == ("app", 4, True, ["a=1", "b=2"])
