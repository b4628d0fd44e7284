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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpaq.arrays import Float32, Int64
from fedpaq.clients import Executor, choose_executor, draw_participants, local_work
from fedpaq.config import FedPAQConfig, require_instance_with, require_same_shape
from fedpaq.cost_model import CostModel
from fedpaq.downlink import Broadcast, Dense, Downlink, as_downlink
from fedpaq.errors import ConfigError
from fedpaq.hardware.devices import require_device, to_array
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.problems import Problem
from fedpaq.problems.problem import require_problem
from fedpaq.quantizers import Identity, Quantizer, as_quantizer
from fedpaq.run.history import History, Record
from fedpaq.run.recorder import Callback, RunRecorder
from fedpaq.run.saving import CheckpointPolicy, as_policy, executor_of, saved_run
from fedpaq.run.settings import RunSettings
from fedpaq.run.state import RunState
from fedpaq.server.aggregation import Aggregation, Mean, as_aggregation
from fedpaq.server.uplink import Uplink, choose_uplink
from fedpaq.storage.atomic_file import StrPath


def train(
    problem: Problem,
    config: FedPAQConfig,
    *,
    quantizer: Quantizer | str | None = None,
    cost_model: CostModel | None = None,
    executor: str | Executor = "auto",
    evaluate_every: int = 1,
    callback: Callable[[Record, Float32], None] | None = None,
    aggregation: Aggregation | str | None = None,
    downlink: Downlink | str | None = None,
    checkpoint: StrPath | CheckpointPolicy | None = None,
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
        callback=(lambda _, record, params: callback(record, params)) if callable(callback) else callback,
        aggregation=aggregation,
        downlink=downlink,
        checkpoint=checkpoint,
        device=device,
        ranks=ranks,
    )
    return history.raise_if_diverged()


def sweep(
    problem: Problem,
    configs: Sequence[FedPAQConfig],
    *,
    quantizer: Quantizer | str | None = None,
    cost_model: CostModel | None = None,
    executor: str | Executor = "auto",
    evaluate_every: int = 1,
    callback: Callback | None = None,
    aggregation: Aggregation | str | None = None,
    downlink: Downlink | str | None = None,
    checkpoint: StrPath | CheckpointPolicy | None = None,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> list[History]:
    """Run all ``configs`` as one batch and return a history each, as separate ``train`` calls would.

    The configs may differ in step size and seed; r, tau, T and B are shared. ``quantizer`` defaults to none
    (FedAvg), ``aggregation`` to the paper's mean, ``downlink`` to the whole model as float32; each may also be
    given as text, e.g. "rotated:0.1".
    ``evaluate_every`` thins the evaluation of the training loss: 0 evaluates after the last round only.
    ``callback(run, record, params)`` is called for each run before the first round and after every round. A
    diverged run ends early and says so. A ``checkpoint`` is saved after every round, and the same call
    continues from it. With ``device="cuda"`` data and updates stay on the GPU and payload sizes are estimated.
    Several ``ranks`` share the clients.
    """
    require_problem(problem)
    if not isinstance(configs, Iterable):
        raise ConfigError(f"configs={configs!r} is not a list of configs; write [config], or call train")
    configs = list(configs)
    shape = require_same_shape(configs)
    shape.check_against(problem.num_clients)
    problem = problem.to(require_device(device))
    quantizer = as_quantizer(Identity() if quantizer is None else quantizer)
    downlink = as_downlink(Dense() if downlink is None else downlink)
    aggregation = as_aggregation(Mean() if aggregation is None else aggregation)
    checkpoint = as_policy(checkpoint)
    require_instance_with("ranks", ranks, ("is_first", "all_gather"), "those of fedpaq.hardware.ranks.join()")
    chosen = choose_executor(executor, problem, shape.clients_per_round, ranks, shape, lambda: executor_of(checkpoint))
    uplink = choose_uplink(quantizer, aggregation, problem, ranks)
    settings = RunSettings(
        problem=problem,
        configs=configs,
        quantizer=quantizer,
        aggregation=aggregation,
        downlink=downlink,
        cost_model=CostModel.from_ratio(100) if cost_model is None else cost_model,
        executor=chosen.name,
        payload_size_source=uplink.payload_size_source,
        evaluate_every=evaluate_every,
    )
    recorder = RunRecorder(settings, callback, ranks)
    broadcast = downlink.open([config.seed for config in configs], problem.num_clients, problem.initial_params)
    state = RunState.begin(broadcast)  # x_0
    with saved_run(checkpoint, settings, state, ranks) as saved:
        recorder.start(state)
        for k in saved.rounds():  # line 1
            runs = state.running()
            active = [configs[run] for run in runs]
            played = play_round(problem, active, k, runs, state.params[runs], chosen, uplink, broadcast)
            state.advance(runs, played.params)
            recorder.round_done(state, runs, played.participants, played.payload_bytes, played.download_bytes)
    return state.histories(settings)


@dataclass(frozen=True, eq=False)
class Played:
    """One round of some runs: what it led to and what travelled."""

    params: Any  # x_{k+1}: (runs, p), an array, or a tensor of the GPU that made it
    participants: Int64  # S_k: (runs, r)
    payload_bytes: Int64  # up, of all participants: (runs,)
    download_bytes: Int64  # down, to each participant: (runs, r)


def play_round(
    problem: Problem,
    configs: Sequence[FedPAQConfig],
    k: int,
    runs: Int64,
    params: Any,
    executor: Executor,
    uplink: Uplink,
    broadcast: Broadcast,
) -> Played:
    """Play round k of some runs, numbered ``runs`` among those of the broadcast, from params x_k: (runs, p)."""
    participants = draw_participants(problem, configs, k)  # line 2: (runs, r)
    download_bytes = broadcast.send(k, runs, participants)  # line 3
    inbox = uplink.open(len(configs), problem.dimension)
    for work in local_work(problem, configs, k, params, participants, share=uplink.share):
        updates = executor.local_updates(problem, work)  # lines 4-9: (jobs, p)
        inbox.add(updates, work)  # line 10
    mean, payload_bytes = inbox.finish()
    if not getattr(broadcast, "takes_tensors", False):
        params, mean = to_array(params), to_array(mean)  # a GPU makes the mean of what it quantized
    params = broadcast.adopt(runs, params, mean)  # line 11
    return Played(params, participants, payload_bytes, download_bytes)
