"""Arms: every text is a quantizer, every name is one of its own, and savings are as the claims need them."""

from __future__ import annotations

from fedpaq import downlink, quantizers
from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN, RATES


def test_every_arm_can_be_made_and_has_a_name_of_its_own():
    arms = PLAIN + CODED
    for arm in arms:
        assert quantizers.parse(arm.quantizer).name
        assert arm.downlink is None or downlink.parse(arm.downlink).name.startswith(arm.downlink)
    assert len({arm.slug for arm in arms}) == len({arm.label for arm in arms}) == len(arms) == 11
    assert FLOAT32 is PLAIN[0]


def test_coded_arms_have_the_rates_of_the_plain_ones():
    assert [arm.quantizer for arm in CODED] == [arm.quantizer for arm in PLAIN[3:]]
    assert len(RATES) == 4
