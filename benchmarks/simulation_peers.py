"""Simulation speed against other frameworks, those that are installed: Flower's Ray simulation, pfl, FedJAX.

Each runs job J1 of simulation.py (J2 too with --jobs) in its own idiom: its sampling of clients and of
minibatches, its aggregation, its plain float32 uploads. What starts once (Ray, compilation) is not
timed; every framework must end near fedpaq's loss, which quantizes (s=1), encodes and averages.

    pip install 'flwr[simulation]' pfl fedjax jax optax
    python benchmarks/simulation_peers.py [--jobs J1 J2] [--repeats 3]
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import logging
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import fedpaq
from measurement import summary, write
from simulation import JOBS, jax_objective, setting

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
)

Result = tuple[float, np.ndarray]  # seconds, final params


def run_fedpaq(name: str) -> Result:
    problem, config = setting(name)
    begun = time.perf_counter()
    history = fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=1), evaluate_every=0)
    seconds = time.perf_counter() - begun
    assert history.params is not None
    return seconds, history.params


def run_flower(name: str) -> Result:
    """Flower's own simulation: one Ray actor a core; the rounds are timed, not the start of Ray."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    result: list[Result] = []
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        problem, _ = setting(name)  # kept by each actor
        module = copy.deepcopy(problem.model)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        steps = local_steps(module, name, client, seed=int(message.content["config"]["server-round"]))
        metrics = MetricRecord({"num-examples": steps})
        return Message(
            content=RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message
        )

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        problem, config = setting(name)
        strategy = FedAvg(
            fraction_train=config.clients_per_round / problem.num_clients,
            fraction_evaluate=0.0,
            min_available_nodes=problem.num_clients,
        )
        arrays = ArrayRecord(problem.model.state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)  # starts the actors
        begun = time.perf_counter()
        found = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=config.num_rounds)
        seconds = time.perf_counter() - begun
        state = found.arrays.to_torch_state_dict()
        flat = torch.cat([state[key].reshape(-1) for key in problem.model.state_dict()])
        result.append((seconds, flat.numpy()))

    logging.getLogger("flwr").setLevel(logging.ERROR)
    problem, _ = setting(name)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=problem.num_clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return result[0]


def local_steps(module: nn.Module, name: str, client: int, seed: int) -> int:
    """Run a client's local SGD steps in the way every tutorial does."""
    problem, config = setting(name)
    mine = problem.partition.samples_of(client)
    drawn = np.random.default_rng([seed, client]).choice(mine, (config.local_steps, config.batch_size or 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=config.step_size_at(0), weight_decay=problem.regularization)
    for samples in torch.from_numpy(drawn):
        optimizer.zero_grad()
        problem.loss(module(problem.inputs[samples]), problem.targets[samples]).backward()
        optimizer.step()
    return int(drawn.size)


def run_pfl(name: str) -> Result:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    problem, config = setting(name)
    from pfl.internal.ops import pytorch_ops

    set_framework_module(pytorch_ops)
    logging.getLogger("pfl").setLevel(logging.ERROR)
    draw = np.random.default_rng(0)

    class Learner(nn.Module):
        """pfl asks the module itself for its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(problem.model)

        def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return problem.loss(self.inner(inputs), targets)

        @torch.no_grad()
        def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
            return {"loss": Weighted(float(self.loss(inputs, targets)) * len(inputs), len(inputs))}

    def dataset_of(client: int) -> Dataset:
        # As many samples as the local steps take: pfl goes through a user's data in order.
        drawn = draw.choice(
            problem.partition.samples_of(client), config.local_steps * (config.batch_size or 1), replace=True
        )
        return Dataset((problem.inputs[drawn], problem.targets[drawn]), user_id=str(client))

    sampler = get_user_sampler("random", list(range(problem.num_clients)))
    clients = FederatedDataset(dataset_of, sampler)
    module = Learner()
    model = PyTorchModel(
        module,
        local_optimizer_create=lambda params, lr: torch.optim.SGD(params, lr=lr, weight_decay=problem.regularization),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    begun = time.perf_counter()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=config.num_rounds,
            evaluation_frequency=config.num_rounds + 1,
            train_cohort_size=config.clients_per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=config.step_size_at(0), local_batch_size=config.batch_size
        ),
        model_eval_params=None,
        send_metrics_to_platform=False,
    )
    seconds = time.perf_counter() - begun
    return seconds, nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def run_fedjax(name: str) -> Result:
    import jax

    if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 calls it by a name that JAX has dropped since
        jax.tree_map = jax.tree_util.tree_map
    import fedjax

    problem, config = setting(name)
    inputs, targets = problem.inputs.numpy(), problem.targets.numpy()
    data = fedjax.InMemoryFederatedData(
        {
            b"%d" % client: {"x": inputs[mine], "y": targets[mine]}
            for client in range(problem.num_clients)
            for mine in [problem.partition.samples_of(client)]
        }
    )
    objective = jax_objective(problem)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        lambda params, batch, rng: jax.grad(objective)(params, batch["x"], batch["y"]),
        fedjax.optimizers.sgd(config.step_size_at(0)),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=config.batch_size, num_steps=config.local_steps, num_epochs=None),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, config.clients_per_round, seed=0)
    state = algorithm.init(jax.numpy.asarray(problem.initial_params))
    sampler.set_round_num(0)
    algorithm.apply(state, sampler.sample())  # compiles
    begun = time.perf_counter()
    for k in range(config.num_rounds):
        sampler.set_round_num(k)
        state, _ = algorithm.apply(state, sampler.sample())
    final = np.asarray(state.params)
    return time.perf_counter() - begun, final


PEERS: dict[str, tuple[Callable[[str], Result], tuple[str, ...]]] = {
    "Flower, Ray": (run_flower, ("flwr", "ray")),
    "pfl": (run_pfl, ("pfl",)),
    "FedJAX": (run_fedjax, ("fedjax", "optax")),
}


def run_job(name: str, repeats: int) -> dict[str, Any]:
    """Run fedpaq and the peers in turn; check their losses; return medians."""
    problem, _ = setting(name)
    contenders: dict[str, Callable[[str], Result]] = {"fedpaq, s=1": run_fedpaq}
    for each, (function, needed) in PEERS.items():
        missing = [package for package in needed if importlib.util.find_spec(package) is None]
        if missing:
            print(f"  ({each}: {', '.join(missing)} not installed, left out)")
        else:
            contenders[each] = function
    run_fedpaq(name)  # compiles
    times: dict[str, list[float]] = {each: [] for each in contenders}
    losses: dict[str, float] = {}
    for _ in range(repeats):
        for each, function in contenders.items():
            seconds, params = function(name)
            times[each].append(seconds)
            losses[each] = problem.evaluate(params).loss
    ours = losses["fedpaq, s=1"]
    for each, loss in losses.items():
        if abs(loss - ours) > 0.1 * ours:  # other participants, other minibatches, no quantization
            raise SystemExit(f"{name}: {each} ends at loss {loss}, fedpaq at {ours}")
    print(f"{name}: {JOBS[name]['problem']}")
    median = statistics.median(times["fedpaq, s=1"])
    rows = {}
    for each, values in times.items():
        over = statistics.median(values) / median
        rows[each] = {**summary(values), "loss": losses[each], "over_fedpaq": over}
        print(f"  {each:14} {rows[each]['median_seconds']:9.3f} s  {over:8.1f} x fedpaq  loss {losses[each]:.4f}")
    return {"setting": JOBS[name], "contenders": rows}


def main() -> None:
    """Run the jobs and write benchmarks/results/simulation_peers.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=["J1"], choices=list(JOBS))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    results = {name: run_job(name, arguments.repeats) for name in arguments.jobs}
    print("written:", write("simulation_peers", {"jobs": results}).name)


if __name__ == "__main__":
    main()
