"""Local SGD of a dense ReLU network in machine code; twin: ``fedpaq.clients.Sequential``.

Clients are spread over threads; one client's weights stay in its core's cache and every product
is one BLAS call. Backward of a layer and its SGD step are a single call,
W <- (1 - eta lambda) W - eta delta^T A, so the weights are read twice and written once per step.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np
from numba import njit, prange, types
from numba.extending import get_cython_function_address

# A named symbol, not a raw pointer: machine code that calls it can be cached on disk.
llvmlite.binding.add_symbol("fedpaq_sgemm", get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
_sgemm = types.ExternalFunction("fedpaq_sgemm", types.void(*[types.uintp] * 13))

CROSS_ENTROPY, LOGISTIC, SQUARED = 0, 1, 2
_PLAIN, _TRANSPOSED = 0, 1  # positions of "N" and "T" in ``letters``


@njit
def gemm(trans_a, trans_b, sizes, alpha, a, lead_a, b, lead_b, beta, c, lead_c, letters):
    """C <- alpha op(A) op(B) + beta C in BLAS's column-major terms; sizes = (m, n, k)."""
    numbers = np.empty(2, np.float32)
    numbers[0] = alpha
    numbers[1] = beta
    integers = np.empty(6, np.int32)
    integers[:3] = sizes
    integers[3] = lead_a
    integers[4] = lead_b
    integers[5] = lead_c
    text, whole, real = letters.ctypes.data, integers.ctypes.data, numbers.ctypes.data
    _sgemm(
        text + trans_a, text + trans_b, whole, whole + 4, whole + 8, real,
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
def sgd_step(params, widths, activations, deltas, batch, step_size, decay, labels, values, loss, letters):
    """Take one SGD step on ``params`` in place; activations[0] holds the minibatch."""
    layers = widths.size - 1
    sizes = np.empty(3, np.int32)
    start = 0
    for layer in range(layers):
        before, after = widths[layer], widths[layer + 1]
        weight = params[start : start + after * before]
        bias = params[start + after * before : start + after * before + after]
        target = activations[layer + 1]
        for row in range(batch):
            target[row * after : (row + 1) * after] = bias
        sizes[0], sizes[1], sizes[2] = after, batch, before
        gemm(_TRANSPOSED, _PLAIN, sizes, 1.0, weight, before, activations[layer], before, 1.0, target, after, letters)
        if layer + 1 < layers:
            for i in range(batch * after):
                target[i] = max(target[i], np.float32(0.0))
        start += after * before + after

    output_delta(activations[layers], labels, values, loss, batch, widths[layers], deltas[layers])
    keep = np.float32(1.0 - step_size * decay)
    for layer in range(layers - 1, -1, -1):
        before, after = widths[layer], widths[layer + 1]
        start -= after * before + after
        weight = params[start : start + after * before]
        delta = deltas[layer + 1]
        if layer > 0:
            sizes[0], sizes[1], sizes[2] = before, batch, after
            gemm(_PLAIN, _PLAIN, sizes, 1.0, weight, before, delta, after, 0.0, deltas[layer], before, letters)
            for i in range(batch * before):
                if activations[layer][i] <= 0:
                    deltas[layer][i] = 0
        sizes[0], sizes[1], sizes[2] = before, after, batch
        gemm(
            _PLAIN, _TRANSPOSED, sizes, -step_size, activations[layer], before, delta, after, keep,
            weight, before, letters,
        )  # fmt: skip
        for unit in range(after):
            total = np.float32(0.0)
            for row in range(batch):
                total += delta[row * after + unit]
            at = start + after * before + unit
            params[at] = keep * params[at] - step_size * total


@njit(
    "void(float32[:, ::1], int64[::1], float32[::1], int64[:, :, ::1], float32[:, ::1], int64[::1],"
    " float32[:, ::1], int64[::1], float64, int64, float32[:, ::1])",
    cache=True,
    parallel=True,
    nogil=True,
)
def local_updates(params, run_of, step_sizes, samples, inputs, labels, values, widths, decay, loss, updates):
    """Fill updates (jobs, p) with x_local - x_received; ``values`` are the targets when not labels."""
    jobs, steps, batch = samples.shape
    letters = np.array([ord("N"), ord("T")], np.uint8)
    widest = 0
    for width in widths[1:]:
        widest = max(widest, width)
    for job in prange(jobs):
        received = params[run_of[job]]
        local = updates[job]
        local[:] = received
        # One block of memory, handed out in rows: numba lists of arrays would be slow here.
        activations = [np.empty(batch * width, np.float32) for width in widths]
        deltas = [np.empty(batch * width if at > 0 else 1, np.float32) for at, width in enumerate(widths)]
        batch_labels = np.zeros(batch, np.int64)
        batch_values = np.zeros(batch * widths[-1], np.float32)
        for step in range(steps):
            for row in range(batch):
                sample = samples[job, step, row]
                activations[0][row * widths[0] : (row + 1) * widths[0]] = inputs[sample]
                if loss == CROSS_ENTROPY:
                    batch_labels[row] = labels[sample]
                else:
                    batch_values[row * widths[-1] : (row + 1) * widths[-1]] = values[sample]
            sgd_step(
                local, widths, activations, deltas, batch, step_sizes[run_of[job]], decay,
                batch_labels, batch_values, loss, letters,
            )  # fmt: skip
        for i in range(local.size):
            local[i] -= received[i]
