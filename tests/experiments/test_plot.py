"""Plots: four panels with named axes, the same bytes from the same curves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.experiments import FIGURES, PaperSetting, plot
from fedpaq.experiments.plot import loss_range, ticks
from small_figure import planted

FIGURE = FIGURES["mnist"]


@pytest.fixture(scope="module")
def curves():
    return {setting: planted(setting, 0.9, noise=0.05) for setting in FIGURE.settings}


def test_axes_are_named_with_units_and_every_curve_is_in_a_legend(curves):
    canvas = plot.draw(FIGURE, curves, "payload")
    assert len(canvas.axes) == 4
    for axis, panel in zip(canvas.axes, FIGURE.panels, strict=True):
        assert axis.get_xlabel() == "modelled time (mean gradient times)"
        assert [text.get_text() for text in axis.get_legend().get_texts()] == list(panel.curves)
        assert len(axis.collections) == len(panel.curves)  # one band each
    assert canvas.axes[0].get_ylabel().startswith("relative training loss")


def test_the_same_curves_give_the_same_files(curves, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        plot.save_plots(FIGURE, curves, "fixed-width", tmp_path / name)
    for kind in ("png", "pdf"):
        one, other = (tmp_path / name / f"mnist-fixed-width.{kind}" for name in ("a", "b"))
        assert one.read_bytes() == other.read_bytes()
        assert len(one.read_bytes()) > 10_000


def brightness(colour):
    """Perceived lightness of a colour, 0 to 1: what is left without colour vision."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_curves_of_a_panel_differ_in_colour_and_marker_at_once():
    assert len(plot.LOOKS) >= max(len(panel.curves) for panel in FIGURE.panels)
    for one, other in itertools.combinations(plot.LOOKS, 2):
        assert one.colour != other.colour and one.marker != other.marker
        assert one.plotly_marker != other.plotly_marker
    assert all(brightness(look.colour) < 0.7 for look in plot.LOOKS)  # visible on white


@given(st.floats(1e-4, 10.0), st.floats(1.02, 1e4))
@settings(max_examples=50, deadline=None)
def test_ticks_lie_inside_the_axis_in_order_and_are_few(low, ratio):
    high = low * ratio
    found = ticks(low, high)
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in found)
    assert found == sorted(set(found)) and len(found) <= (14 if ratio > 6 else 9)
    assert len(found) >= (2 if ratio > 6 else 3)  # 1, 2, 5 are at most a factor 2.5 apart


@given(st.floats(0.5, 0.99), st.floats(0.0, 0.2))
@settings(max_examples=25, deadline=None)
def test_the_loss_axis_holds_every_band_with_a_little_air(factor, noise):
    pair = [planted(PaperSetting(1, 5, 10), factor, noise=noise), planted(PaperSetting(1, 5, 50), factor, noise=noise)]
    low, high = loss_range(pair)
    lowest = min(float((curve.loss / 2.0)[:, 1:].min()) for curve in pair)
    highest = max(float((curve.loss / 2.0)[:, 1:].max()) for curve in pair)
    assert low <= lowest * (1 + 1e-4) and highest * (1 - 1e-4) <= high
    assert high / low <= (highest / lowest) ** 1.1 * 1.001
