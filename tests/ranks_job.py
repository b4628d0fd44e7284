"""What one rank of ``test_ranks.py`` does: python ranks_job.py JOB FOLDER, started once per rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import fedpaq
from fedpaq.clients import Dense
from fedpaq.hardware.ranks import Ranks, join
from fedpaq.server.aggregation import ClippedMean
from small_problems import make_problem

CONFIG = fedpaq.FedPAQConfig(clients_per_round=5, local_steps=3, total_steps=12, batch_size=4, step_size=0.1, seed=11)
DIVERGING = fedpaq.FedPAQConfig(
    clients_per_round=5, local_steps=3, total_steps=12, batch_size=4, step_size=1e18, seed=11
)
LOST_IN_ROUND = 2


def results(ranks: Ranks) -> dict[str, np.ndarray]:
    """Return the params of a few runs, with and without quantization."""
    mlp, convnet = make_problem("mlp"), make_problem("convnet")
    one_level, buckets = fedpaq.LowPrecision(levels=1), fedpaq.LowPrecision(levels=4, bucket_size=50)

    def params(problem, **options):
        return fedpaq.train(problem, CONFIG, ranks=ranks, **options).params

    any_module = fedpaq.train(convnet, CONFIG, ranks=ranks)
    swept = fedpaq.sweep(mlp, [CONFIG, DIVERGING], quantizer=one_level, ranks=ranks)
    return {
        "one level": params(mlp, quantizer=one_level),
        "buckets": params(mlp, quantizer=buckets),
        "coded both ways": params(mlp, quantizer=one_level, downlink=fedpaq.Changes("rotated:1")),
        "clipped": params(mlp, quantizer=buckets, aggregation=ClippedMean()),
        "clipped, raw": params(mlp, aggregation=ClippedMean()),
        "sweep": swept[0].params,
        "losses": np.array([record.loss for record in swept[0].records]),
        "bytes": np.array([record.payload_bytes for record in swept[0].records]),
        "rounds until diverged": np.array([len(swept[1].records)]),
        "not quantized": params(mlp),
        "not quantized, convolutions": any_module.params,
        "executor": np.array([any_module.executor]),
    }


class Failing:
    """Dense, but the last rank may be killed or fall asleep in the middle of the run."""

    name = "dense"

    def __init__(self, how: str, ranks: Ranks) -> None:
        self._how, self._ranks = how, ranks

    def local_updates(self, problem, work):
        """Do the work, or end."""
        if work.round == LOST_IN_ROUND and self._ranks.rank == self._ranks.size - 1:
            if self._how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self._how == "asleep":
                time.sleep(300)
        return Dense().local_updates(problem, work)


def main() -> None:
    """Do the job; an error of fedpaq is one line on standard error."""
    job, folder = sys.argv[1], Path(sys.argv[2])
    try:
        with join(timeout_seconds=3 if job == "asleep" else 60) as ranks:
            if job == "results":
                np.savez(folder / f"{ranks.size}-{ranks.rank}.npz", **results(ranks))
                return
            history = fedpaq.train(
                make_problem("mlp"),
                CONFIG,
                quantizer=fedpaq.LowPrecision(levels=1),
                executor=Failing(job, ranks),
                checkpoint=folder / "run.ckpt",
                ranks=ranks,
            )
            np.save(folder / f"{job}-{ranks.rank}.npy", history.params)
    except fedpaq.FedPAQError as error:
        print(f"fedpaq: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
