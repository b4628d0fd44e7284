"""ReLU networks: initial weights follow the stated law, the same on every platform."""

from __future__ import annotations

import numpy as np

from fedpaq.problems.relu_network import relu_network


def test_initial_weights_follow_the_stated_distribution():
    model = relu_network([400, 300, 10], seed=3)
    for layer, bound in ((model[0], np.sqrt(6 / 400)), (model[2], np.sqrt(1 / 300))):
        weights = layer.weight.detach().double().numpy().ravel()
        assert np.abs(weights).max() <= bound * (1 + 1e-6)
        # Uniform on +-bound: standard error of the mean, and of the mean square (deviation 0.298 bound^2).
        assert abs(weights.mean()) < 5 * bound / np.sqrt(3 * weights.size)
        assert abs((weights**2).mean() - bound**2 / 3) < 5 * 0.298 * bound**2 / np.sqrt(weights.size)
        assert not layer.bias.any()


def test_initial_weights_are_the_same_on_every_platform():
    # One draw written out by hand: word 0 of the stream, centred, scaled to +-sqrt(6 / 3).
    from fedpaq.randomness import Key, Purpose, words_numpy

    word = int(words_numpy(Purpose.INITIAL_PARAMS, Key(seed=5), 0, 1)[0])
    expected = np.float32((2 * ((word + 0.5) / 2**32) - 1) * np.sqrt(2))
    assert relu_network([3, 2, 2], seed=5)[0].weight[0, 0].item() == expected
