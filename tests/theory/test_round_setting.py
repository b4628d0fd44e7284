"""RoundSetting: its name, its levels where it has some, and JSON."""

from __future__ import annotations

import json

import pytest

from fedpaq.quantizers import Identity, LowPrecision, parse
from fedpaq.theory.round_setting import RoundSetting


@pytest.mark.parametrize(
    ("quantizer", "levels", "name"),
    [
        (Identity(), 0, "no quantizer"),
        (LowPrecision(3), 3, "s=3"),
        (LowPrecision(3, bucket_size=128), None, "low-precision:3,bucket_size=128"),
    ],
)
def test_a_setting_is_named_by_its_levels_or_its_quantizer(quantizer, levels, name):
    setting = RoundSetting(5, 10, quantizer)
    assert setting.levels == levels and str(setting) == f"tau=5, r=10, {name}"
    values = json.loads(json.dumps(setting.to_dict()))
    assert (values["local_steps"], values["clients_per_round"], values["levels"]) == (5, 10, levels)
    assert parse(values["quantizer"]) == quantizer


def test_no_quantizer_is_the_default_and_equal_settings_are_one_key():
    assert RoundSetting(1, 2) == RoundSetting(1, 2, Identity())
    assert len({RoundSetting(1, 2, LowPrecision(1)), RoundSetting(1, 2, LowPrecision(1)), RoundSetting(1, 2)}) == 2
