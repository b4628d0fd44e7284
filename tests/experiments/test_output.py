"""What a reproduction leaves: folder, report, tables and axes; verdicts against independent loops."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import CostModel
from fedpaq.config import round_to_4_digits
from fedpaq.errors import ConfigError
from fedpaq.experiments import (
    CLAIMS,
    FIGURES,
    Curve,
    CurveStore,
    Output,
    Setting,
    choose,
    judge,
    judging,
    markdown,
)
from fedpaq.experiments import tuning as tuning_rule
from fedpaq.experiments.curve import ACCOUNTINGS, CurveSettings, curve_settings, rounded
from fedpaq.experiments.evidence import Evidence
from fedpaq.experiments.loss_axis import loss_range, ticks
from fedpaq.experiments.report import save_report
from fedpaq.experiments.runner import expected_gradients
from small_figure import SMALL, planted

MNIST = FIGURES["mnist"]


def mnist_curves(factor=0.9, noise=0.02):
    return {setting: planted(setting, factor, noise=noise) for setting in MNIST.settings}


@pytest.fixture(scope="module")
def curves():
    return mnist_curves()


@pytest.fixture(scope="module")
def verdicts(curves):
    return judge(MNIST, curves)


def stored(folder, figure):
    """A folder with a planted curve for each setting of a figure, under the names the store looks for."""
    store = CurveStore(folder)
    for wanted in curve_settings(figure):
        curve = planted(wanted.setting, 0.9, noise=0.02)
        store.save(figure, dataclasses.replace(curve, settings=wanted))
    return Output(folder)


def test_a_folder_without_curves_has_no_finished_figure(tmp_path):
    output = Output(tmp_path)
    assert output.finished() == []
    assert output.save_summary() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "verdicts.json"]


def test_the_summary_is_what_judging_the_stored_curves_gives(tmp_path):
    output = stored(tmp_path, MNIST)
    verdicts = output.save_summary()
    ((figure, curves),) = output.finished()
    assert figure is MNIST and verdicts == judge(MNIST, curves)
    assert json.loads((tmp_path / "verdicts.json").read_text()) == verdicts
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    output.save_summary()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_one_missing_curve_makes_a_figure_unfinished(tmp_path):
    output = stored(tmp_path, MNIST)
    last = curve_settings(MNIST)[-1]
    output.store.path(MNIST, last).unlink()
    assert output.store.load(MNIST, last) is None
    assert output.store.figure(MNIST) is None and output.finished() == []


def test_a_curve_of_other_settings_is_never_taken_for_this_one(tmp_path):
    output = stored(tmp_path, MNIST)
    for wanted in curve_settings(MNIST):
        other = dataclasses.replace(wanted, total_steps=200)
        assert output.store.load(MNIST, other) is None
        assert wanted.setting.slug in output.store.path(MNIST, wanted).name


def report_data(path):
    """The data inside a report, as the page's own script would parse it."""
    text = path.read_text(encoding="utf-8")
    start = text.index('{"version"')
    return json.JSONDecoder().raw_decode(text[start:].replace("<\\/", "</"))[0]


def test_the_report_holds_every_curve_from_the_first_round_on(tmp_path, curves, verdicts):
    save_report([(MNIST, curves)], verdicts, tmp_path / "report.html")
    data = report_data(tmp_path / "report.html")
    assert data["verdicts"] == verdicts
    (figure,) = data["figures"]
    assert [panel["name"] for panel in figure["panels"]] == ["levels", "clients", "steps", "methods"]
    model = CostModel.from_ratio(MNIST.ratio)
    for drawn, panel in zip(figure["panels"], MNIST.panels, strict=True):
        assert [curve["label"] for curve in drawn["curves"]] == list(panel.curves)
        for found, setting in zip(drawn["curves"], panel.curves.values(), strict=True):
            curve = curves[setting]
            assert len(found["loss"]) == len(found["mean"]) == setting.num_rounds
            assert found["loss"][-1] == pytest.approx(curve.loss[:, -1].mean(), rel=1e-5)
            assert all(a <= b <= c for a, b, c in zip(found["low"], found["mean"], found["high"], strict=True))
            for count in ACCOUNTINGS:
                last = curve.axis("seconds", count, model)[:, -1].mean()
                assert found["seconds"][count][-1] == pytest.approx(last, rel=1e-5)
                assert found["bits"][count] == sorted(found["bits"][count])


def test_the_report_needs_no_network_and_no_data_can_end_its_script(tmp_path, curves, verdicts):
    hostile = [{**verdicts[0], "sentence": "</script><script>alert(1)</script>"}]
    save_report([(MNIST, curves)], hostile, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "</script><script>alert" not in text
    assert report_data(tmp_path / "report.html")["verdicts"] == hostile
    own = text.split('{"version"')[0].split("</script>")[-1]
    assert not re.search(r"(src|href)\s*=\s*[\"']https?:", own)


def test_scores_add_up_to_the_number_of_claims(verdicts):
    rows = [row.split("|")[1:-1] for row in markdown.score(verdicts).splitlines()[2:]]
    assert len(rows) == len(ACCOUNTINGS)
    for row, accounting in zip(rows, ACCOUNTINGS, strict=True):
        counts = [int(cell) for cell in row[1:]]
        assert sum(counts) == len(verdicts)
        found = [entry["judged"][accounting]["verdict"] for entry in verdicts]
        assert counts == [found.count(name) for name in ("holds", "does not hold", "undecided")]


def test_the_table_of_verdicts_has_four_cells_for_each_claim(verdicts):
    rows = markdown.verdict_table(verdicts).splitlines()
    assert len(rows) == 2 + len(verdicts)
    for row, entry in zip(rows[2:], verdicts, strict=True):
        cells = row.split(" | ")
        assert len(cells) == 4 and entry["criterion"] == cells[1]
        for cell, accounting in zip(cells[2:], ACCOUNTINGS, strict=True):
            judged = entry["judged"][accounting]
            assert f"**{judged['verdict']}**" in cell and markdown.MARKS[judged["verdict"]] in cell
            assert ("<br>" in cell) == (judged["decisive"] is not None)


def test_the_table_of_curves_says_what_each_reached_and_cost(curves):
    rows = markdown.curve_table(MNIST, curves).splitlines()[2:]
    model = CostModel.from_ratio(MNIST.ratio)
    for row, (setting, curve) in zip(rows, curves.items(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == setting.slug and cells[1] == "0.1"
        assert cells[2].startswith(f"{curve.loss[:, -1].mean():.4g} ± ")
        assert cells[3] == ("4,000" if setting.levels is None else "40")  # as planted
        seconds = [curve.axis("seconds", count, model)[:, -1].mean() for count in ACCOUNTINGS]
        assert cells[4:] == [f"{value:,.0f}" for value in seconds]


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
    pair = [planted(Setting(1, 5, 10), factor, noise=noise), planted(Setting(1, 5, 50), factor, noise=noise)]
    low, high = loss_range(pair)
    lowest = min(float((curve.loss / 2.0)[:, 1:].min()) for curve in pair)
    highest = max(float((curve.loss / 2.0)[:, 1:].max()) for curve in pair)
    assert low <= lowest * (1 + 1e-4) and highest * (1 - 1e-4) <= high
    assert high / low <= (highest / lowest) ** 1.1 * 1.001


@given(st.lists(st.floats(-1e12, 1e12), max_size=20))
@settings(max_examples=50, deadline=None)
def test_rounding_to_six_digits_is_idempotent_and_right_to_half_a_millionth(values):
    once = rounded(values)
    assert rounded(once) == once
    np.testing.assert_allclose(once, values, rtol=5e-6)


def time_by_loop(curve, seed, level, accounting, model):
    """Seconds until the loss is first at or below the level, walked round by round."""
    setting, seconds = curve.settings.setting, 0.0
    for k in range(curve.loss.shape[1]):
        if accounting == "payload":
            bits = 8 * curve.payload_bytes[seed, k]
        else:
            width = 32 if setting.levels is None else 1 + math.ceil(math.log2(setting.levels + 1))
            norm = 0 if setting.levels is None else 32
            bits = k * setting.clients_per_round * (curve.dimension * width + norm)
        seconds = curve.computation_seconds[seed, k] + bits / model.bandwidth_for(curve.dimension)
        if curve.loss[seed, k] <= level * (1 + 1e-9):
            return seconds
    raise AssertionError(f"level {level} is never reached")


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
@pytest.mark.parametrize("pair", [("s = 1", "no quantization"), ("s = 10", "s = 1")])
def test_times_at_levels_equal_a_walk_through_the_rounds(pair, accounting, curves):
    settings_of = MNIST.panel("levels").curves
    first, second = (curves[settings_of[name]] for name in pair)
    model = CostModel.from_ratio(MNIST.ratio)
    ratios = judging.times_at_levels(first, second, pair, accounting, model)
    levels = judging.common_levels(first, second)
    for level, found in zip(levels, ratios, strict=True):
        times = [
            [time_by_loop(c, seed, level, accounting, model) for seed in range(5)] for c in (first, second)
        ]
        expected = math.exp(sum(math.log(b / a) for a, b in zip(*times, strict=True)) / 5)
        assert found.value == pytest.approx(expected)
        assert f"time of {pair[1]} / {pair[0]} to loss {level:.3g}" == found.what


positive = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=6)


@given(positive, st.floats(0.1, 10.0), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_ratio_turns_over_with_its_curves_and_ignores_units_and_the_order_of_seeds(first, unit, seed):
    draws = np.random.default_rng(seed)
    one = np.array(first)
    other = one * draws.uniform(0.5, 2.0, len(one))
    found, turned = judging.paired_ratio("", one, other), judging.paired_ratio("", other, one)
    assert turned.value == pytest.approx(1 / found.value)
    assert (turned.low, turned.high) == (pytest.approx(1 / found.high), pytest.approx(1 / found.low))
    order = draws.permutation(len(one))
    again = judging.paired_ratio("", unit * one[order], unit * other[order])
    assert (again.low, again.value, again.high) == pytest.approx((found.low, found.value, found.high))
    assert found.low <= found.value <= found.high


def test_one_seed_gives_a_ratio_without_an_interval():
    found = judging.paired_ratio("x", np.array([2.0]), np.array([3.0]))
    assert (found.what, found.low, found.value, found.high) == ("x", 1.5, 1.5, 1.5)


def test_every_claim_s_evidence_is_a_comparison_of_the_figure_s_own_curves(curves):
    for claim in CLAIMS:
        for accounting in ACCOUNTINGS:
            if "mnist" in claim.figures:
                finding = claim.judge(Evidence(MNIST, curves, accounting))
                assert finding.decisive is None or finding.decisive in finding.ratios
                assert all(ratio.low <= ratio.value <= ratio.high for ratio in finding.ratios)


def test_judging_rounds_numbers_but_not_verdicts(curves, verdicts):
    by_name = {claim.name: claim for claim in CLAIMS}
    for entry in verdicts:
        for accounting, judged in entry["judged"].items():
            finding = by_name[entry["claim"]].judge(Evidence(MNIST, curves, accounting))
            assert judged["verdict"] == finding.verdict and len(judged["ratios"]) == len(finding.ratios)
            for shown, ratio in zip(judged["ratios"], finding.ratios, strict=True):
                assert shown["value"] == pytest.approx(ratio.value, rel=1e-3)
                assert len(f"{shown['value']:.10g}".replace(".", "").lstrip("0")) <= 4 or shown["value"] >= 1e4


@pytest.mark.parametrize("names", [["all"], ["all", "mnist"], ["fashion", "all"]])
def test_all_means_every_figure_once_in_the_paper_s_order(names):
    assert [figure.name for figure in choose(names)] == list(FIGURES)


def test_a_figure_named_twice_is_run_once():
    assert [figure.name for figure in choose(["mnist", "mnist"])] == ["mnist"]
    assert choose([]) == []


@given(st.sampled_from([1, 2, 5, 10, None]), st.integers(1, 50), st.sampled_from([1, 2, 5, 10, 20, 50, 100]))
@settings(max_examples=40, deadline=None)
def test_slugs_tell_settings_apart_and_rounds_times_steps_are_t(levels, clients, steps):
    setting = Setting(levels, clients, steps)
    found = re.fullmatch(r"(none|s(\d+))-r(\d+)-tau(\d+)", setting.slug)
    assert (found[2] and int(found[2]), int(found[3]), int(found[4])) == (levels, clients, steps)
    assert setting.num_rounds * steps == 100


def test_a_curve_read_back_is_the_curve_that_was_stored(tmp_path):
    wanted = curve_settings(SMALL)[0]
    curve = dataclasses.replace(planted(wanted.setting, 0.9), settings=wanted)
    store = CurveStore(tmp_path)
    path = store.save(SMALL, curve)
    found = store.load(SMALL, wanted)
    assert path == store.path(SMALL, wanted) and found.settings == wanted
    assert found.to_json() == curve.to_json() == path.read_text()
    np.testing.assert_array_equal(found.payload_bytes, curve.payload_bytes)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "damage", [lambda t: t[:-30], lambda t: t.replace('"loss"', '"lost"', 1), lambda t: ""]
)
def test_a_damaged_curve_counts_as_absent(tmp_path, damage):
    wanted = curve_settings(SMALL)[0]
    store = CurveStore(tmp_path)
    path = store.save(SMALL, dataclasses.replace(planted(wanted.setting, 0.9), settings=wanted))
    path.write_text(damage(path.read_text()))
    assert store.load(SMALL, wanted) is None


def test_a_curve_with_a_loss_that_is_not_a_number_is_refused_when_written():
    curve = planted(Setting(1, 5, 50), 0.9)
    curve.loss[0, 1] = math.nan
    with pytest.raises(ValueError, match=r"not JSON compliant|Out of range"):
        curve.to_json()


def test_bits_of_fixed_width_are_those_of_the_paper():
    curve = planted(Setting(5, 10, 50), 0.9)
    each = 1000 * (1 + 3) + 32  # six magnitudes take 3 bits, a sign, and one norm
    assert curve.bits("fixed-width")[0].tolist() == [0.0, 10.0 * each, 20.0 * each]
    plain = planted(Setting(None, 10, 50), 0.9)
    assert plain.bits("fixed-width")[0].tolist() == [0.0, 320_000.0, 640_000.0]


def test_relative_loss_begins_at_one_and_does_not_depend_on_the_scale():
    curve = planted(Setting(1, 5, 10), 0.8, start=2.0)
    scaled = dataclasses.replace(curve, loss=1000 * curve.loss)
    np.testing.assert_allclose(scaled.relative_loss, curve.relative_loss, rtol=1e-15)
    assert (curve.relative_loss[:, 0] == 1.0).all()


def test_the_announced_work_is_the_trials_one_by_one():
    chosen = CurveSettings("p", Setting(1, 5, 10), tuning_seeds=(7, 8, 9), seeds=(0, 1))
    trials = 3 * 2  # coarse grid on the first two tuning seeds
    trials += 4 * 3 + 1  # fine grid on all three; the centre only on the one it has not seen
    trials += 2  # the curve itself
    assert expected_gradients(chosen) == trials * 100 * 5


losses = st.lists(st.one_of(st.none(), st.floats(0.0, 10.0)), min_size=1, max_size=3)


@given(st.dictionaries(st.sampled_from([0.01, 0.02, 0.04, 0.08]), losses, min_size=1))
@settings(max_examples=50, deadline=None)
def test_the_best_step_size_is_the_smallest_of_those_with_the_least_mean(found):
    means = {eta: math.inf if None in tried else sum(tried) / len(tried) for eta, tried in found.items()}
    least = min(means.values())
    assert tuning_rule.best(found) == min(eta for eta, mean in means.items() if mean == least)


@pytest.mark.parametrize(
    ("tried", "wider"),
    [
        ({1.0: [3.0], 4.0: [2.0], 16.0: [3.0]}, None),
        ({1.0: [1.0], 4.0: [2.0], 16.0: [3.0]}, 0.25),
        ({1.0: [3.0], 4.0: [2.0], 16.0: [1.0]}, 64.0),
        ({1.0: [None], 4.0: [None], 16.0: [None]}, 0.25),
        ({1.0: [2.0], 4.0: [None], 16.0: [None]}, 0.25),
        ({4.0**-6: [1.0], 1.0: [2.0], 4.0: [2.0]}, None),  # as wide as a grid gets
        ({1.0: [2.0], 4.0: [2.0], 16.0 * 4.0**6: [1.0]}, None),
    ],
)
def test_a_grid_grows_at_the_end_where_its_best_lies(tried, wider):
    assert tuning_rule._wider(tried, (1.0, 4.0, 16.0)) == wider


@given(st.floats(1e-8, 1e8))
@settings(max_examples=50, deadline=None)
def test_a_tidy_step_size_stays_and_is_right_to_half_a_thousandth(eta):
    once = round_to_4_digits(eta)
    assert round_to_4_digits(once) == once and once == pytest.approx(eta, rel=5.1e-4)


def test_quantizers_follow_from_the_levels():
    assert tuning_rule.quantizer_of(CurveSettings("p", Setting(None, 5, 10))).name == "none"
    assert tuning_rule.quantizer_of(CurveSettings("p", Setting(7, 5, 10))).levels == 7


def test_a_curve_of_another_format_is_refused_by_name():
    text = planted(Setting(1, 5, 50), 0.9).to_json().replace("fedpaq-curve-1", "fedpaq-curve-0")
    with pytest.raises(ConfigError, match="'fedpaq-curve-0' is not 'fedpaq-curve-1'"):
        Curve.from_json(text)
