"""Plans of many updates at once are, to the bit, those that ``Rotated`` makes one by one."""

from __future__ import annotations

import numpy as np
import pytest

import fedpaq
from fedpaq.quantizers.rotated import plans
from fedpaq.quantizers.rotated.allocation import allocate, block_energies, body_bits, candidates
from fedpaq.quantizers.rotated.rotation import CELL
from fedpaq.quantizers.rotated.rounding import Rounded
from fedpaq.quantizers.rotated.sketch import Sketch, mantissa_for
from fedpaq.server.device_batch import has_device_batch


def uneven_cells(updates: int, dimension: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = (updates, -(-dimension // CELL))
    cells = rng.random(shape) * np.exp(2 * rng.standard_normal(shape) * (rng.random((updates, 1)) < 0.7))
    cells[0, : shape[1] // 2], cells[1, 1:] = 0.0, 0.0  # blocks without energy
    return cells


@pytest.mark.parametrize(("dimension", "bits"), [(92_027, 0.03), (92_027, 1.0), (5000, 0.1), (20_000, 2.5)])
def test_plans_of_many_updates_are_those_of_each(dimension, bits, monkeypatch):
    cells = uneven_cells(40, dimension)
    body = body_bits(dimension, fedpaq.Rotated(bits=bits).target_bytes(dimension))
    cuts = candidates(dimension, body)
    energies = [
        np.stack([block_energies(row, cut) if cut.count > 1 else row.sum()[None] for row in cells]) for cut in cuts
    ]
    best, errors = plans.best_cuts(cuts, energies, cells.sum(axis=1), body)
    asked = []
    monkeypatch.setattr(Sketch, "scaled", lambda self, rounded, *given: rounded)
    monkeypatch.setattr(
        "fedpaq.quantizers.rotated.sketch.round_blocks",
        lambda rotated, wanted, least: asked.append((wanted, least)) or Rounded(*[np.zeros(1)] * 4),
    )
    for row, cell in enumerate(cells):
        plan = allocate(cell, dimension, body)
        assert (plan.blocks, plan.error) == (cuts[best[row]], errors[row])
        cut, left = plan.blocks, body - 5.5 * (plan.blocks.count - 1)
        together = plans.roundings(cut, energies[best[row]], np.full(len(cells), plan.error), body)
        alone = Sketch.of(np.zeros(dimension, np.float32), plan, cell, fedpaq.Key(seed=0))
        alone.message(left)
        wanted, least = asked.pop()
        assert np.array_equal(together.wanted[row], wanted) and np.array_equal(together.least[row], least)
        assert np.array_equal(together.factors[row], alone.factors)
        assert np.array_equal(together.energies[row], alone.energies)
        assert together.mantissa_bits[row] == mantissa_for(plan.error, left / cut.count)


def test_a_promise_of_bytes_is_kept_on_the_host():
    assert has_device_batch(fedpaq.Rotated(bits=0.1))
    assert not has_device_batch(fedpaq.Rotated(payload_bytes=300))
