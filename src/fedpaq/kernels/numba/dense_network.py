"""Local SGD of a dense ReLU network in machine code; twin: ``fedpaq.clients.Sequential``.

Clients are spread over threads; one client's weights stay in its core's cache and every product
is one BLAS call. Backward of a layer and its SGD step are a single call,
W <- (1 - eta lambda) W - eta delta^T A, so the weights are read twice and written once per step.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np
from numba import njit, types
from numba.extending import get_cython_function_address

from fedpaq.kernels.numba import kernel

# A named symbol, not a raw pointer: machine code that calls it can be cached on disk.
llvmlite.binding.add_symbol("fedpaq_sgemm", get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
_sgemm = types.ExternalFunction("fedpaq_sgemm", types.void(*[types.uintp] * 13))

CROSS_ENTROPY, LOGISTIC, SQUARED = 0, 1, 2
_LETTERS = np.frombuffer(b"NNTN", np.uint8)  # whether A and B are transposed: NN, NT, TN


@njit
def copy(source, target):
    """Copy; an assignment to a slice would have numba compile its check of shapes, for two seconds."""
    for i in range(target.size):
        target[i] = source[i]


@njit
def gemm(letters, sizes, alpha, a, lead_a, b, lead_b, beta, c, lead_c, scratch):
    """C <- alpha op(A) op(B) + beta C in BLAS's column-major terms; sizes = (m, n, k).

    BLAS takes addresses: ``scratch`` is where the numbers stand, ``letters`` the ops of A and B.
    """
    integers, numbers = scratch
    integers[0], integers[1], integers[2] = sizes
    integers[3], integers[4], integers[5] = lead_a, lead_b, lead_c
    numbers[0], numbers[1] = alpha, beta
    text, whole, real = letters.ctypes.data, integers.ctypes.data, numbers.ctypes.data
    _sgemm(
        text, text + 1, whole, whole + 4, whole + 8, real,
        a.ctypes.data, whole + 12, b.ctypes.data, whole + 16, real + 4, c.ctypes.data, whole + 20,
    )  # fmt: skip


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
def sgd_step(params, widths, activations, deltas, batch, step_size, decay, labels, values, loss, scratch):
    """Take one SGD step on ``params`` in place; the minibatch stands first in ``activations``, then layer by layer."""
    one, zero = np.float32(1.0), np.float32(0.0)
    plain, transposed, last_transposed = _LETTERS[0:2], _LETTERS[1:3], _LETTERS[2:4]
    layers = widths.size - 1
    start, at = 0, 0
    for layer in range(layers):
        before, after = widths[layer], widths[layer + 1]
        weight = params[start : start + after * before]
        start += after * before
        source, target = activations[at : at + batch * before], activations[at + batch * before :]
        at += batch * before
        bias = params[start : start + after]
        for row in range(batch):
            copy(bias, target[row * after : (row + 1) * after])
        start += after
        sizes = (after, batch, before)
        gemm(last_transposed, sizes, one, weight, before, source, before, one, target, after, scratch)
        if layer + 1 < layers:
            for i in range(batch * after):
                target[i] = max(target[i], zero)

    output_delta(activations[at:], labels, values, loss, batch, widths[layers], deltas[at:])
    keep = np.float32(1.0 - step_size * decay)
    for layer in range(layers - 1, -1, -1):
        before, after = widths[layer], widths[layer + 1]
        start -= after * before + after
        weight = params[start : start + after * before]
        delta = deltas[at : at + batch * after]
        at -= batch * before
        source, below = activations[at : at + batch * before], deltas[at : at + batch * before]
        if layer > 0:
            sizes = (before, batch, after)
            gemm(plain, sizes, one, weight, before, delta, after, zero, below, before, scratch)
            for i in range(batch * before):
                if source[i] <= 0:
                    below[i] = 0
        sizes = (before, after, batch)
        gemm(transposed, sizes, -step_size, source, before, delta, after, keep, weight, before, scratch)
        for unit in range(after):
            total = zero
            for row in range(batch):
                total += delta[row * after + unit]
            place = start + after * before + unit
            params[place] = keep * params[place] - step_size * total


def _jobs(params, run_of, step_sizes, samples, *_):
    jobs, steps, batch = samples.shape
    return jobs, jobs * steps * (3_500 + 0.12 * batch * params.shape[1])


@kernel(
    "void(float32[:, ::1], int64[::1], float32[::1], int64[:, :, ::1], float32[:, ::1], int64[::1],"
    " float32[:, ::1], int64[::1], float64, int64, float32[:, ::1], int64, int64)",
    jobs=_jobs,
)
def local_updates(
    params, run_of, step_sizes, samples, inputs, labels, values, widths, decay, loss, updates, first, last
):
    """Fill updates (jobs, p) with x_local - x_received; ``values`` are the targets when not labels."""
    steps, batch = samples.shape[1:]
    outputs, total = widths[widths.size - 1], 0
    for width in widths:
        total += batch * width
    activations, deltas = np.empty(total, np.float32), np.empty(total, np.float32)
    batch_labels, batch_values = np.zeros(batch, np.int64), np.zeros(batch * outputs, np.float32)
    scratch = (np.empty(6, np.int32), np.empty(2, np.float32))
    for job in range(first, last):
        received, local = params[run_of[job]], updates[job]
        copy(received, local)
        for step in range(steps):
            for row in range(batch):
                sample = samples[job, step, row]
                copy(inputs[sample], activations[row * widths[0] : (row + 1) * widths[0]])
                if loss == CROSS_ENTROPY:
                    batch_labels[row] = labels[sample]
                else:
                    copy(values[sample], batch_values[row * outputs : (row + 1) * outputs])
            sgd_step(
                local, widths, activations, deltas, batch, step_sizes[run_of[job]], decay,
                batch_labels, batch_values, loss, scratch,
            )  # fmt: skip
        for i in range(local.size):
            local[i] -= received[i]
