"""Dense: recognised dense networks by compiled matrix products, clients spread over cores."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpaq.arrays import Float32, Int32
from fedpaq.clients.steps import require_plain
from fedpaq.clients.work import LocalWork
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.problems import Problem
from fedpaq.problems.dense_network import CROSS_ENTROPY, LOGISTIC, SQUARED

LOSS_CODE = {CROSS_ENTROPY: 0, LOGISTIC: 1, SQUARED: 2}
TOGETHER, ROWS = 8, 256  # clients that share their first product, and rows in all: more gain little and take memory
LARGE = 2**21  # params of a first layer, from which on it is not tried


@dataclass(frozen=True)
class Dense:
    """For models that ``problems.dense_network`` recognises; on the CPU only."""

    name: str = "dense"

    def local_updates(self, problem: Problem, work: LocalWork) -> Float32:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p)."""
        network, kernels = problem.dense_network, compiled.load("dense_network")
        if network is None or kernels is None:
            raise ConfigError("executor='dense' needs numba and a dense ReLU network; choose 'auto'")
        require_plain(self.name, work)
        inputs, targets = problem.dense_data
        labels = network.loss == CROSS_ENTROPY
        updates = np.empty((len(work), problem.dimension), np.float32)
        steps, batch = work.samples.shape[1:]
        with one_blas_thread():
            together = clients_together(network.widths, steps, batch, problem.regularization != 0)
            kernels.local_updates(
                np.ascontiguousarray(work.params, np.float32),
                work.run_of,
                work.step_sizes,
                work.samples,
                inputs.numpy(),
                targets.numpy() if labels else np.zeros(1, np.int64),
                np.zeros((1, 1), np.float32) if labels else targets.numpy(),
                np.array(network.widths, np.int64),
                problem.regularization,
                LOSS_CODE[network.loss],
                together,
                updates,
            )
        return updates


def is_available(problem: Problem) -> bool:
    """Return whether this executor can take the problem here."""
    on_cpu = problem.inputs.device.type == "cpu"
    return on_cpu and problem.dense_network is not None and compiled.load("dense_network") is not None


@functools.cache
def clients_together(widths: tuple[int, ...], steps: int, batch: int, decays: bool) -> int:
    """Return how many clients of a run may share their first product, which saves BLAS half of its time.

    One, unless this BLAS gives each of several the bits that it gets alone: otherwise a run would depend on how
    many threads and processes share its clients.
    """
    kernels, (before, after) = compiled.load("dense_network"), widths[:2]
    steps = kernels.block_of.py_func(steps, batch, after, float(decays))
    jobs, dimension = min(TOGETHER, ROWS // (steps * batch)), after * (before + 1)
    if jobs < 2 or dimension > LARGE or not kernels.is_wide.py_func(steps * batch, before, after):
        return 1
    rng = np.random.default_rng(0)
    params = 0.05 * rng.standard_normal((1, dimension), np.float32)
    inputs, targets = rng.standard_normal((64, before), np.float32), np.ones((64, after), np.float32)
    samples = rng.integers(0, 64, (jobs, steps, batch))

    def updates(together: int) -> Int32:
        """Return the bits that the first layer alone gets."""
        found = np.empty((jobs, dimension), np.float32)
        kernels.local_updates.alone(
            params, np.zeros(jobs, np.int64), np.full(1, 0.01, np.float32), samples, inputs, np.zeros(1, np.int64),
            targets, np.array([before, after]), float(decays), LOSS_CODE[SQUARED], together, found,
        )  # fmt: skip
        return found.view(np.int32)

    alone = updates(1)
    return jobs if all(np.array_equal(alone, updates(together)) for together in (2, 3, jobs)) else 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep the BLAS behind the kernels to one thread: the clients already use every core."""
    before = [(library, library.get_num_threads()) for library in _blas_of_scipy()]
    for library, _ in before:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in before:
            library.set_num_threads(threads)


@functools.cache
def _blas_of_scipy() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().lib_controllers
    return [library for library in found if library.user_api == "blas" and "scipy.libs" in library.filepath]
