"""The sixth figure's picture: named axes, one legend, the same bytes from the same curves."""

from __future__ import annotations

import itertools

import pytest

from fedpaq.experiments import PLOTS, rate_plot
from fedpaq.experiments.rates import LABELS, MATCHED
from small_figure import planted


@pytest.fixture(scope="module")
def results():
    return [
        (plot, {setting: planted(setting, 0.9, noise=0.05) for setting in plot.settings}) for plot in PLOTS.values()
    ]


def test_axes_are_named_with_units_and_one_legend_names_all_curves(results):
    canvas = rate_plot.draw_rates(results)
    assert len(canvas.axes) == 6
    for axis, (plot, curves) in zip(canvas.axes, results, strict=False):
        assert axis.get_xlabel() == "uploaded so far by all clients (MB)"
        assert axis.get_title().startswith(plot.title)
        assert len(axis.get_lines()) == len(axis.collections) == len(curves)
    texts = [text.get_text() for text in canvas.axes[-1].get_legend().get_texts()]
    assert texts == list(results[0][0].panels[0].curves)


def test_x_is_the_bytes_and_y_the_loss(results):
    plot, curves = results[0]
    line = rate_plot.draw_rates(results).axes[0].get_lines()[0]
    curve = curves[plot.panels[0].curves["s = 1"]]
    assert line.get_xdata()[-1] == pytest.approx(curve.payload_bytes[:, -1].mean() / 1e6)
    assert line.get_ydata()[-1] == pytest.approx(curve.loss[:, -1].mean())


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_legend_has_a_place_whatever_is_finished(results, count):
    canvas = rate_plot.draw_rates(results[:count])
    assert canvas.axes[count].get_legend() is not None


def test_the_same_curves_give_the_same_files(results, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rate_plot.save_rate_plot(results[:2], tmp_path / name)
    for kind in ("png", "pdf"):
        one, other = ((tmp_path / name / f"rates.{kind}").read_bytes() for name in ("a", "b"))
        assert one == other and len(one) > 10_000


def test_one_colour_means_the_same_bytes_and_no_two_curves_look_alike():
    labels = list(next(iter(PLOTS.values())).panels[0].curves)
    looks = dict(zip(labels, rate_plot.RATE_LOOKS, strict=True))
    for levels, label in zip(MATCHED, LABELS, strict=False):
        assert looks[levels].colour == looks[label].colour
        assert looks[levels].hollow != looks[label].hollow and looks[levels].dash != looks[label].dash
    for one, other in itertools.combinations(looks.values(), 2):
        assert (one.marker, one.hollow) != (other.marker, other.hollow)
        assert one.plotly_marker != other.plotly_marker
