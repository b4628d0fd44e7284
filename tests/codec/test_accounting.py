"""The papers' counts."""

from __future__ import annotations

import pytest

from fedpaq.codec import message_bits
from fedpaq.errors import ConfigError


@pytest.mark.parametrize(("levels", "width"), [(1, 2), (2, 3), (3, 3), (4, 4), (5, 4), (10, 5), (32767, 16)])
def test_fixed_width_is_a_sign_and_a_level_each(levels, width):
    assert message_bits(1000, levels) == 1000 * width + 32


def test_elias_counts_about_sqrt_p_log_p_for_one_level():
    # (3 + 1.5 log2(2 (1 + 10^6) / 1001)) 1001 + 32
    assert message_bits(10**6, 1, "elias") == 19_498
    assert message_bits(10**6, 1, "elias") < message_bits(10**6, 1) / 100


def test_elias_never_exceeds_fixed_width():
    for levels in (1, 10, 100, 1000, 32767):
        assert message_bits(10_000, levels, "elias") <= message_bits(10_000, levels)


def test_each_bucket_has_its_own_norm():
    assert message_bits(1000, 1, bucket_size=300) == 2 * 1000 + 4 * 32
    assert message_bits(1000, 1, "elias", bucket_size=1000) == message_bits(1000, 1, "elias")


def test_unquantized_coordinates_take_32_bits():
    assert message_bits(785, None) == 25_120


def test_bad_arguments_are_named():
    with pytest.raises(ConfigError, match="did you mean 'elias'"):
        message_bits(10, 1, "ellias")
    with pytest.raises(ConfigError, match="levels=0"):
        message_bits(10, 0)
    with pytest.raises(ConfigError, match="dimension=0"):
        message_bits(0, 1)
    with pytest.raises(ConfigError, match="bucket_size=0"):
        message_bits(10, 1, bucket_size=0)
