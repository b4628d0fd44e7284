"""What an error costs: the error of an upload, weighed by the curvature of the loss where it lands.

An error e in the params adds e'He / 2 to the loss, H its Hessian. In units of tr H / p ||x||^2 that is the *harm* of
a quantizer: if the error is spread evenly, harm and error E||Q(x) - x||^2 / ||x||^2 are the same number. Both are
measured for updates x of real clients after thirty rounds, on three of the paper's networks, on a ResNet-18 with a
quarter of the channels, and on a byte transformer that takes its local steps with AdamW.

Would another allocation of the same bits do less harm? Cut the coordinates into groups, with energy E_g of the update
and trace H_g. Where bits are few the error of a group is E_g over its share of the bits, so the least harm that any
shares can have is (sum of sqrt(E_g H_g))^2, and an even error does (sum of E_g) (sum of H_g). The traces are estimated
with random signs; the noise of that makes the least look smaller than it is.

    python benchmarks/harm.py [--only resnet]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import fedpaq
from fedpaq.experiments.models.tasks import load_bytes, load_images
from measurement import RESULTS, write
from one_block import DATA, PROBLEMS
from real_updates import Recorder

ROUND, SEED = 30, 150
DRAWS, PROBES = 2, 60
Product = Callable[[Any], Any]  # v -> Hv


@dataclass(frozen=True)
class Case:
    """A problem, how it is trained, on how many samples H is taken, and what is measured."""

    load: Callable[[], fedpaq.Problem]
    step_size: float
    quantizers: tuple[str, ...]
    samples: int | None = None  # all
    clients_per_round: int = 25
    local_steps: int = 2
    batch_size: int = 10
    optimizer: str = "sgd"


def of_the_paper(name: str) -> Case:
    """Return one of the paper's networks, with the bytes of s = 1."""
    step_size, (few, _), levels = PROBLEMS[name]
    rotated = f"rotated:payload_bytes={few}"
    return Case(
        load=lambda: fedpaq.problems.load(name, num_clients=50, seed=0, data_dir=DATA if DATA.exists() else None),
        step_size=step_size,
        quantizers=(f"low-precision:{levels}", rotated, f"{rotated},blocks=1"),
    )


RATES = (0.03, 0.5)  # of the larger models, the second is the default on Flower
ROTATED = tuple(f"rotated:{rate}{more}" for rate in RATES for more in ("", ",blocks=1"))
LARGER = {"quantizers": ("low-precision:10", *ROTATED), "local_steps": 5}
CASES = {name: of_the_paper(name) for name in PROBLEMS} | {
    "resnet": Case(
        load=lambda: load_images(DATA if DATA.exists() else None, width=16).problem,
        step_size=0.02, samples=400, clients_per_round=5, batch_size=20, **LARGER,
    ),
    "transformer": Case(
        load=lambda: load_bytes(None, width=64, layers=2).problem,
        step_size=1e-3, samples=100, clients_per_round=5, batch_size=16, optimizer="adamw:0.01", **LARGER,
    ),
}  # fmt: skip


def updates_of(problem: fedpaq.Problem, case: Case) -> tuple[Any, Any]:
    """Return the params before a round, and what its clients would upload."""
    problem = problem.evaluated_on(np.arange(10))  # the loss is not looked at

    def run(rounds: int, quantizer: Any) -> Any:
        config = fedpaq.FedPAQConfig(
            clients_per_round=case.clients_per_round,
            local_steps=case.local_steps,
            total_steps=rounds * case.local_steps,
            batch_size=case.batch_size,
            step_size=case.step_size,
            optimizer=case.optimizer,
            seed=SEED,
        )
        return fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0).params

    recorder = Recorder((ROUND + 1,))
    before = run(ROUND, fedpaq.Identity())
    run(ROUND + 1, recorder)
    return before, recorder.updates[ROUND + 1]


def hessian(problem: fedpaq.Problem, params: Any, samples: Any) -> Product:
    """Return the product with the Hessian of the training loss over some samples."""
    flat = torch.tensor(params, requires_grad=True)
    named = dict(problem.model.named_parameters())
    parts = flat.split([value.numel() for value in named.values()])
    values = {name: part.view_as(value) for (name, value), part in zip(named.items(), parts, strict=True)}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the one that is differentiable twice
        outputs = torch.func.functional_call(problem.model, values, (problem.inputs[samples],))
        (gradient,) = torch.autograd.grad(problem.loss(outputs, problem.targets[samples]), flat, create_graph=True)

    def times(vector: Any) -> Any:
        (product,) = torch.autograd.grad(gradient, flat, torch.from_numpy(vector), retain_graph=True)
        return product.numpy().astype(np.float64)

    return times


def groupings(problem: fedpaq.Problem) -> dict[str, Any]:
    """Return ways to cut the coordinates into groups: the number of each coordinate's group."""
    shapes = [tuple(each.shape) for each in problem.model.parameters()]
    layers = np.repeat(np.arange(len(shapes)), [int(np.prod(shape)) for shape in shapes])
    found = {"layers": layers}
    if problem.inputs.ndim == 2 and problem.inputs.is_floating_point():  # a dense network
        outputs, inputs = shapes[0]
        first = np.arange(outputs * inputs)
        for name, count, numbers in (("units", outputs, first // inputs), ("inputs", inputs, first % inputs)):
            groups = found[f"{name} of the first layer"] = layers + count
            groups[first] = numbers
    return found | {f"runs of {length:,}": np.arange(layers.size) // length for length in (512, 4096)}


def harms(times: Product, updates: Any, trace: float, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return bytes, error and harm of each quantizer, means over clients and draws."""
    rows = []
    for text in texts:
        quantizer, found = fedpaq.quantizers.parse(text), []
        for draw in range(DRAWS):
            for client, update in enumerate(updates):
                message = quantizer.quantize(update, key=fedpaq.Key(seed=draw, round=ROUND, client=client))
                error = message.dequantize() - update
                energy = float(np.square(update, dtype=np.float64).sum())
                harm = float(error @ times(error)) * update.size / trace
                squared = float(np.square(error, dtype=np.float64).sum())
                found.append((len(fedpaq.encode(message)), squared / energy, harm / energy))
        bytes_, errors, weighed = zip(*found, strict=True)
        row = {"quantizer": text, "bytes": float(np.mean(bytes_)), "error": float(np.mean(errors))}
        row |= {"harm": float(np.mean(weighed)), "standard_error": float(np.std(weighed) / len(weighed) ** 0.5)}
        rows.append(row)
    return rows


def shares(diagonal: Any, energies: Any, groups: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the least harm over that of an even error, for each way to cut."""
    rows = []
    for name, numbers in groups.items():
        _, group = np.unique(numbers, return_inverse=True)
        traces, energy = np.maximum(np.bincount(group, diagonal), 0), np.bincount(group, energies)
        least = np.sqrt(traces * energy).sum() ** 2 / (traces.sum() * energy.sum())
        rows.append({"groups": name, "count": int(group.max()) + 1, "least_over_even": float(least)})
    return rows


def measured(case: Case) -> dict[str, Any]:
    """Return what quantizers do and what groupings could."""
    problem, rng = case.load(), np.random.default_rng(0)
    params, updates = updates_of(problem, case)
    samples = problem.partition.indices
    if case.samples is not None:
        samples = rng.choice(samples, case.samples, replace=False)
    times = hessian(problem, params, torch.from_numpy(np.sort(samples)))
    diagonal = np.zeros(params.size)
    for _ in range(PROBES):
        signs = rng.choice(np.array([-1, 1], np.float32), params.size)
        diagonal += signs * times(signs) / PROBES
    return {
        "dimension": params.size,
        "optimizer": case.optimizer,
        "quantizers": harms(times, updates, float(diagonal.sum()), case.quantizers),
        "groupings": shares(diagonal, np.square(updates, dtype=np.float64).mean(axis=0), groupings(problem)),
    }


def main() -> None:
    """Measure the cases and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    kept = RESULTS / "harm.json"
    found = json.loads(kept.read_text())["problems"] if kept.exists() else {}
    for name in parser.parse_args().only:
        found[name] = measured(CASES[name])
        for row in (*found[name]["quantizers"], *found[name]["groupings"]):
            print(name, row, flush=True)
        write("harm", {"problems": {case: found[case] for case in CASES if case in found}})


if __name__ == "__main__":
    main()
