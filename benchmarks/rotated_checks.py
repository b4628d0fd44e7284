"""What must be equal, to the bit, before ``Rotated`` is timed on a GPU: rotations, levels, sums, payloads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import fedpaq
from fedpaq import codec
from fedpaq.clients.work import LocalWork
from fedpaq.hardware.devices import to_tensor
from fedpaq.kernels import cuda
from fedpaq.quantizers.rotated.rotation import Blocks, rotate_back_numpy, rotate_numpy
from fedpaq.quantizers.rotated.rounding import round_blocks, sum_cells
from fedpaq.server.device_batch import DEVICE_BATCHES
from gpu_checks import require

# (dimension, blocks): three turns and two, one tile and several, ragged ends
SHAPES = [
    (700, 1), (5000, 10), (5000, 3), (9000, 1), (40_000, 2), (92_027, 23), (92_027, 12), (92_027, 6),
    (92_027, 3), (92_027, 2), (92_027, 1), (1_000_003, 1), (1_000_003, 5),
]  # fmt: skip
BATCHES = [(700, 0.5), (5000, 0.05), (9000, 2.0), (92_027, 0.03), (92_027, 0.3), (92_027, 1.0), (300_001, 0.01)]


def awkward(dimension: int) -> Any:
    """Return updates (9, p): Gaussian, one-hot, constant, zero, uneven, tiny, huge, NaN, heavy-tailed."""
    rows = np.random.default_rng(0).standard_normal((9, dimension)).astype(np.float32)
    rows[1], rows[2], rows[3] = 0.0, 1.0, 0.0
    rows[1, dimension // 3] = 2.5
    rows[4] *= np.exp(3 * np.linspace(0, 1, dimension)).astype(np.float32)
    rows[5] *= np.float32(1e-20)
    rows[6] *= np.float32(1e30)
    rows[7, 17] = np.nan
    rows[8] = np.sign(rows[8]) * np.abs(rows[8]) ** 7
    return rows


def work_of(jobs: int) -> LocalWork:
    """Return the keys of some jobs in three runs."""
    run_of = np.arange(jobs) * 3 // jobs
    seeds = np.arange(jobs, dtype=np.uint64) + np.uint64(2**63)
    nothing = np.zeros(0, np.float32)
    return LocalWork(nothing, run_of, np.arange(jobs) * 7, seeds, nothing, nothing, 4)


def check_shape(device: torch.device, dimension: int, count: int, tiling: Any) -> None:
    """Compare cells, rotation, levels, products and the way back of one shape with the twins."""
    rotation, rounding = cuda.load("rotation"), cuda.load("rounding")
    blocks, rng = Blocks(dimension, count), np.random.default_rng(1)
    shape = rotation.Shape(dimension, blocks.count, blocks.length, blocks.size, blocks.turns)
    rows, work = awkward(dimension)[:5], work_of(5)
    keys = list(work.keys())
    factors = np.ldexp(np.float32(1), rng.integers(-3, 3, (5, count))).astype(np.float32)
    place = lambda values: to_tensor(values, device)
    signs = rotation.draw_signs(place(work.seeds), work.round, place(work.clients), shape)
    updates, numbers = place(rows), torch.arange(5, device=device)
    rotated = rotation.rotate(updates, numbers, place(factors), signs, shape, tiling)
    here = rotated.cpu().numpy()
    wanted = rng.integers(1, max(blocks.size // 20, 2), (5, count))
    wanted[3], wanted[4] = 0, -1
    least = np.zeros((5, count), np.float32)
    for job in range(5):
        twin_rotated = rotate_numpy(rows[job], blocks, factors[job], keys[job])
        require(here[job].view(np.uint32), twin_rotated.view(np.uint32), f"rotated values of {blocks}")
        for block, k in enumerate(wanted[job]):
            sizes = np.abs(here[job, block])
            often = 0.7 * sizes.std() if block % 2 == 0 else 1.5 * sizes.max()  # the latter rounds all to zero
            least[job, block] = 0.85 * np.sort(sizes)[blocks.size - k] if k > 0 else often
    least[0, 0] *= 3.0  # a guess that is too high
    least[1, 0] = 0.0  # one that leaves out none
    least[3] = 1.0
    inverses = np.float32(0.5) / np.maximum(least, np.float32(1e-30))
    rounded = rounding.round_blocks(
        rotated, place(wanted.astype(np.int32)), place(least), place(inverses), int(wanted.max()), torch.int16
    )
    scales, levels = rng.random((5, count)), rounded.levels.cpu().numpy()
    estimates = torch.zeros(6, dimension, device=device)
    targets = torch.tensor([5, 0, 2, 1], device=device)
    sources = torch.tensor([4, 0, 2, 1], device=device)
    rotation.rotate_back(rounded.levels, sources, targets, place(scales), signs, shape, estimates, tiling)
    squares, magnitudes = rounding.sum_cells(updates)
    for job in range(5):
        twin = round_blocks(here[job], wanted[job], least[job])
        require(levels[job].ravel(), twin.levels, f"levels of {blocks}, job {job}")
        require(rounded.products[job].cpu().numpy(), twin.products, f"products of {blocks}, job {job}")
        require(rounded.counts[job].cpu().numpy(), twin.counts, "non-zeros")
        require(squares[job].cpu().numpy(), sum_cells(rows[job])[0], "sums of squares")
        require(magnitudes[job].cpu().numpy(), sum_cells(rows[job])[1], "sums of magnitudes")
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        twin_back = rotate_back_numpy(levels[source], blocks, scales[source], keys[source])
        require(estimates[target].cpu().numpy().view(np.uint32), twin_back.view(np.uint32), f"way back of {blocks}")


def check_batch(device: torch.device, dimension: int, bits: float, blocks: int | None = None) -> dict[str, Any]:
    """Compare messages, payloads and sums of awkward updates with the CPU's."""
    quantizer, rows, work = fedpaq.Rotated(bits=bits, blocks=blocks), awkward(dimension), work_of(9)
    batch = DEVICE_BATCHES[fedpaq.Rotated](quantizer, to_tensor(rows, device), work)
    total = torch.zeros(3, dimension, dtype=torch.float64, device=device)
    batch.add_to(total, to_tensor(np.searchsorted(work.run_of, np.arange(4)), device))
    messages, usable = batch.fetch()
    sizes, expected, kinds = batch.payload_bytes(), np.zeros((3, dimension)), []
    for job, key in enumerate(work.keys()):
        try:
            message = quantizer.quantize(rows[job], key=key)
        except fedpaq.NonFiniteUpdateError:
            require(bool(usable[job]), False, f"whether job {job} is usable")
            expected[work.run_of[job]] = np.nan
            kinds.append("not finite")
            continue
        require(bool(usable[job]), True, f"whether job {job} is usable")
        if message != messages[job]:
            raise AssertionError(f"the message of job {job} at {bits} bits differs: {message} {messages[job]}")
        payload = codec.encode(message)
        if payload != codec.encode(messages[job]):
            raise AssertionError(f"the payload of job {job} at {bits} bits differs")
        if abs(sizes[job] - len(payload)) > 0.03 * len(payload) + 2:
            raise AssertionError(f"job {job}: {sizes[job]} bytes estimated, {len(payload)} encoded")
        kinds.append(getattr(getattr(message, "blocks", None), "count", "low precision"))
        message.add_to(expected[work.run_of[job]])
    if not np.array_equal(total.cpu().numpy(), expected, equal_nan=True):
        raise AssertionError(f"sums differ from the CPU's by {np.nanmax(np.abs(total.cpu().numpy() - expected))}")
    return {"blocks": kinds}
