"""Real models: fedpaq's rounds against a loop written by hand, on the same draws. On a GPU and on a CPU.

    python benchmarks/models.py [--device cuda] [--only SECTION ...]

The loop (``eager_round``) is what people write: the module, torch.optim.SGD, one client after another. It
quantizes with fedpaq's own kernels and the same keys, so both end in the same loss. Both run under PyTorch's
default settings (convolutions may use TF32), and once more in strict float32. Writes its part of models.json, that
of a GPU or that of a CPU, to the folder named by the environment variable OUT, else to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import os
import statistics
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedpaq
from fedpaq.clients import Captured, LocalWork, Sequential, draw_participants, local_work
from fedpaq.experiments.models.networks import Block, ByteTransformer, next_byte_loss, resnet18
from fedpaq.experiments.models.tasks import load_images
from fedpaq.hardware.devices import require_device
from fedpaq.problems.relu_network import relu_network
from fedpaq.server.aggregation import Mean
from fedpaq.server.device_batch import device_batch
from fedpaq.server.uplink import choose_uplink
from measurement import RESULTS, alternate, machine

QUANTIZER = fedpaq.LowPrecision(levels=1)
DATA = Path(os.environ.get("FEDPAQ_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


class Gpt2Sized(nn.Module):
    """124,439,808 parameters: GPT-2's sizes, with the output tied to the embedding."""

    def __init__(self, vocabulary: int = 50257, width: int = 768, layers: int = 12, length: int = 1024) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        sizes = {"d_model": width, "nhead": width // 64, "dim_feedforward": 4 * width}
        layer = nn.TransformerEncoderLayer(**sizes, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, vocabulary) of ids (B, T)."""
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf"), device=ids.device).triu(1)
        return self.head(self.encoder(self.embedding(ids) + self.positions[:length], mask=mask, is_causal=True))


def weighted_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy with a weight for each of three classes."""
    weight = torch.arange(1.0, 4.0, device=outputs.device)
    return nn.functional.cross_entropy(outputs, labels, weight=weight)


def text_windows(length: int, windows: int) -> tuple[Tensor, Tensor]:
    """Return bytes (windows, length) of Python's own library, and the byte that follows each."""
    folder, needed, text = Path(sysconfig.get_paths()["stdlib"]), windows * length + 1, b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= needed:
            break
    ids = torch.frombuffer(bytearray(text[:needed]), dtype=torch.uint8).long()
    return ids[:-1].view(windows, length), ids[1:].view(windows, length)


def transformer_problem(**sizes: Any) -> fedpaq.Problem:
    """Return the byte transformer on 100 clients."""
    torch.manual_seed(0)
    model = ByteTransformer(**sizes)
    inputs, targets = text_windows(len(model.positions), 5000)
    partition = fedpaq.problems.iid(len(inputs), num_clients=100, seed=0)
    return fedpaq.Problem(
        model=model, loss=next_byte_loss, inputs=inputs, targets=targets, partition=partition, name="byte-transformer"
    )


def image_problem(model: nn.Module, name: str) -> fedpaq.Problem:
    """Return a network for images of 32 x 32 on random ones: 100 clients."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(5000, 3, 32, 32, generator=generator), torch.arange(5000) % 10
    partition = fedpaq.problems.iid(5000, num_clients=100, seed=0)
    return fedpaq.Problem(
        model=model, loss=nn.functional.cross_entropy, inputs=inputs, targets=labels, partition=partition, name=name
    )


def resnet18_problem() -> fedpaq.Problem:
    """Return ResNet-18 on the images of CIFAR-10, or on random ones where they are not at hand; 100 clients."""
    torch.manual_seed(0)
    try:
        problem = load_images(DATA if DATA.exists() else None).problem
    except fedpaq.DatasetError:
        return image_problem(resnet18(), "resnet18-gn")
    held = np.sort(problem.partition.indices)
    return fedpaq.Problem(
        model=problem.model, loss=problem.loss, inputs=problem.inputs[held], targets=problem.targets[held],
        partition=fedpaq.problems.iid(held.size, num_clients=100, seed=0), name="resnet18-gn",
    )  # fmt: skip


def resnet8(width: int = 16) -> nn.Module:
    """Return three blocks of two convolutions: 77,850 parameters."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(2, width), nn.ReLU()]
    sizes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
    blocks = [Block(*size) for size in sizes]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def small_cnn() -> nn.Module:
    """Return two convolutions and two dense layers: 136,874 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def eager_round(
    model: nn.Module, problem: fedpaq.Problem, config: fedpaq.FedPAQConfig, k: int, params: Tensor, quantizer: Any
) -> Tensor:
    """Play round k by hand: the loop that people write. The module is on the problem's device."""
    total = torch.zeros(1, len(params), dtype=torch.float64, device=params.device)
    for client in draw_participants(problem, [config], k)[0].tolist():
        (work,) = local_work(problem, [config], k, params[None], np.array([[client]]))  # the draws, no more
        nn.utils.vector_to_parameters(params.clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=config.step_size_at(k))
        for samples in work.samples[0]:
            index = torch.as_tensor(samples, device=params.device)
            optimizer.zero_grad()
            problem.loss(model(problem.inputs[index]), problem.targets[index]).backward()
            optimizer.step()
        update = nn.utils.parameters_to_vector(model.parameters()).detach() - params
        add(quantizer, update[None], work, total)
    return (params + total[0] / config.clients_per_round).float()


def add(quantizer: Any, updates: Tensor, work: LocalWork, total: Tensor) -> None:
    """Quantize an update where it is, and add it to the total (1, p)."""
    batch = device_batch(quantizer, updates, work)
    if batch is not None:
        batch.add_to(total, torch.tensor([0, 1], device=total.device))
    else:
        quantizer.quantize_batch(updates.numpy(), work.keys())[0].add_to(total[0].numpy(), 1.0)


def eager_run(
    problem: fedpaq.Problem, config: fedpaq.FedPAQConfig, quantizer: Any = QUANTIZER
) -> tuple[list[float], float]:
    """Return the seconds of each round of the loop, and the final loss."""
    device, times = problem.inputs.device, []
    model = copy.deepcopy(problem.model).to(device)
    params = torch.from_numpy(problem.initial_params).to(device)
    for k in range(config.num_rounds):
        start = time.perf_counter()
        params = eager_round(model, problem, config, k, params, quantizer)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times, problem.evaluate(params).loss


def fedpaq_run(problem: fedpaq.Problem, config: fedpaq.FedPAQConfig, **options: Any) -> tuple[list[float], Any]:
    """Return the seconds of each round of ``fedpaq.train``, and its history."""
    ends: list[float] = []
    history = fedpaq.train(
        problem, config, quantizer=options.pop("quantizer", QUANTIZER), evaluate_every=0,
        device=str(problem.inputs.device), callback=lambda record, params: ends.append(time.perf_counter()), **options,
    )  # fmt: skip
    return [stop - start for start, stop in itertools.pairwise(ends[:-1])], history  # the last one evaluates


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if it is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def config_of(r: int, rounds: int, batch: int, step_size: float, **options: Any) -> fedpaq.FedPAQConfig:
    """Return r clients of five local steps."""
    return fedpaq.FedPAQConfig(
        clients_per_round=r, local_steps=5, total_steps=5 * rounds, batch_size=batch, step_size=step_size, **options
    )


def compare(
    problem: fedpaq.Problem, batch: int, step_size: float, r: int = 10, rounds: int = 6, **contenders: Any
) -> dict[str, Any]:
    """Time the loop and fedpaq on the same rounds; contenders are options of ``train`` and of the config."""
    config = config_of(r, rounds, batch, step_size)
    times, loss = eager_run(problem, config)
    base = statistics.median(times[2:] or times)
    found: dict[str, Any] = {"eager": {"seconds": base, "loss": loss}}
    if not problem.inputs.is_cuda:
        found |= agreement(problem, r, batch, step_size)
    print(problem.name, f"r={r} eager {base:.4f}", json.dumps(found), flush=True)
    for name, options in {"auto": {}, **contenders}.items():
        options = dict(options)
        chosen = config_of(r, rounds, batch, step_size, precision=options.pop("precision", "float32"))
        began = time.perf_counter()
        times, history = fedpaq_run(problem, chosen, **options)
        seconds = statistics.median(times[2:] or times)
        found[name] = {
            "seconds": seconds, "times_faster": base / seconds, "executor": history.executor,
            "loss": history.final.loss, "loss_difference": abs(history.final.loss - loss),
            "first_round_seconds": times[0], "whole_run_seconds": time.perf_counter() - began,
        }  # fmt: skip
        print(problem.name, f"r={r}", name, json.dumps(found[name]), flush=True)
    return found


def agreement(problem: fedpaq.Problem, r: int, batch: int, step_size: float) -> dict[str, float]:
    """Return how far losses lie apart without quantization: of the loop, run twice, and of fedpaq.

    On a GPU with the default settings of cuDNN, whose sums have no fixed order, and with a fixed order.
    """
    found: dict[str, float] = {}
    before = torch.backends.cudnn.deterministic
    settings = {"default": False, "fixed order": True} if problem.inputs.is_cuda else {"default": before}
    for (name, fixed), rounds in itertools.product(settings.items(), (1, 3) if problem.inputs.is_cuda else (1,)):
        torch.backends.cudnn.deterministic = fixed
        plain = config_of(r, rounds, batch, step_size)
        loop, again = (eager_run(problem, plain, fedpaq.Identity())[1] for _ in range(2))
        loss = fedpaq_run(problem, plain, quantizer=fedpaq.Identity())[1].final.loss
        found[f"loop_to_itself, {name}, {rounds} rounds"] = abs(loop - again)
        found[f"fedpaq_to_loop, {name}, {rounds} rounds"] = abs(loop - loss)
    torch.backends.cudnn.deterministic = before
    return found


def breakdown(problem: fedpaq.Problem, batch: int, r: int = 10, **options: Any) -> dict[str, float]:
    """Return the seconds of the parts of a round: local work by lanes and layout, upload, mean."""
    config = config_of(r, 1, batch, 1e-3, **options)
    (work, *_) = local_work(problem, [config], 0, problem.initial_params[None], np.arange(r)[None])
    device, found = problem.inputs.device, {}

    def median(function: Callable[[], Any], repeats: int = 5) -> float:
        times = []
        for _ in range(repeats + 2):
            synchronize(device)
            start = time.perf_counter()
            function()
            synchronize(device)
            times.append(time.perf_counter() - start)
        return statistics.median(times[2:])

    for lanes, last in ((1, False), (4, False), (8, False), (1, True), (4, True)):
        if not last or problem.inputs.ndim == 4:
            executor = Captured(lanes=lanes, channels_last=last)
            found[f"lanes={lanes} channels_last={last}"] = median(lambda: executor.local_updates(problem, work))  # noqa: B023
    updates = Captured().local_updates(problem, work)
    for name, quantizer in {"low-precision:1": QUANTIZER, "rotated:0.03": fedpaq.Rotated(bits=0.03)}.items():
        uplink = choose_uplink(quantizer, Mean(), problem)

        def upload() -> Any:
            inbox = uplink.open(1, problem.dimension)  # noqa: B023
            inbox.add(updates, work)
            return inbox

        inbox = upload()
        found[f"upload {name}"] = median(upload)
        found[f"mean {name}"] = median(inbox.finish)
    print(problem.name, options, json.dumps(found), flush=True)
    return found


def stock_problems() -> dict[str, fedpaq.Problem]:
    """Return small problems of stock modules."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(0, 256, (40, 16), generator=generator), torch.arange(40) % 3
    images, sequence = torch.randn(40, 3, 8, 8, generator=generator), torch.randn(40, 7, 4, generator=generator)

    class Last(nn.Module):
        def __init__(self, dropout: float) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTM(4, 6, 2, batch_first=True, dropout=dropout), nn.Linear(6, 3)

        def forward(self, values: Tensor, **others: Any) -> Tensor:
            return self.head(self.cell(values)[0][:, -1])

    def of(model: nn.Module, inputs: Tensor, targets: Tensor = labels, loss: Any = nn.functional.cross_entropy) -> Any:
        return fedpaq.Problem(
            model=model, loss=loss, inputs=inputs, targets=targets, partition=fedpaq.problems.iid(40, 4)
        )

    convolution = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    return {
        "TransformerEncoder": of(ByteTransformer(32, 2, 16), ids, ids.roll(-1, 1), next_byte_loss),
        "TransformerEncoder, dropout": of(ByteTransformer(32, 2, 16, 0.1), ids, ids.roll(-1, 1), next_byte_loss),
        "LSTM, **kwargs": of(Last(0.0), sequence),
        "LSTM, dropout": of(Last(0.3), sequence),
        "BatchNorm2d": of(nn.Sequential(*convolution), images),
        "Dropout": of(nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(0.5), nn.Linear(8, 3)), images),
        "tied, Embedding": of(Gpt2Sized(256, 64, 1, 16), ids, ids.roll(-1, 1), next_byte_loss),
        "class weights": of(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), images, loss=weighted_loss),
    }


def checks() -> dict[str, Any]:
    """Compare the captured executor with the sequential twin, every optimizer, on this device."""
    found = {}
    for name, problem in stock_problems().items():
        placed = problem.to(require_device(DEVICE))
        for optimizer, precision in itertools.product(("sgd", "momentum", "adamw"), ("float32", "bfloat16")):
            config = fedpaq.FedPAQConfig(
                clients_per_round=4, local_steps=6, total_steps=6, batch_size=5, optimizer=optimizer,
                precision=precision, step_size=0.003 if optimizer == "adamw" else 0.1,
            )  # fmt: skip
            (work, *_) = local_work(placed, [config], 0, placed.initial_params[None], np.arange(4)[None])
            twin = Sequential().local_updates(placed, work)
            executor = Captured()
            difference = [float((executor.local_updates(placed, work) - twin).abs().max()) for _ in range(2)]
            lanes = [lane for built in executor._built.values() for lane in built]
            graphs = [graph is not None for lane in lanes for graph in lane._graphs.values()]
            found[f"{name}, {optimizer}, {precision}"] = {
                "difference": max(difference), "of": float(twin.abs().max()), "captured": all(graphs) and bool(graphs)
            }  # fmt: skip
    print(json.dumps({k: v for k, v in found.items() if v["difference"] > 0 or not v["captured"]}), flush=True)
    return found


class OwnNetwork(nn.Module):
    """The paper's network as most people would write it, for images."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of outputs per image."""
        values = images.view(images.size(0), -1)
        for layer in self.layers[:-1]:
            values = nn.functional.relu(layer(values))
        return self.layers[-1](values)


def written_otherwise() -> dict[str, Any]:
    """Time dense networks as fedpaq writes them, and as a subclass for images under a lambda for a loss."""
    found = {}
    logistic = fedpaq.problems.load("mnist-logistic", num_clients=50, seed=0)
    network = relu_network((3072, 29, 29, 29, 29, 10))
    images = image_problem(nn.Sequential(nn.Flatten(), network), "mlp-92k")
    cases = {
        "mnist-logistic": (logistic, logistic.inputs.view(-1, 1, 28, 28)),
        "mlp-92k": (
            fedpaq.Problem(
                model=network, loss=images.loss, inputs=images.inputs.flatten(1), targets=images.targets,
                partition=images.partition,
            ),
            images.inputs,
        ),
    }  # fmt: skip
    for name, (plain, inputs) in cases.items():
        linear = [layer for layer in plain.model.modules() if isinstance(layer, nn.Linear)]
        loss = plain.loss
        own = fedpaq.Problem(
            model=OwnNetwork(linear), loss=lambda outputs, targets: loss(outputs, targets), inputs=inputs,  # noqa: B023
            targets=plain.targets, partition=plain.partition, regularization=plain.regularization,
        )  # fmt: skip
        config = fedpaq.FedPAQConfig(clients_per_round=25, local_steps=5, total_steps=100, step_size=0.02)
        runs = {
            way: functools.partial(fedpaq.train, problem, config, quantizer=QUANTIZER, evaluate_every=0)
            for way, problem in (("plain", plain), ("own", own))
        }
        same = bool((runs["plain"]().params == runs["own"]().params).all())
        times = {way: statistics.median(each) for way, each in alternate(runs).items()}
        found[name] = {**times, "ratio": times["own"] / times["plain"], "same bits": same}
    print(json.dumps(found), flush=True)
    return found


def large(layers: int = 12, **sizes: int) -> dict[str, Any]:
    """Train the GPT-2-sized module with r = 8: seconds per round and peak memory."""
    torch.manual_seed(0)
    model = Gpt2Sized(layers=layers, **sizes)
    vocabulary, length = model.embedding.num_embeddings, min(256, len(model.positions))
    ids = torch.randint(0, vocabulary, (64, length), generator=torch.Generator().manual_seed(0))
    problem = fedpaq.Problem(
        model=model, loss=next_byte_loss, inputs=ids, targets=ids.roll(-1, 1),
        partition=fedpaq.problems.iid(64, 16), name="gpt2-sized",
    ).to(require_device(DEVICE))  # fmt: skip
    found: dict[str, Any] = {"dimension": problem.dimension}
    for text in ("low-precision:1", "rotated:0.03"):
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        config = config_of(8, 4, 4, 1e-3)
        times, history = fedpaq_run(problem, config, quantizer=fedpaq.quantizers.parse(text))
        found[text] = {
            "seconds": min(times), "all": times, "loss": history.final.loss, "executor": history.executor,
            "peak_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else None,
        }  # fmt: skip
    print(json.dumps(found), flush=True)
    return found


def strict(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run without TF32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return section()
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def on(problem: fedpaq.Problem) -> fedpaq.Problem:
    """Return the problem on the device."""
    return problem.to(require_device(DEVICE))


MIXED = {"bfloat16": {"precision": "bfloat16"}}
DEVICE = "cpu"
GPU: dict[str, Callable[[], dict[str, Any]]] = {
    "checks": lambda: strict(checks),
    "resnet breakdown": lambda: breakdown(on(resnet18_problem()), 20),
    "resnet breakdown, bfloat16": lambda: breakdown(on(resnet18_problem()), 20, precision="bfloat16"),
    "transformer breakdown": lambda: breakdown(on(transformer_problem()), 8),
    "transformer breakdown, bfloat16": lambda: breakdown(on(transformer_problem()), 8, precision="bfloat16"),
    "resnet strict": lambda: strict(lambda: compare(on(resnet18_problem()), 20, 0.005)),
    **{
        f"resnet r={r}": lambda r=r: compare(on(resnet18_problem()), 20, 0.005, r, 8 if r < 100 else 4, **MIXED)
        for r in (1, 10, 100)
    },
    **{
        f"transformer r={r}": lambda r=r: compare(on(transformer_problem()), 8, 0.05, r, 8 if r < 100 else 4, **MIXED)
        for r in (1, 10, 100)
    },
    "large": large,
    "resnet agreement": lambda: agreement(on(resnet18_problem()), 10, 20, 0.005),
    "resnet agreement, strict": lambda: strict(lambda: agreement(on(resnet18_problem()), 10, 20, 0.005)),
    "transformer agreement": lambda: agreement(on(transformer_problem()), 10, 8, 0.05),
}
VMAP = {"vmap": {"executor": "vectorised"}}
CPU: dict[str, Callable[[], dict[str, Any]]] = {
    "dense, written otherwise": written_otherwise,
    "small CNN": lambda: compare(image_problem(small_cnn(), "small-cnn"), 20, 0.02, rounds=6, **VMAP),
    "ResNet-8": lambda: compare(image_problem(resnet8(), "resnet8"), 20, 0.02, rounds=4),
    "transformer": lambda: compare(transformer_problem(width=128, layers=5, length=64), 20, 0.05, rounds=4),
}


def main() -> None:
    """Run the sections of the device, print each as it ends, write the results."""
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args()
    DEVICE = options.device
    sections = GPU if DEVICE == "cuda" else CPU
    path = Path(os.environ.get("OUT", RESULTS)) / "models.json"
    written = json.loads(path.read_text()) if path.exists() else {}
    results: dict[str, Any] = {"machine": machine()}
    for section in options.only or sections:
        began = time.perf_counter()
        try:
            results[section] = sections[section]()
        except Exception as error:
            traceback.print_exc()
            results[section] = {"error": f"{type(error).__name__}: {error}"}
        print(f"== {section} ({time.perf_counter() - began:.1f} s)", flush=True)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    if any("error" in found for found in results.values()):
        sys.exit("models.json is left as it is: a section failed")
    if DEVICE == "cuda":
        written |= {"machine": results["machine"], "imports": {"gpu": torch.cuda.get_device_name()}}
    path.write_text(json.dumps({"machine": results["machine"], **written, DEVICE: results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
