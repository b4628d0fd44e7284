"""Algorithm 1 of the paper, for one run or for many runs as one batch. READ THIS FIRST.

    1  for k = 0, 1, ..., K-1:
    2      server picks r clients S_k uniformly at random
    3      server sends x_k to the clients in S_k
    4-9        each client i runs tau SGD steps on its own data, from x_k to x_{k,tau}^(i)
    10         and uploads Q(x_{k,tau}^(i) - x_k)
    11     server sets x_{k+1} = x_k + (1/r) sum_i Q(x_{k,tau}^(i) - x_k)

The mean is taken the same way wherever fedpaq runs: messages are added in client order in double
precision, divided by their number, added to x_k and rounded to float32. So the simulator, several
processes and a deployment agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedpaq.clients import Executor, choose_executor, draw_participants, local_work
from fedpaq.config import FedPAQConfig, require_same_shape
from fedpaq.cost_model import CostModel
from fedpaq.hardware.devices import require_device
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Problem
from fedpaq.quantizers import Identity, Quantizer
from fedpaq.run.history import History, Record
from fedpaq.run.recorder import Callback, Meter
from fedpaq.run.saving import Checkpoint, saved_run
from fedpaq.server import choose_uplink
from fedpaq.server.aggregation import Aggregation, Mean
from fedpaq.storage.atomic_file import StrPath

Float32 = npt.NDArray[np.float32]


def train(
    problem: Problem,
    config: FedPAQConfig,
    *,
    quantizer: Quantizer | None = None,
    cost_model: CostModel | None = None,
    executor: str | Executor = "auto",
    evaluate_every: int = 1,
    callback: Callable[[Record, Float32], None] | None = None,
    aggregation: Aggregation | None = None,
    checkpoint: StrPath | Checkpoint | None = None,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> History:
    """Run FedPAQ and return its history: ``sweep`` of one run.

    ``callback(record, params)`` is called before the first round and after every round. A run
    whose params or loss stop being finite raises ``DivergedError``.
    """
    (history,) = sweep(
        problem,
        [config],
        quantizer=quantizer,
        cost_model=cost_model,
        executor=executor,
        evaluate_every=evaluate_every,
        callback=None if callback is None else lambda _, record, params: callback(record, params),
        aggregation=aggregation,
        checkpoint=checkpoint,
        device=device,
        ranks=ranks,
    )
    return history.raise_if_diverged()


def sweep(
    problem: Problem,
    configs: Sequence[FedPAQConfig],
    *,
    quantizer: Quantizer | None = None,
    cost_model: CostModel | None = None,
    executor: str | Executor = "auto",
    evaluate_every: int = 1,
    callback: Callback | None = None,
    aggregation: Aggregation | None = None,
    checkpoint: StrPath | Checkpoint | None = None,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> list[History]:
    """Run all ``configs`` as one batch and return a history each, as separate ``train`` calls would.

    The configs may differ in step size and seed; r, tau, T and B are shared. ``quantizer`` defaults to none
    (FedAvg), ``aggregation`` to the paper's mean. ``evaluate_every`` thins the evaluation of the training
    loss: 0 evaluates after the last round only. ``callback(run, record, params)`` is called for each run
    before the first round and after every round. A diverged run ends early and says so. A ``checkpoint`` is
    saved after every round, and the same call continues from it. With ``device="cuda"`` data and updates
    stay on the GPU and payload sizes are estimated. Several ``ranks`` share the clients.
    """
    shape = require_same_shape(configs)
    shape.check_against(problem.num_clients)
    quantizer, cost_model = quantizer or Identity(), cost_model or CostModel.from_ratio(100)
    problem, server = problem.to(require_device(device)), aggregation or Mean()
    chosen = choose_executor(executor, problem, shape.clients_per_round, ranks)
    uplink = choose_uplink(quantizer, server, problem, ranks)
    names = chosen.name, uplink.payload_sizes
    meter = Meter(problem, configs, quantizer, cost_model, *names, evaluate_every, callback, server, ranks)

    params = np.tile(problem.initial_params, (len(configs), 1))  # x_0 of each run: (runs, p)
    with saved_run(checkpoint, meter, params, ranks) as saved:
        for k in saved.rounds():  # line 1
            runs = meter.running()
            active = [configs[run] for run in runs]
            participants = draw_participants(problem, active, k)  # line 2: (runs, r)
            inbox = uplink.open(len(runs), problem.dimension)
            for work in local_work(problem, active, k, params[runs], participants, share=uplink.share):
                updates = chosen.local_updates(problem, work)  # lines 3-9: (jobs, p)
                inbox.send(updates, work)  # line 10
            mean, payload_bytes = inbox.close()
            params[runs] = params[runs] + mean  # line 11
            meter.round_done(k, runs, params[runs], participants, payload_bytes)
    return meter.histories(params)
