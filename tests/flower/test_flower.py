"""The package: its names."""

from __future__ import annotations

import importlib

import pytest

from fedpaq.flower import FedPAQ

pytestmark = pytest.mark.flower


def test_names_of_the_package_load_on_demand_and_unknown_ones_are_told():
    package = importlib.import_module("fedpaq.flower")
    assert {"FedPAQ", "quantize_mod"} <= set(dir(package))
    assert package.FedPAQ is FedPAQ
    with pytest.raises(AttributeError, match=r"module 'fedpaq.flower' has no attribute 'FedAvg'"):
        _ = package.FedAvg
