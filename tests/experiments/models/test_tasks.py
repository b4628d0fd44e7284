"""Tasks: what is loaded is what is said, and the test is on samples that no client holds."""

from __future__ import annotations

import numpy as np
import pytest

from fedpaq.experiments.models.tasks import TASKS, load_images
from small_study import SMALL


def test_no_client_holds_a_sample_of_the_test():
    loaded = SMALL.load(None, "cpu")
    assert not np.isin(loaded.test, loaded.problem.partition.indices).any()
    assert len(loaded.test) + loaded.problem.partition.indices.size == len(loaded.problem.inputs)
    params = loaded.problem.initial_params
    whole, tested, sampled = (each.evaluate(params).loss for each in (loaded.problem, loaded.tested, loaded.sampled))
    assert len({whole, tested, sampled}) == 3
    assert SMALL.measured(tested, None) == pytest.approx(tested / np.log(2))


def test_images_are_dealt_evenly_or_not(data_dir):
    even, uneven = load_images(data_dir, width=2, most=1000), load_images(data_dir, uneven=True, width=2, most=1000)
    assert set(even.problem.partition.sizes().tolist()) == {20}
    assert uneven.problem.partition.sizes().max() > 40
    assert even.problem.inputs.shape == (1200, 3, 32, 32) and len(even.test) == 200
    assert float(even.problem.inputs.min()) >= -1 and float(even.problem.inputs.max()) <= 1
    assert np.array_equal(even.problem.initial_params, uneven.problem.initial_params)
    found = even.tested.evaluate(even.problem.initial_params)
    assert TASKS["resnet-iid"].measured(found.loss, found.accuracy) == 100 * found.accuracy


def test_step_sizes_rise_and_fall():
    config = TASKS["resnet-iid"].config(0.1, seed=3)
    sizes = [config.step_size_at(k) for k in range(config.num_rounds)]
    assert config.num_rounds == 150 and sizes[0] < sizes[6] == max(sizes) == 0.1 and sizes[-1] < 0.001
    assert TASKS["resnet-iid"].config(0.1, seed=3, rounds=40).num_rounds == 40


def test_uneven_and_long_runs_take_the_step_sizes_of_even_ones():
    for name in ("resnet-dirichlet", "resnet-long"):
        assert TASKS[name].tuned_as == TASKS["resnet-iid"]
