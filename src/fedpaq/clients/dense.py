"""Dense: recognised dense networks by compiled matrix products, clients spread over cores."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpaq.clients.steps import require_plain
from fedpaq.clients.work import LocalWork
from fedpaq.errors import ConfigError
from fedpaq.kernels import numba as compiled
from fedpaq.problems import Problem
from fedpaq.problems.dense_network import CROSS_ENTROPY, LOGISTIC, SQUARED

LOSS_CODE = {CROSS_ENTROPY: 0, LOGISTIC: 1, SQUARED: 2}


@dataclass(frozen=True)
class Dense:
    """For models that ``problems.dense_network`` recognises; on the CPU only."""

    name: str = "dense"

    def local_updates(self, problem: Problem, work: LocalWork) -> npt.NDArray[np.float32]:
        """Return x_{k,tau}^(i) - x_k for every job: (jobs, p)."""
        network, kernels = problem.dense_network, compiled.load("dense_network")
        if network is None or kernels is None:
            raise ConfigError("executor='dense' needs numba and a dense ReLU network; choose 'auto'")
        require_plain(self.name, work)
        inputs, targets = problem.dense_data
        labels = network.loss == CROSS_ENTROPY
        updates = np.empty((len(work), problem.dimension), np.float32)
        with one_blas_thread():
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
                updates,
            )
        return updates


def is_available(problem: Problem) -> bool:
    """Return whether this executor can take the problem here."""
    on_cpu = problem.inputs.device.type == "cpu"
    return on_cpu and problem.dense_network is not None and compiled.load("dense_network") is not None


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
