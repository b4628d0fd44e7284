"""What the host does for rotated updates on a GPU, with the kernels' twins in place of the GPU."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedpaq
from fedpaq import codec
from fedpaq.kernels import cuda
from fedpaq.quantizers.rotated import rounding as twin
from fedpaq.quantizers.rotated.message import round_scales
from fedpaq.quantizers.rotated.rotation import Blocks, rotate_back_numpy, rotate_numpy
from fedpaq.server import rotated_batch
from fedpaq.server.rotated_batch import RotatedOnDevice
from repository import ROOT


@dataclass(frozen=True)
class Shape:
    dimension: int
    count: int
    length: int
    size: int
    turns: int

    @property
    def blocks(self):
        return Blocks(self.dimension, self.count)


def keys_of(seeds, round, clients):
    pairs = zip(seeds.tolist(), clients.tolist(), strict=True)
    return [fedpaq.Key(seed=seed % 2**64, round=round, client=client) for seed, client in pairs]


def rotate(updates, jobs, factors, keys, shape):
    rows = updates[jobs].numpy()
    return torch.tensor(
        np.stack([rotate_numpy(row, shape.blocks, f.numpy(), k) for row, f, k in zip(rows, factors, keys, strict=True)])
    )


def rotate_back(levels, rows, targets, scales, keys, shape, estimates):
    for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
        signed = levels[row].numpy().astype(np.int16).ravel()
        found = rotate_back_numpy(signed, shape.blocks, scales[row].numpy(), keys[row])
        estimates[target, : shape.dimension] = torch.tensor(found)


def sum_cells(updates):
    with np.errstate(invalid="ignore"):
        found = [twin.sum_cells(row) for row in updates.numpy()]
    return tuple(torch.tensor(np.stack(part)) for part in zip(*found, strict=True))


def round_blocks(rotated, wanted, guesses, inverses, most_wanted, kind):
    assert not (wanted > most_wanted).any() and torch.equal(inverses, 0.5 / guesses)
    found = [
        twin.round_blocks(one.numpy(), w.long().numpy(), g.numpy())
        for one, w, g in zip(rotated, wanted, guesses, strict=True)
    ]
    levels = torch.tensor(np.stack([one.levels for one in found])).reshape(rotated.shape).to(kind)
    products, counts, largest = (
        torch.tensor(np.stack([getattr(one, name) for one in found])) for name in ("products", "counts", "largest")
    )
    magnitudes = levels.long().abs().sum(2)
    return SimpleNamespace(
        levels=levels, products=products, counts=counts.int(), magnitudes=magnitudes, largest=largest.int()
    )


def find_scales(rounded, energies, factors, mantissa_bits, seeds, round, clients):
    scales = []
    for job, key in enumerate(keys_of(seeds, round, clients)):
        sent = (rounded.counts[job] > 0).numpy()
        exact = np.divide(
            (energies[job] * factors[job]).numpy(), rounded.products[job].numpy(), out=np.zeros(sent.size), where=sent
        )
        scales.append(np.where(sent, round_scales(exact, int(mantissa_bits[job]), key), 0.0))
    return torch.tensor(np.stack(scales))


def are_usable(rounded, scales, growth):
    norms = rounded.largest.amax(1).double() * rounded.counts.sum(1).double().sqrt()
    return scales.amax(1) * growth * norms <= torch.finfo(torch.float32).max


def stretches(cuts, device):
    def sums(values):
        rows = values.numpy()
        found = [
            [np.add.reduceat(row[:b], [a])[0] if apart else row[a:b].sum() for a, b, apart in cuts] for row in rows
        ]
        return torch.tensor(np.array(found))

    return SimpleNamespace(sums=sums)


def add_rows(rows, units, first_job, total):
    for run in range(len(total)):
        for job in range(int(first_job[run]), int(first_job[run + 1])):
            total[run] += rows[job, : total.shape[1]].double() * units[job]


KERNELS = {
    "rotation": SimpleNamespace(
        Shape=Shape, draw_signs=lambda *given: keys_of(*given[:3]), rotate=rotate, rotate_back=rotate_back
    ),
    "rounding": SimpleNamespace(sum_cells=sum_cells, round_blocks=round_blocks),
    "scales": SimpleNamespace(find_scales=find_scales, are_usable=are_usable),
    "pairwise": SimpleNamespace(stretches=stretches),
    "low_precision": SimpleNamespace(add_rows=add_rows),
}  # fmt: skip


@pytest.fixture(autouse=True)
def twins(monkeypatch):
    monkeypatch.setattr(cuda, "load", KERNELS.__getitem__)


@pytest.fixture
def rotated_checks(monkeypatch):
    """The module benchmarks/rotated_checks.py."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import rotated_checks

    return rotated_checks


@pytest.mark.parametrize("chunk", [2**29, 2**15])
@pytest.mark.parametrize(("dimension", "bits"), [(700, 0.5), (5000, 0.05), (9000, 2.0), (9000, 0.3)])
def test_messages_and_sums_are_those_of_the_host(rotated_checks, monkeypatch, dimension, bits, chunk):
    monkeypatch.setattr(rotated_batch, "CHUNK", chunk)
    kinds = rotated_checks.check_batch(torch.device("cpu"), dimension, bits)["blocks"]
    assert "low precision" in kinds and "not finite" in kinds


def test_one_block_is_one_on_the_device_too(rotated_checks):
    kinds = rotated_checks.check_batch(torch.device("cpu"), 9000, 0.3, blocks=1)["blocks"]
    assert {kind for kind in kinds if isinstance(kind, int)} == {1}


def test_sizes_from_a_sample_are_near_those_of_the_encoder(rotated_checks):
    """64 of 200 messages are encoded; the mean of all is then known to half a percent."""
    rng, work = np.random.default_rng(5), rotated_checks.work_of(200)
    spread = np.exp(rng.uniform(0, 3, (200, 1)) * np.linspace(0, 1, 5000))
    rows = (rng.standard_normal((200, 5000)) * spread).astype(np.float32)
    quantizer = fedpaq.Rotated(bits=0.3)
    sizes = RotatedOnDevice(quantizer, torch.tensor(rows), work).payload_bytes()
    pairs = zip(rows, work.keys(), strict=True)
    exact = np.array([len(codec.encode(quantizer.quantize(row, key=key))) for row, key in pairs])
    assert (sizes != exact).any()
    assert abs(sizes.mean() / exact.mean() - 1) < 0.005
    assert np.abs(sizes / exact - 1).max() < 0.05
