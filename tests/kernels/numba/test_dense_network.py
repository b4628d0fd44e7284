"""Dense networks in machine code against plain NumPy in double precision, from the equations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fedpaq.clients.dense import _blas_of_scipy, clients_together, one_blas_thread
from fedpaq.kernels import numba as compiled


def plain_sgd(params, widths, batches, step_size, decay, loss):
    """Local SGD of a ReLU network by the chain rule: W <- W - eta (dL/dW + lambda W), biases alike."""
    layers, at = [], 0
    for before, after in pairwise(widths):
        weight = params[at : at + after * before].reshape(after, before).astype(float)
        layers.append([weight, params[at + after * before : at + after * before + after].astype(float)])
        at += after * before + after
    for x, target in batches:
        inputs = [x.astype(float)]
        for number, (weight, bias) in enumerate(layers):
            z = inputs[-1] @ weight.T + bias
            inputs.append(z if number == len(layers) - 1 else np.maximum(z, 0))
        z = inputs[-1]
        if loss == 0:
            delta = np.exp(z - z.max(axis=1, keepdims=True))
            delta = (delta / delta.sum(axis=1, keepdims=True) - np.eye(z.shape[1])[target]) / len(z)
        elif loss == 1:
            delta = (1 / (1 + np.exp(-z)) - target) / z.size
        else:
            delta = 2 * (z - target) / z.size
        for number in range(len(layers) - 1, -1, -1):
            weight, bias = layers[number]
            slopes = delta.T @ inputs[number], delta.sum(axis=0)
            delta = (delta @ weight) * (inputs[number] > 0)
            layers[number] = [
                part - step_size * (slope + decay * part) for part, slope in zip((weight, bias), slopes, strict=True)
            ]
    return np.concatenate([part.ravel() for layer in layers for part in layer])


@pytest.mark.usefixtures("spread_over_threads")
@pytest.mark.parametrize("loss", [0, 1, 2], ids=["cross-entropy", "logistic", "squared"])
@pytest.mark.parametrize(  # wide first layers: blocks of 2 and of 4 steps
    "widths", [(4, 3), (5, 6, 2), (3, 7, 4, 3), (9, 24), (9, 24, 5, 2), (6, 40, 3)], ids=str
)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_local_steps_follow_the_equations(widths, loss, decay):
    rng = np.random.default_rng(len(widths))
    size = sum(after * before + after for before, after in pairwise(widths))
    params = (rng.standard_normal((2, size)) * 0.5).astype(np.float32)
    inputs = rng.standard_normal((20, widths[0])).astype(np.float32)
    labels = rng.integers(0, widths[-1], 20)
    values = rng.integers(0, 2, (20, widths[-1])).astype(np.float32)
    samples = rng.integers(0, 20, (3, 4, 5))  # jobs, steps, batch
    run_of, step_sizes = np.array([0, 1, 1]), np.array([0.3, 0.1], np.float32)
    updates = np.empty((3, size), np.float32)
    compiled.load("dense_network").local_updates(
        params, run_of, step_sizes, samples, inputs, labels, values, np.array(widths), decay, loss, 2, updates
    )
    targets = labels if loss == 0 else values
    for job, run in enumerate(run_of):
        batches = [(inputs[step], targets[step]) for step in samples[job]]
        expected = plain_sgd(params[run], widths, batches, float(step_sizes[run]), decay, loss) - params[run]
        # Single precision against double: four steps of sums of some ten terms of order one.
        np.testing.assert_allclose(updates[job], expected, atol=5e-6 * max(1.0, np.abs(expected).max()))


WIDE = [(3072, 75, 5, 10), (3072, 100, 10), (784, 128, 10)]  # as the paper's networks: products that BLAS rearranges


def with_wide_registers():
    """Whether BLAS multiplies as it did where curves were published; others add in orders that depend on sizes."""
    return {library.architecture for library in _blas_of_scipy()} == {"SkylakeX"}


@pytest.mark.parametrize("widths", WIDE, ids=str)
@pytest.mark.parametrize("steps", [1, 2, 7])  # a block, and with 7 steps two or three of them
def test_clients_that_share_their_first_product_get_the_bits_they_get_alone(widths, steps):
    most = clients_together(widths, steps, 10, False)
    assert most > 1 or not with_wide_registers()
    rng, kernels = np.random.default_rng(steps), compiled.load("dense_network")
    size = sum(after * before + after for before, after in pairwise(widths))
    params = (rng.standard_normal((2, size)) * 0.05).astype(np.float32)
    inputs, labels = rng.random((90, widths[0]), np.float32), rng.integers(0, widths[-1], 90)
    samples, run_of = rng.integers(0, 90, (12, steps, 10)), np.array([0] * 5 + [1] * 7)
    common = (np.full(2, 0.1, np.float32), samples, inputs, labels, np.zeros((1, 1), np.float32), np.array(widths))
    found = {}
    for together in {1, min(2, most), most}:
        found[together] = np.empty((12, size), np.float32)
        with one_blas_thread():
            kernels.local_updates.alone(params, run_of, *common, 0.0, 0, together, found[together])
    assert found[1].any() and len({updates.tobytes() for updates in found.values()}) == 1
    targets = labels[samples]
    for job in (0, 11):
        batches = list(zip(inputs[samples[job]], targets[job], strict=True))
        received = params[run_of[job]]
        expected = plain_sgd(received, widths, batches, np.float64(np.float32(0.1)), 0.0, 0) - received
        # Single precision against double: sums of thousands of terms.
        np.testing.assert_allclose(found[most][job], expected, atol=2e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize(("before", "after"), [(widths[0], widths[1]) for widths in WIDE])
@pytest.mark.parametrize("rows", [10, 20, 30, 50])
def test_exchanged_factors_give_the_same_sums_and_the_same_bits_where_curves_were_published(before, after, rows):
    rng, kernels = np.random.default_rng(rows), compiled.load("dense_network")
    weights, bias = rng.standard_normal(after * before, np.float32), rng.standard_normal(after, np.float32)
    minibatches, scratch = rng.random(rows * before, np.float32), (np.empty(6, np.int32), np.empty(2, np.float32))
    plain, other = np.tile(bias, rows), np.tile(bias, rows)
    with one_blas_thread():
        kernels.first_layer(weights, minibatches, rows, before, after, plain, scratch)
        kernels.first_layer_turned(
            weights, minibatches, rows, before, after, other, np.empty(rows * after, np.float32), scratch
        )
    assert plain.tobytes() == other.tobytes() or not with_wide_registers()
    expected = minibatches.reshape(rows, -1).astype(float) @ weights.reshape(after, -1).T + bias
    for found in (plain, other):
        np.testing.assert_allclose(found.reshape(rows, -1), expected, atol=1e-5 * np.abs(expected).max())
