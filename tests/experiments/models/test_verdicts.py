"""Verdicts: computed from results whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN
from fedpaq.experiments.models.tasks import TASKS
from fedpaq.experiments.models.verdicts import Interval, Study, judge_study
from small_study import SMALL, write_study

IMAGES = TASKS["resnet-iid"]
FEW = {PLAIN[5]: 3.9, CODED[2]: 3.9, PLAIN[3]: 0.3}
DOWN = {CODED[2]: 200.0}


def studied(task, folder, **finals):
    write_study(task, folder, finals.pop("finals"), payloads=FEW, downloads=DOWN, **finals)
    return Study.load(task, folder)


def test_differences_are_paired_by_seed(tmp_path):
    study = studied(IMAGES, tmp_path, finals={FLOAT32: (60.0, 50.0, 40.0), PLAIN[5]: (59.0, 49.5, 39.0)})
    behind = study.behind(PLAIN[5])
    worse = np.array([1.0, 0.5, 1.0])
    half = stats.t.ppf(0.975, 2) * worse.std(ddof=1) / np.sqrt(3)
    assert behind.mean == pytest.approx(worse.mean()) and behind.high - behind.mean == pytest.approx(half)
    assert study.fewer(PLAIN[5], both_ways=False) == pytest.approx(4000 / 3.9)
    assert study.fewer(PLAIN[5], both_ways=True) == pytest.approx(8000 / 4003.9)


@pytest.mark.parametrize(("final", "verdict"), [(59.6, "holds"), (59.4, "does not hold"), (61.0, "holds")])
def test_half_a_point_is_allowed(tmp_path, final, verdict):
    study = studied(IMAGES, tmp_path, finals={FLOAT32: (60.0,) * 3, PLAIN[5]: (final,) * 3})
    (entry,) = judge_study(study)
    assert entry["verdict"] == verdict and entry["numbers"][0]["mean"] == pytest.approx(60 - final)


@pytest.mark.parametrize(("final", "verdict"), [(2.019, "holds"), (2.021, "does not hold"), (1.9, "holds")])
def test_fewer_bits_per_byte_are_better(tmp_path, final, verdict):
    study = studied(SMALL, tmp_path, finals={FLOAT32: (2.0, 2.0), PLAIN[5]: (final, final)})
    assert judge_study(study)[0]["verdict"] == verdict


def test_a_claim_of_savings_needs_the_savings(tmp_path):
    finals = {FLOAT32: (60.0,) * 3, CODED[2]: (60.0,) * 3}
    assert judge_study(studied(IMAGES, tmp_path, finals=finals))[0]["verdict"] == "holds"
    write_study(IMAGES, tmp_path, finals, payloads=FEW, downloads={CODED[2]: 300.0})  # 26 times fewer
    assert judge_study(Study.load(IMAGES, tmp_path))[0]["verdict"] == "does not hold"


@pytest.mark.parametrize(("loss", "verdict"), [(1.009, "holds"), (1.011, "does not hold")])
def test_a_hundredth_of_the_loss_is_allowed(tmp_path, loss, verdict):
    finals = {FLOAT32: (60.0,) * 3, PLAIN[3]: (60.0,) * 3}
    study = studied(IMAGES, tmp_path, finals=finals, losses={PLAIN[3]: loss})
    assert judge_study(study)[0]["verdict"] == verdict


def test_a_run_that_diverged_is_shown_as_such_and_fails(tmp_path):
    study = studied(IMAGES, tmp_path, finals={FLOAT32: (60.0,) * 3, PLAIN[5]: (60.0, None, 60.0)})
    assert study.rows()[1]["measure"] is None and study.rows()[1]["behind_float32"] is None
    assert [row["arm"] for row in study.rows()] == ["float32", "Rotated 0.03 bits"]
    (entry,) = judge_study(study)
    assert entry["verdict"] == "does not hold"
    assert study.summary()["is_whole"] is False


def test_an_arm_without_all_its_seeds_is_left_out(tmp_path):
    task = replace(SMALL, seeds=(0,))
    write_study(task, tmp_path, {FLOAT32: (2.0,)})
    assert Study.load(SMALL, tmp_path).runs == {}
    assert Study.load(SMALL, tmp_path).rows() == []
    assert list(Study.load(task, tmp_path).runs) == [FLOAT32]


def test_one_seed_has_no_spread():
    assert Interval.of(np.array([3.0])) == Interval(3.0, 3.0, 3.0)
