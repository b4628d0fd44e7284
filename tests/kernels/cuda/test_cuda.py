"""The GPU path against its twins: training to 1e-5, executors, sizes of payloads, sweeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedpaq
from fedpaq.clients import Batched, Sequential, Vectorised, local_work
from fedpaq.clients.graphs import Graphs
from small_problems import make_problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]


def test_training_on_the_device_agrees_with_the_host(gpu_checks):
    assert gpu_checks.check_training(torch.device("cuda", 0))


@pytest.mark.parametrize("kind", ["logistic", "mlp", "convnet"])
def test_executors_agree_on_the_device(kind, config):
    problem = make_problem(kind)
    placed = problem.to("cuda")
    params = problem.initial_params[None]
    here = next(local_work(problem, [config], 0, params, np.arange(5)[None]))
    there = next(local_work(placed, [config], 0, params, np.arange(5)[None]))
    assert np.array_equal(there.samples.cpu().numpy(), here.samples)
    expected = Sequential().local_updates(problem, here).numpy()
    graphs = Graphs()
    executors = [Sequential(), Vectorised(graphs=graphs)] + ([Batched()] if kind != "convnet" else [])
    for executor in executors:
        for _ in range(3):  # as it is, captured, replayed
            updates = executor.local_updates(placed, there)
            assert np.abs(updates.cpu().numpy() - expected).max() < 1e-5, executor


@pytest.mark.parametrize("levels", [1, 4, 300])
@pytest.mark.parametrize("bucket_size", [None, 100])
def test_payload_sizes_are_within_half_a_percent_of_the_encoder_s(levels, bucket_size, config):
    problem, quantizer = make_problem("mlp"), fedpaq.LowPrecision(levels, bucket_size)
    here = fedpaq.train(problem, config, quantizer=quantizer, device="cuda")
    there = fedpaq.train(problem, config, quantizer=quantizer, executor="sequential")
    assert here.payload_size_source == "estimated"
    assert abs(here.final.payload_bytes / there.final.payload_bytes - 1) < 0.005


def test_a_sweep_equals_separate_runs(config):
    problem = make_problem("mlp")
    configs = [fedpaq.FedPAQConfig(**{**config.to_dict(), "seed": seed}) for seed in range(3)]
    options = {"device": "cuda", "executor": Batched()}
    together = fedpaq.sweep(problem, configs, **options)
    for history, each in zip(together, configs, strict=True):
        alone = fedpaq.train(problem, each, **options)
        np.testing.assert_allclose(history.params, alone.params, atol=1e-5)


def test_a_diverged_run_ends_and_says_so(config):
    problem = make_problem("mlp")
    wild = fedpaq.FedPAQConfig(**{**config.to_dict(), "step_size": 1e25})
    calm, lost = fedpaq.sweep(
        problem, [config, wild], quantizer=fedpaq.LowPrecision(levels=1), device="cuda", evaluate_every=0
    )
    assert calm.diverged is None and "lower step_size" in lost.diverged
