"""Local SGD of a dense ReLU network in machine code; twin: ``fedpaq.clients.Sequential``.

Clients are spread over threads; one client's weights stay in its core's cache and nearly every product
is one BLAS call. Backward of a layer and its SGD step are a single call,
W <- (1 - eta lambda) W - eta delta^T A, so the weights are read twice and written once per step.

The first layer, which holds most weights, is read and written once for a block of steps: its outputs for
all minibatches of the block are one product, brought up to date step by step with what the steps before
changed, a product of minibatches (``correct``); its weights move at the block's end. For wide layers without
decay: on a narrow one the products of minibatches cost more than they save.

Before BLAS multiplies, it rearranges its factors, which for a wide layer and ten rows takes as long again. So the
clients of a run share their first product, later ones have the factors exchanged, and the layer's step is left
to ``outer_products``. On processors with AVX-512 none of that changes a bit, as tests show. Elsewhere BLAS adds in
orders that depend on the sizes: there ``clients_together`` finds that clients must not share.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.blas import NN, NT, TN, clear, copy, gemm, subtract
from fedpaq.kernels.numba.outer_products import COLUMNS, LANES, add_outer

CROSS_ENTROPY, LOGISTIC, SQUARED = 0, 1, 2

MOST_ROWS = 128  # of an outer product; OpenBLAS has 320 or more to a part
SMALL = 100**3  # multiplications up to which OpenBLAS takes a product as it is, in another order of sums


@njit
def block_of(steps, batch, after, decay):
    """Return how many steps share a product of the first layer."""
    return 1 if decay != 0 else min(steps, max(1, after // (2 * batch)))


@njit
def is_wide(rows, before, after):
    """Return whether BLAS rearranges the factors of a first product, which takes as long as multiplying few rows."""
    return rows * before * after > SMALL


@njit
def is_outer(rows, before, after, decay):
    """Return whether a step of the first layer is left to ``outer_products``: BLAS cuts longer sums into parts."""
    return decay == 0 and rows <= MOST_ROWS and before % LANES == 0 and is_wide(rows, before, after)


@njit
def output_delta(outputs, labels, values, loss, rows, width, delta):
    """Write d loss / d outputs (rows, width); the loss is a mean over rows (and, squared, outputs)."""
    if loss == CROSS_ENTROPY:
        for row in range(rows):
            z = outputs[row * width : (row + 1) * width]
            top = z[0]
            for j in range(1, width):
                top = max(top, z[j])
            total = 0.0
            for j in range(width):
                delta[row * width + j] = np.exp(z[j] - top)
                total += delta[row * width + j]
            for j in range(width):
                delta[row * width + j] /= total * rows
            delta[row * width + labels[row]] -= np.float32(1.0 / rows)
    elif loss == LOGISTIC:
        for i in range(rows * width):
            delta[i] = (1.0 / (1.0 + np.exp(-np.float64(outputs[i]))) - values[i]) / (rows * width)
    else:
        for i in range(rows * width):
            delta[i] = 2.0 * (outputs[i] - values[i]) / (rows * width)


@njit
def descend(weight, bias, source, delta, rows, step_size, keep, scratch):
    """W <- keep W - eta delta^T A, b <- keep b - eta sum of delta, in place."""
    after = bias.size
    before = weight.size // after
    sizes = (before, after, rows)
    gemm(NT, sizes, -step_size, source, before, delta, after, keep, weight, before, scratch)
    descend_bias(bias, delta, rows, step_size, keep)


@njit
def descend_bias(bias, delta, rows, step_size, keep):
    """b <- keep b - eta sum of delta, in place."""
    after = bias.size
    for unit in range(after):
        total = np.float32(0.0)
        for row in range(rows):
            total += delta[row * after + unit]
        bias[unit] = keep * bias[unit] - step_size * total


@njit
def descend_wide(weight, bias, source, delta, rows, step_size, fresh, room):
    """Do the same without decay for a wide layer, faster and with the same bits; ``fresh``: W was zero."""
    after = bias.size
    before = weight.size // after
    add_outer(weight, source, delta, before, after, rows, -step_size, fresh, room)
    descend_bias(bias, delta, rows, step_size, np.float32(1.0))


@njit
def correct(outputs, now, minibatches, slopes, seen, rows, before, after, step_size, products, scratch):
    """Bring the first layer's outputs for the minibatch ``now`` up to date with the block's steps before it.

    They were made from the weights at the block's start; each of the rows seen since then moved W by
    -eta delta^T a and b by -eta delta, so  Z <- Z - eta (A_now A_seen^T + 1) delta.
    """
    one = np.float32(1.0)
    sizes = (seen, rows, before)
    gemm(TN, sizes, one, minibatches, before, now, before, np.float32(0.0), products, seen, scratch)
    for i in range(rows * seen):
        products[i] += one
    sizes = (after, rows, seen)
    gemm(NN, sizes, -step_size, slopes, after, products, seen, one, outputs, after, scratch)


@njit
def sgd_step(params, widths, activations, deltas, batch, step_size, decay, labels, values, loss, scratch):
    """Take one SGD step in place on all layers but the first, whose outputs stand first in ``activations``.

    Leaves the slope of the loss by those outputs first in ``deltas``.
    """
    one, zero = np.float32(1.0), np.float32(0.0)
    layers = widths.size - 1
    start, at = widths[0] * widths[1] + widths[1], 0
    for layer in range(1, layers):
        before, after = widths[layer], widths[layer + 1]
        weight = params[start : start + after * before]
        start += after * before
        source, target = activations[at : at + batch * before], activations[at + batch * before :]
        at += batch * before
        for i in range(batch * before):
            source[i] = max(source[i], zero)
        bias = params[start : start + after]
        for row in range(batch):
            copy(bias, target[row * after : (row + 1) * after])
        start += after
        sizes = (after, batch, before)
        gemm(TN, sizes, one, weight, before, source, before, one, target, after, scratch)

    output_delta(activations[at:], labels, values, loss, batch, widths[layers], deltas[at:])
    keep = np.float32(1.0 - step_size * decay)
    for layer in range(layers - 1, 0, -1):
        before, after = widths[layer], widths[layer + 1]
        start -= after * before + after
        weight = params[start : start + after * before]
        delta = deltas[at : at + batch * after]
        at -= batch * before
        source, below = activations[at : at + batch * before], deltas[at : at + batch * before]
        sizes = (before, batch, after)
        gemm(NN, sizes, one, weight, before, delta, after, zero, below, before, scratch)
        for i in range(batch * before):
            if source[i] <= 0:
                below[i] = 0
        bias = params[start + after * before : start + after * before + after]
        descend(weight, bias, source, delta, batch, step_size, keep, scratch)


def _jobs(params, run_of, step_sizes, samples, *_):
    jobs, steps, batch = samples.shape
    return jobs, jobs * steps * (3_500 + 0.12 * batch * params.shape[1])


@njit
def gather(inputs, samples, step, rows, begin, before, after, minibatches, hidden):
    """Lay the inputs of ``rows`` samples from a step on one after another, and the first layer's bias for each."""
    batch = samples.shape[1]
    bias = begin[before * after : before * after + after]
    for row in range(rows):
        copy(inputs[samples[step + row // batch, row % batch]], minibatches[row * before : (row + 1) * before])
        copy(bias, hidden[row * after : (row + 1) * after])


@njit
def first_layer(begin, minibatches, rows, before, after, hidden, scratch):
    """Add to hidden (rows, after) what the first layer's weights give for minibatches (rows, before)."""
    sizes, one = (after, rows, before), np.float32(1.0)
    gemm(TN, sizes, one, begin, before, minibatches, before, one, hidden, after, scratch)


@njit
def first_layer_turned(begin, minibatches, rows, before, after, hidden, turned, scratch):
    """Do the same with the factors exchanged: BLAS rearranges the second one in half the time.

    With AVX-512 every sum has the same order, so the bits are the same. ``turned`` is room for hidden's transpose.
    """
    sizes, one = (rows, after, before), np.float32(1.0)
    for unit in range(after):
        for row in range(rows):
            turned[unit * rows + row] = hidden[row * after + unit]
    gemm(TN, sizes, one, minibatches, before, begin, before, one, turned, rows, scratch)
    for row in range(rows):
        for unit in range(after):
            hidden[row * after + unit] = turned[unit * rows + row]


@kernel(
    "void(float32[:, ::1], int64[::1], float32[::1], int64[:, :, ::1], float32[:, ::1], int64[::1],"
    " float32[:, ::1], int64[::1], float64, int64, int64, float32[:, ::1], int64, int64)",
    jobs=_jobs,
)
def local_updates(
    params, run_of, step_sizes, samples, inputs, labels, values, widths, decay, loss, together, updates, first, last
):
    """Fill updates (jobs, p) with x_local - x_received; ``values`` are the targets when not labels.

    All clients of a run begin with the same weights: up to ``together`` of them share the first product.
    """
    steps, batch = samples.shape[1:]
    outputs, total = widths[widths.size - 1], 0
    for width in widths[1:]:
        total += batch * width
    activations, deltas = np.empty(total, np.float32), np.empty(total, np.float32)
    batch_labels, batch_values = np.zeros(batch, np.int64), np.zeros(batch * outputs, np.float32)
    scratch = (np.empty(6, np.int32), np.empty(2, np.float32))
    before, after = widths[0], widths[1]
    head, each = after * before + after, batch * after  # params of the first layer, outputs of a step
    block = block_of(steps, batch, after, decay)
    is_whole = block == steps and decay == 0  # then the first layer's local weights are never needed
    together = min(together, last - first) if is_wide(block * batch, before, after) else 1
    all_minibatches = np.empty(together * block * batch * before, np.float32)
    all_hidden, slopes = np.empty(together * block * each, np.float32), np.empty(block * each, np.float32)
    products, turned = np.empty(block * batch * batch, np.float32), np.empty(block * each, np.float32)
    room = np.empty(block * batch * COLUMNS, np.float32)
    start = np.int64(0)  # a literal would have ``gather`` compiled twice
    shared, seat = 0, 0  # clients that share a product, and how many of them had their turn
    for job in range(first, last):
        received, local, step_size = params[run_of[job]], updates[job], step_sizes[run_of[job]]
        if is_whole:
            begin = head - after if is_outer(block * batch, before, after, decay) else 0
            clear(local[begin:head])
            copy(received[head:], local[head:])
        else:
            copy(received, local)
        if seat == shared:
            shared, seat = 1, 0
            while shared < together and job + shared < last and run_of[job + shared] == run_of[job]:
                shared += 1
            rows = block * batch
            for other in range(shared):
                gather(
                    inputs, samples[job + other], start, rows, received, before, after,
                    all_minibatches[other * rows * before :], all_hidden[other * rows * after :],
                )  # fmt: skip
            first_layer(received, all_minibatches, shared * rows, before, after, all_hidden, scratch)
        minibatches, hidden = all_minibatches[seat * block * batch * before :], all_hidden[seat * block * each :]
        seat += 1
        for step in range(steps):
            at = step % block
            if step > 0 and at == 0:
                rows = min(block, steps - step) * batch
                gather(inputs, samples[job], step, rows, local, before, after, minibatches, hidden)
                if is_wide(rows, before, after):
                    first_layer_turned(local, minibatches, rows, before, after, hidden, turned, scratch)
                else:
                    first_layer(local, minibatches, rows, before, after, hidden, scratch)
            elif at > 0:
                now = minibatches[at * batch * before :]
                correct(
                    hidden[at * each :], now, minibatches, slopes, at * batch, batch, before, after, step_size,
                    products, scratch,
                )  # fmt: skip
            for row in range(batch):
                sample = samples[job, step, row]
                if loss == CROSS_ENTROPY:
                    batch_labels[row] = labels[sample]
                else:
                    copy(values[sample], batch_values[row * outputs : (row + 1) * outputs])
            copy(hidden[at * each :], activations[:each])
            sgd_step(
                local, widths, activations, deltas, batch, step_size, decay, batch_labels, batch_values, loss, scratch
            )
            copy(deltas, slopes[at * each : (at + 1) * each])
            if at + 1 == block or step + 1 == steps:
                weight, bias, rows = local[: head - after], local[head - after : head], (at + 1) * batch
                if is_outer(rows, before, after, decay):
                    descend_wide(weight, bias, minibatches, slopes, rows, step_size, is_whole, room)
                else:
                    keep = np.float32(1.0 - step_size * decay)
                    descend(weight, bias, minibatches, slopes, rows, step_size, keep, scratch)
        begin = head if is_whole else 0
        subtract(received[begin:], local[begin:])
