"""Pictures of checks."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.theory.verification import BoundCurve
from fedpaq.theory.verification.plot import save_plot
from small_checks import make_check


def test_pictures_are_the_same_bytes_twice_and_make_their_folder(tmp_path):
    checks = [make_check(), make_check(theorem=2, slope=None)]
    files = [tmp_path / folder / "check.png" for folder in ("a", "b/c")]
    for file in files:
        save_plot(checks, ["one", "two"], file)
    assert files[0].read_bytes() == files[1].read_bytes() and files[0].read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="zip"):
        save_plot(checks, ["one"], tmp_path / "few.png")
    assert not (tmp_path / "few.png").exists()


def test_a_bound_that_is_silent_throughout_is_no_reason_to_fail(tmp_path):
    silent = BoundCurve(variant="as_stated", first_round=None, values=np.full(3, np.nan), worst_ratio=None)
    save_plot([make_check(theorem=2, bounds=[silent])], ["one"], tmp_path / "check.png")
    assert (tmp_path / "check.png").read_bytes().startswith(b"\x89PNG")
