"""The loss of many params of a dense ReLU network in one pass; twin: ``fedpaq.problems.Problem.evaluate``.

Samples lie in tiles of 64 columns. What the first layer gives for a tile, without its bias, is kept from call to
call: where few of its weights have changed since the last call, as after a round of quantized updates, only they
are multiplied again. The other layers are small and are worked out anew while the tile is in the cache.
"""

import math

import numpy as np
from numba import njit

from fedpaq.kernels.numba import kernel
from fedpaq.kernels.numba.blas import NN, gemm
from fedpaq.kernels.numba.dense_network import CROSS_ENTROPY, LOGISTIC

COLUMNS = 64  # samples of a tile
DENSE = 0.25  # the share of changed weights from which on a whole product is cheaper
_FAST = {"reassoc", "contract", "nsz", "arcp"}


@kernel(
    "void(float32[:, ::1], float32[:, ::1], int64, int32[:, ::1], float32[:, ::1], int64[:, ::1], int64, int64)",
    jobs=lambda before, *_: (len(before), before.size),
)
def changes(before, now, width, features, values, ends, first, last):
    """List which weights of the first layer have changed in each run, and by how much.

    Those of unit u of a run are at ends[run, u - 1] .. ends[run, u]; ends[run, 0] = -1: there are too many.
    """
    weights = before.shape[1]
    for run in range(first, last):
        found, most = 0, int(DENSE * weights)
        for unit in range(weights // width):
            for feature in range(width):
                change = now[run, unit * width + feature] - before[run, unit * width + feature]
                if change != 0 and found <= most:
                    features[run, found] = feature
                    values[run, found] = change
                    found += 1
            ends[run, unit] = found
        if found > most:
            ends[run, 0] = -1


@njit(fastmath=_FAST)
def add_changes(tile, features, values, ends, hidden):
    """Add to hidden (units, 64) what changed weights of the first layer do to it, four of a unit at a time."""
    at = 0
    for unit in range(ends.size):
        z, end = hidden[unit], ends[unit]
        while at + 4 <= end:
            x0, x1 = tile[features[at]], tile[features[at + 1]]
            x2, x3 = tile[features[at + 2]], tile[features[at + 3]]
            v0, v1, v2, v3 = values[at], values[at + 1], values[at + 2], values[at + 3]
            for column in range(COLUMNS):
                z[column] += v0 * x0[column] + v1 * x1[column] + v2 * x2[column] + v3 * x3[column]
            at += 4
        while at < end:
            x0, v0 = tile[features[at]], values[at]
            for column in range(COLUMNS):
                z[column] += v0 * x0[column]
            at += 1


@njit(fastmath=_FAST)
def exponentials(values, whole, scale):
    """Write e^x over x <= 0 in place, to single precision: 2^k times a polynomial on [-1/2, 1/2]."""
    for i in range(COLUMNS):
        t = max(values[i], np.float32(-87.0)) * np.float32(1.44269504)
        k = math.floor(t + np.float32(0.5))
        f = (t - np.float32(k)) * np.float32(0.69314718)
        whole[i] = (np.int32(k) + np.int32(127)) << np.int32(23)
        values[i] = np.float32(1) + f * (
            np.float32(1)
            + f
            * (
                np.float32(0.5)
                + f
                * (np.float32(1 / 6) + f * (np.float32(1 / 24) + f * (np.float32(1 / 120) + f * np.float32(1 / 720))))
            )
        )
    for i in range(COLUMNS):
        values[i] *= scale[i]


@njit
def cross_entropy(outputs, labels, used):
    """Return the summed loss of the first ``used`` columns, and how many have their label on top."""
    top, total = np.empty(COLUMNS, np.float32), np.zeros(COLUMNS, np.float32)
    best = np.zeros(COLUMNS, np.int64)
    for column in range(COLUMNS):
        top[column] = outputs[0, column]
    for row in range(1, len(outputs)):
        for column in range(COLUMNS):
            if outputs[row, column] > top[column]:
                top[column] = outputs[row, column]
                best[column] = row
    values, whole = np.empty(COLUMNS, np.float32), np.empty(COLUMNS, np.int32)
    scale = whole.view(np.float32)
    for row in range(len(outputs)):
        for column in range(COLUMNS):
            values[column] = outputs[row, column] - top[column]
        exponentials(values, whole, scale)
        for column in range(COLUMNS):
            total[column] += values[column]
    loss, right = 0.0, 0
    for column in range(used):
        loss += math.log(total[column]) + top[column] - outputs[labels[column], column]
        right += best[column] == labels[column]
    return loss, right


@njit
def by_element(outputs, values, used, kind):
    """Return the same for the logistic and the squared loss, summed over outputs too; labels are signs."""
    loss, right = 0.0, 0
    for row in range(len(outputs)):
        for column in range(used):
            z, y = float(outputs[row, column]), float(values[column, row])
            if kind == LOGISTIC:
                loss += max(z, 0.0) - z * y + math.log1p(math.exp(-abs(z)))
            else:
                loss += (z - y) ** 2
            right += (z > 0) == (y > 0.5)
    return loss, right


def _jobs(tiles, samples, params, *_):
    return len(tiles), samples * params.size / 100


@kernel(
    "void(float32[:, :, ::1], int64, float32[:, ::1], int32[:, ::1], float32[:, ::1], int64[:, ::1], int64[::1],"
    " float32[:, ::1], int64[::1], int64, float32[:, :, :, ::1], float64[:, ::1], int64[:, ::1], int64, int64)",
    jobs=_jobs,
)
def evaluate(
    tiles, samples, params, features, values, ends, labels, targets, widths, kind, hidden, losses, right, first, last
):
    """Bring hidden (tiles, runs, units, 64) up to date; fill losses and right answers (tiles, runs)."""
    one, zero = np.float32(1.0), np.float32(0.0)
    scratch = (np.empty(6, np.int32), np.empty(2, np.float32))
    layers, width, units = widths.size - 1, widths[0], widths[1]
    widest = 0
    for each in widths[1:]:
        widest = max(widest, each)
    outputs, spare = np.empty((widest, COLUMNS), np.float32), np.empty((widest, COLUMNS), np.float32)
    for tile in range(first, last):
        start_of_tile = tile * COLUMNS
        used = min(COLUMNS, samples - start_of_tile)
        for run in range(len(params)):
            kept = hidden[tile, run]
            if ends[run, 0] < 0:
                sizes = (COLUMNS, units, width)
                gemm(NN, sizes, one, tiles[tile], COLUMNS, params[run], width, zero, kept, COLUMNS, scratch)
            else:
                add_changes(tiles[tile], features[run], values[run], ends[run], kept)
            start = units * width
            for row in range(units):
                for column in range(COLUMNS):
                    outputs[row, column] = kept[row, column] + params[run, start + row]
            start += units
            for layer in range(1, layers):
                inner, outer = widths[layer], widths[layer + 1]
                for row in range(inner):
                    for column in range(COLUMNS):
                        outputs[row, column] = max(outputs[row, column], zero)
                for row in range(outer):
                    for column in range(COLUMNS):
                        spare[row, column] = params[run, start + outer * inner + row]
                sizes, weight = (COLUMNS, outer, inner), params[run, start:]
                gemm(NN, sizes, one, outputs, COLUMNS, weight, inner, one, spare, COLUMNS, scratch)
                start += outer * inner + outer
                outputs, spare = spare, outputs
            last_layer = outputs[: widths[layers]]
            if kind == CROSS_ENTROPY:
                losses[tile, run], right[tile, run] = cross_entropy(last_layer, labels[start_of_tile:], used)
            else:
                losses[tile, run], right[tile, run] = by_element(last_layer, targets[start_of_tile:], used, kind)
