"""The report: one page that holds every curve and verdict and needs no network."""

from __future__ import annotations

import json
import re

import pytest

from fedpaq import CostModel
from fedpaq.experiments import judge
from fedpaq.experiments.curve import ACCOUNTINGS
from fedpaq.experiments.report import save_report
from small_figure import MNIST, planted_mnist


@pytest.fixture(scope="module")
def curves():
    return planted_mnist()


@pytest.fixture(scope="module")
def verdicts(curves):
    return judge(MNIST, curves)


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
