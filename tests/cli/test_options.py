"""Shared options: which quantizer they name, which pictures can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedpaq
from fedpaq.cli.options import choose_cost_model, choose_quantizer, require_picture
from fedpaq.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "quantizer"),
    [
        ((None, None), fedpaq.LowPrecision(1)),
        ((None, 0), fedpaq.Identity()),
        ((None, 3), fedpaq.LowPrecision(3)),
        ((None, None, 128), fedpaq.LowPrecision(1, 128)),
        ((None, 3, 128), fedpaq.LowPrecision(3, 128)),
        (("none", None), fedpaq.Identity()),
        (("low-precision:3,bucket_size=128", None), fedpaq.LowPrecision(3, 128)),
    ],
)
def test_levels_and_text_name_the_same_quantizers(given, quantizer):
    assert choose_quantizer(*given) == quantizer


@pytest.mark.parametrize(("levels", "bucket_size"), [(1, None), (0, None), (None, 8), (2, 8)])
def test_a_text_and_its_short_form_together_are_refused(levels, bucket_size):
    with pytest.raises(ConfigError, match="give one or the other"):
        choose_quantizer("low-precision:1", levels, bucket_size)


def test_any_split_of_a_gradient_is_in_units_of_it():
    shares = [number / 1000 for number in range(1, 1001)]
    models = [choose_cost_model(ratio=1, bandwidth=None, batch_size=9, straggler=share) for share in shares]
    assert not any(model.is_in_seconds for model in models)
    assert choose_cost_model(ratio=1, bandwidth=None, batch_size=9, round_seconds=5).is_in_seconds


@pytest.mark.parametrize("name", ["a.png", "b.SVG", "d.pdf"])
def test_a_picture_has_one_of_three_suffixes(name):
    require_picture(Path(name), drawn=True, advice="")


def test_a_picture_that_cannot_be_drawn_is_refused_with_advice():
    with pytest.raises(ConfigError, match=r"plot='a.png' cannot be drawn; add --measure"):
        require_picture(Path("a.png"), drawn=False, advice="add --measure")
    with pytest.raises(ConfigError, match=r"is not a picture; choose FILE.png, FILE.svg, FILE.pdf"):
        require_picture(Path("a.jpg"), drawn=True, advice="")
