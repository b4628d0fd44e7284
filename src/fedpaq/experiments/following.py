"""Following: a dense network's loss round after round, from what changed since the round before.

Half of the time of a figure would go into evaluating the loss on all samples after every round. A round of
quantized updates changes few of the first layer's weights, so what that layer gives is kept for every run and only
the changed weights are multiplied again. The sums are then rounded in another order: a loss agrees with
``Problem.evaluate`` to six digits or so, which is why runs that must agree to the bit do not use it.
"""

import numpy as np

from fedpaq.arrays import Float32
from fedpaq.clients import dense
from fedpaq.kernels import numba as compiled
from fedpaq.problems import Evaluation, Problem
from fedpaq.problems.dense_network import CROSS_ENTROPY, DenseNetwork


def following(problem: Problem) -> Problem:
    """Return the problem with an ``evaluate_batch`` that follows runs, where it can."""
    network = problem.dense_network
    return problem if network is None or not dense.is_available(problem) else Following(problem, network)


class Following(Problem):
    """The same problem; row i of ``evaluate_batch`` is best the same run from call to call, but may be any."""

    def __init__(self, problem: Problem, network: DenseNetwork) -> None:
        self.__dict__.update(problem.__dict__)
        self._network = network
        parts = [network.data(x, y) for x, y in self._held()]
        inputs = np.concatenate([x.numpy() for x, _ in parts])
        targets = np.concatenate([y.numpy() for _, y in parts])
        self._kernels = compiled.load("evaluation")
        columns = self._kernels.COLUMNS
        padded = np.pad(inputs, ((0, -len(inputs) % columns), (0, 0)))
        tiles = padded.reshape(-1, columns, inputs.shape[1]).transpose(0, 2, 1)
        self._tiles, self._samples = np.ascontiguousarray(tiles), len(inputs)
        is_labels = self._network.loss == CROSS_ENTROPY
        self._labels = targets if is_labels else np.zeros(1, np.int64)
        self._values = np.zeros((1, 1), np.float32) if is_labels else targets
        self._begin(0)

    def _begin(self, runs: int) -> None:
        """Forget all runs; what is not a number differs from everything, so the next products are whole ones."""
        weights = self._network.widths[0] * self._network.widths[1]
        shape = (len(self._tiles), runs, self._network.widths[1], self._tiles.shape[2])
        self._hidden = np.zeros(shape, np.float32)
        self._seen = np.full((runs, weights), np.nan, np.float32)
        self._features = np.empty((runs, weights), np.int32)
        self._changes = np.empty((runs, weights), np.float32)

    def evaluate_batch(self, params: Float32) -> list[Evaluation]:
        """Return the evaluation of each row of ``params`` (runs, p)."""
        runs, weights = len(params), self._seen.shape[1]
        if runs != len(self._seen):
            self._begin(runs)
        ends = np.empty((runs, self._network.widths[1]), np.int64)
        params = np.ascontiguousarray(params, np.float32)
        self._kernels.changes(self._seen, params, self._network.widths[0], self._features, self._changes, ends)
        losses = np.empty((len(self._tiles), runs))
        right = np.empty((len(self._tiles), runs), np.int64)
        widths = np.array(self._network.widths, np.int64)
        with dense.one_blas_thread():
            self._kernels.evaluate(
                self._tiles, self._samples, params, self._features, self._changes, ends, self._labels,
                self._values, widths, dense.LOSS_CODE[self._network.loss], self._hidden, losses, right,
            )  # fmt: skip
        self._seen[:] = params[:, :weights]
        total = losses.sum(axis=0) / (self._samples * self._values.shape[1])
        total += 0.5 * self.regularization * np.square(params, dtype=np.float64).sum(axis=1)
        self._seen[~np.isfinite(total)] = np.nan
        shares = right.sum(axis=0) / self._samples
        return [
            Evaluation(loss, None if self._label_kind is None else share)
            for loss, share in zip(total.tolist(), shares.tolist(), strict=True)
        ]
