"""What an error costs: the error of an upload, weighed by the curvature of the loss where it lands.

An error e in the params adds e'He / 2 to the loss, H its Hessian. In units of tr H / p ||x||^2 that is the *harm* of
a quantizer: if the error is spread evenly, harm and error E||Q(x) - x||^2 / ||x||^2 are the same number. Both are
measured for updates x of real clients, in the thirtieth of fifty rounds (n = 50, r = 25, tau = 2).

Would another allocation of the same bits do less harm? Cut the coordinates into groups, with energy E_g of the update
and trace H_g. Where bits are few the error of a group is E_g over its share of the bits, so the least harm that any
shares can have is (sum of sqrt(E_g H_g))^2, and an even error does (sum of E_g) (sum of H_g). The traces are estimated
with random signs; the noise of that makes the least look smaller than it is.

    python benchmarks/harm.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fedpaq
from measurement import write
from one_block import DATA, PROBLEMS
from real_updates import Recorder

ROUND, SEED = 30, 150
DRAWS, PROBES = 2, 60
Product = Callable[[Any], Any]  # v -> Hv


def updates_of(problem: fedpaq.Problem, step_size: float) -> tuple[Any, Any]:
    """Return the params before a round, and what its clients would upload."""

    def run(rounds: int, quantizer: Any) -> Any:
        config = fedpaq.FedPAQConfig(
            clients_per_round=25, local_steps=2, total_steps=2 * rounds, batch_size=10, step_size=step_size, seed=SEED
        )
        return fedpaq.train(problem, config, quantizer=quantizer, evaluate_every=0).params

    recorder = Recorder()
    before = run(ROUND, fedpaq.Identity())
    run(ROUND + 1, recorder)
    return before, recorder.updates


def hessian(problem: fedpaq.Problem, params: Any) -> Product:
    """Return the product with the Hessian of the training loss over all samples."""
    flat = torch.tensor(params, requires_grad=True)
    sizes = [each.numel() for each in problem.model.parameters()]
    named = dict(problem.model.named_parameters())
    parts = {name: part.view_as(value) for (name, value), part in zip(named.items(), flat.split(sizes), strict=True)}
    outputs = torch.func.functional_call(problem.model, parts, (problem.inputs,))
    (gradient,) = torch.autograd.grad(problem.loss(outputs, problem.targets), flat, create_graph=True)

    def times(vector: Any) -> Any:
        (product,) = torch.autograd.grad(gradient, flat, torch.from_numpy(vector), retain_graph=True)
        return product.numpy().astype(np.float64)

    return times


def groupings(problem: fedpaq.Problem) -> dict[str, Any]:
    """Return ways to cut the coordinates into groups: the number of each coordinate's group."""
    shapes = [tuple(each.shape) for each in problem.model.parameters()]
    layers = np.repeat(np.arange(len(shapes)), [int(np.prod(shape)) for shape in shapes])
    outputs, inputs = shapes[0]
    first = np.arange(outputs * inputs)
    found = {
        "layers": layers,
        "units of the first layer": layers + outputs,
        "inputs of the first layer": layers + inputs,
    }
    found["units of the first layer"][first] = first // inputs
    found["inputs of the first layer"][first] = first % inputs
    return found | {f"runs of {length:,}": np.arange(layers.size) // length for length in (512, 4096)}


def harms(times: Product, updates: Any, trace: float, texts: list[str]) -> list[dict[str, Any]]:
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


def measured(name: str) -> dict[str, Any]:
    """Return quantizers and groupings of one problem."""
    step_size, (few, _), levels = PROBLEMS[name]
    problem = fedpaq.problems.load(name, num_clients=50, seed=0, data_dir=DATA if DATA.exists() else None)
    params, updates = updates_of(problem, step_size)
    times, rng = hessian(problem, params), np.random.default_rng(0)
    diagonal = np.zeros(params.size)
    for _ in range(PROBES):
        signs = rng.choice(np.array([-1, 1], np.float32), params.size)
        diagonal += signs * times(signs) / PROBES
    texts = [f"low-precision:{levels}", f"rotated:payload_bytes={few}", f"rotated:payload_bytes={few},blocks=1"]
    return {
        "dimension": params.size,
        "quantizers": harms(times, updates, float(diagonal.sum()), texts),
        "groupings": shares(diagonal, np.square(updates, dtype=np.float64).mean(axis=0), groupings(problem)),
    }


def main() -> None:
    """Measure every problem and write the JSON."""
    found = {}
    for name in PROBLEMS:
        found[name] = measured(name)
        for row in (*found[name]["quantizers"], *found[name]["groupings"]):
            print(name, row, flush=True)
    write("harm", {"problems": found})


if __name__ == "__main__":
    main()
