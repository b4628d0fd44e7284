"""Evidence: what each claim compares."""

from __future__ import annotations

import pytest

from fedpaq.experiments import CLAIMS
from fedpaq.experiments.curve import ACCOUNTINGS
from fedpaq.experiments.evidence import Evidence
from small_figure import MNIST, planted_mnist


@pytest.fixture(scope="module")
def curves():
    return planted_mnist()


def test_every_claim_s_evidence_is_a_comparison_of_the_figure_s_own_curves(curves):
    for claim in CLAIMS:
        for accounting in ACCOUNTINGS:
            if "mnist" in claim.figures:
                finding = claim.judge(Evidence(MNIST, curves, accounting))
                assert finding.decisive is None or finding.decisive in finding.ratios
                assert all(ratio.low <= ratio.value <= ratio.high for ratio in finding.ratios)
