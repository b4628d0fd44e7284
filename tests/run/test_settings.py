"""RunSettings: checked before the first round, and the identity of a run."""

from __future__ import annotations

import pytest

import fedpaq
from run.test_recorder import Recorded, configs_of


def test_the_identity_names_everything_that_fixes_the_bits():
    identity = Recorded(configs_of(2), quantizer=fedpaq.LowPrecision(3)).settings.identity()
    assert identity["quantizer"] == "low-precision:3" and identity["downlink"]["name"] == "dense"
    assert len(identity["configs"]) == 2 and identity["evaluate_every"] == 1
    other = Recorded(configs_of(2), quantizer=fedpaq.LowPrecision(4)).settings.identity()
    assert {name for name in identity if identity[name] != other[name]} == {"quantizer", "quantizer_name"}


@pytest.mark.parametrize(("accounting", "bits"), [("payload", 8 * 7), ("fixed-width", 2 * (3 * 3 + 32))])
def test_bits_are_counted_as_the_cost_model_says(accounting, bits):
    cost = fedpaq.CostModel(bandwidth=1.0, accounting=accounting)
    settings = Recorded(configs_of(), quantizer=fedpaq.LowPrecision(3), cost=cost).settings
    assert settings.counted_bits(7) == bits and settings.num_rounds == 3
