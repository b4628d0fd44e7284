"""What the ranks of ``test_ranks.py`` do: python ranks_job.py FOLDER JOB-SIZE ...

Each rank is a process of its own, with the variables that torchrun would set. It is forked from one that has done the
work alone, on one thread: so it starts in a moment, and no rank waits long for another. What a rank leaves is called
FOLDER/JOB-SIZE-RANK.*; the exit codes of all are in FOLDER/JOB-SIZE.json, results without ranks in FOLDER/alone.npz.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np

import fedpaq
from fedpaq.clients import Dense
from fedpaq.hardware.ranks import ALONE, Ranks, join
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


def work(job: str, name: Path) -> int:
    """Do the job of one rank and return its exit code; an error of fedpaq is one line on standard error."""
    try:
        with join(timeout_seconds=5 if job == "asleep" else 60) as ranks:
            if job == "results":
                np.savez(f"{name}-{ranks.rank}.npz", **results(ranks))
                return 0
            lost = "asleep" if job == "resumed" else job  # the run to go on with
            history = fedpaq.train(
                make_problem("mlp"),
                CONFIG,
                quantizer=fedpaq.LowPrecision(levels=1),
                executor=Failing(job, ranks),
                checkpoint=name.with_name(f"{lost}.ckpt"),
                ranks=ranks,
            )
            np.savez(f"{name}-{ranks.rank}.npz", params=history.params)
    except fedpaq.FedPAQError as error:
        print(f"fedpaq: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as ended:  # another rank says why
        return int(ended.code or 0)
    return 0


def start(job: str, name: Path, **variables: object) -> int:
    """Fork one rank and return its id; its standard error goes to a file."""
    child = os.fork()
    if child:
        return child
    code = 1
    signal.alarm(240)  # no rank outlives the test by long, whatever happens
    try:
        os.environ |= {variable: str(value) for variable, value in variables.items()}
        os.dup2(os.open(f"{name}-{variables['RANK']}.err", os.O_CREAT | os.O_WRONLY), 2)
        code = work(job, name)
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Do one job after another; where rank 0 fails, the others are killed then."""
    np.savez(Path(sys.argv[1], "alone.npz"), **results(ALONE))
    for name in sys.argv[2:]:
        job, size = name.split("-")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        world = {"WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [start(job, Path(sys.argv[1], name), RANK=rank, **world) for rank in range(int(size))]
        codes = []
        for rank in ranks:
            if any(codes):
                os.kill(rank, signal.SIGKILL)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]))
        Path(sys.argv[1], f"{name}.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
