"""RotatedOnDevice: updates rotated, rounded and summed on the GPU, decided about on the host.

    GPU    energies of the blocks of every possible cut      -> host
    host   cut, factors, how many to send (as on the CPU)     -> GPU
    GPU    rotation, levels, scales; some messages            -> host
    GPU    the inverse, and the sum in client order; meanwhile the host encodes these messages, to know sizes

Each arrow is a copy or two: a copy waits for all that the GPU has been told to do. Updates for which
``LowPrecision`` may be better are fetched and looked at as on the CPU; so are all of few coordinates, where it
always may.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedpaq.arrays import Bools, Float64, Int32, Int64
from fedpaq.clients.work import LocalWork
from fedpaq.errors import NonFiniteUpdateError
from fedpaq.hardware.devices import to_tensor
from fedpaq.kernels import cuda
from fedpaq.quantizers import Message
from fedpaq.quantizers.rotated import Rotated, RotatedMessage, plans
from fedpaq.quantizers.rotated.allocation import body_bits, candidates
from fedpaq.quantizers.rotated.decisions import Decisions, decide, parts_of
from fedpaq.quantizers.rotated.message import zero_message
from fedpaq.quantizers.rotated.rival import (
    CARE,
    HEADER_BITS,
    LARGE,
    LOOK_RATE,
    SMALL,
    better_levels,
    part_may_win,
    part_of,
)
from fedpaq.quantizers.rotated.rotation import CELL, Blocks
from fedpaq.server.rotated_sizes import Sample, payload_bytes, take_samples

CHUNK = 2**29  # rotated coordinates at once: two gigabytes
SUM_BLOCK = 256  # rows of estimates are multiples of this
FETCHED = 64  # updates that are fetched at a time to be looked at
CLOSE = 1 + 1e-9  # what is so near to a decision is decided as on the CPU


@dataclass(frozen=True, eq=False)
class Group:
    """The messages of some jobs of a chunk, all cut alike."""

    jobs: Int64
    numbers: Tensor  # the jobs, on the device
    blocks: Blocks  # how they are cut
    wanted: Int32  # non-zeros of each block, about; -1 for many
    mantissa_bits: Int64
    rounded: Any  # ``cuda.rounding.RoundedBlocks``
    scales: Tensor
    signs: Tensor
    shape: Any  # ``cuda.rotation.Shape``
    usable: Tensor


class RotatedOnDevice:
    """Levels of ``Rotated(bits=...)``; payload sizes are estimated from some of them."""

    size_source: ClassVar[str] = "estimated"

    def __init__(self, quantizer: Rotated, updates: Tensor, work: LocalWork) -> None:
        self._quantizer, self._updates, self._work = quantizer, updates, work
        self._dimension, self._device = updates.shape[1], updates.device
        self._seeds, self._clients = (to_tensor(values, self._device) for values in (work.seeds, work.clients))
        self._on_host: dict[int, Message] = {}
        self._finite = np.ones(len(updates), np.bool_)
        self._groups: list[list[Group]] = []  # of each chunk
        self._samples: list[Sample] | None = None
        bits = body_bits(self._dimension, quantizer.target_bytes(self._dimension))
        self._cuts = candidates(self._dimension, bits, quantizer.blocks)
        self._chunk = max(1, CHUNK // max(cut.padded for cut in self._cuts))
        self._cut_of = np.full(len(updates), -1)  # -1 for what is in no group
        if self._dimension <= SMALL:
            for job in range(len(updates)):
                self._quantize_on_host(job)
            self._groups = [[] for _ in self._chunks()]
            return
        energies, firsts, found = self._plan(bits)
        self._round_chunks(energies, firsts, found)

    def add_to(self, total: Tensor, first_job: Tensor) -> None:
        """Add to total (runs, p), in order."""
        self._sample()  # before the GPU is busy with the sum
        width = -(-self._dimension // SUM_BLOCK) * SUM_BLOCK
        for jobs, groups in zip(self._chunks(), self._groups, strict=True):
            rows = jobs.stop - jobs.start
            estimates = torch.empty(rows, width, device=self._device, dtype=torch.float32)
            units = torch.ones(rows, 1, dtype=torch.float64, device=self._device)
            for group in groups:
                targets = group.numbers - jobs.start
                cuda.load("rotation").rotate_back(
                    group.rounded.levels, torch.arange(len(targets), device=self._device), targets,
                    group.scales, group.signs, group.shape, estimates,
                )  # fmt: skip
                units[targets, 0] = torch.where(group.usable, 1.0, math.nan).double()
            for row in np.flatnonzero(self._cut_of[jobs] < 0).tolist():
                self._place(jobs.start + row, estimates[row], units[row])
            bounds = (first_job - jobs.start).clamp(0, rows)
            cuda.load("low_precision").add_rows(estimates, units, bounds, total)

    def payload_bytes(self) -> Float64:
        """Return the length of each payload (jobs,)."""
        return payload_bytes(self._sample(), self._on_host, self._dimension, len(self._updates))

    def fetch(self) -> tuple[Sequence[Message], Bools]:
        """Return the messages and which of them are usable."""
        nothing = Blocks(self._dimension, 1)
        keys = self._work.keys()
        messages: list[Message] = [self._on_host.get(j, zero_message(nothing, keys[j])) for j in range(len(keys))]
        usable = self._finite.copy()
        for group in (group for chunk in self._groups for group in chunk):
            usable[group.jobs] = group.usable.cpu().numpy()
            for row, message in enumerate(messages_of(group, [keys[int(job)] for job in group.jobs])):
                if usable[group.jobs[row]]:
                    messages[group.jobs[row]] = message
        return messages, usable

    def _chunks(self) -> Iterator[slice]:
        for start in range(0, len(self._updates), self._chunk):
            yield slice(start, min(start + self._chunk, len(self._updates)))

    def _sample(self) -> list[Sample]:
        """Fetch, once, what says how long the payloads are."""
        if self._samples is None:
            self._samples = take_samples([group for chunk in self._groups for group in chunk])
        return self._samples

    def _plan(self, bits: float) -> tuple[Tensor, list[int], Decisions]:
        """Decide about all jobs; return the energies on the device, where each cut's begin, and decisions."""
        sums, firsts = self._find_energies()
        found = sums.cpu().numpy()
        magnitudes, totals = found[:, 0], found[:, 1].copy()
        norms = np.sqrt(totals)
        with np.errstate(over="ignore"):
            self._finite[:] = np.isfinite(norms.astype(np.float32))
        rotated = self._finite & (totals > 0)
        found[~rotated], totals[~rotated] = 1.0, 1.0  # decided about like any other, and not used
        decisions = decide(self._cuts, found, firsts, totals, bits)
        self._cut_of[rotated] = decisions.best[rotated]
        target = self._quantizer.target_bytes(self._dimension)
        concentrations = np.full(len(norms), np.inf)
        concentrations[rotated] = (magnitudes[rotated] / norms[rotated]) ** 2
        spare = 8.0 * target - HEADER_BITS
        affordable = spare / (math.log2(max(self._dimension / max(spare, 1.0), 1.0)) + 3)
        close = concentrations < 2 * (1 + CARE * decisions.errors) * affordable * CLOSE
        close &= (concentrations < 0.25 * self._dimension * CLOSE) & (spare > 0)
        if 8.0 * target >= LOOK_RATE * self._dimension:
            close = rotated  # at such rates the host looks at every update
        for start in range(0, int(close.sum()), FETCHED):
            some = np.flatnonzero(close)[start : start + FETCHED]
            parts = parts_of(found, some, self._cuts, firsts)
            errors = plans.best_cuts(self._cuts, parts, totals[some], bits)[1]  # to the last bit
            some, errors = self._worth_fetching(some, norms[some], errors, target)
            rows = self._updates[some.tolist()].cpu().numpy()
            for job, row, error in zip(some.tolist(), rows, errors, strict=True):
                known = float(norms[job]), float(magnitudes[job]), target, float(error)
                rival = better_levels(row, *known, promised=False)
                if rival is not None:
                    self._on_host[job] = rival.quantize(row, key=self._work.keys()[job])
                    self._cut_of[job] = -1
        return sums, firsts, decisions

    def _worth_fetching(self, jobs: Int64, norms: Float64, errors: Float64, target: int) -> tuple[Int64, Float64]:
        """Return the jobs whose whole update must be looked at, and their errors: of large ones a part says so."""
        if self._dimension < LARGE or not jobs.size:
            return jobs, errors
        index = to_tensor(part_of(self._dimension), self._device)
        parts = self._updates[to_tensor(jobs, self._device)[:, None], index].cpu().numpy()
        known = zip(parts, norms.tolist(), errors.tolist(), strict=True)
        worth = np.array(
            [part_may_win(part, self._dimension, norm, 8.0 * target, CARE * error) for part, norm, error in known]
        )
        return jobs[worth], errors[worth]

    def _find_energies(self) -> tuple[Tensor, list[int]]:
        """Return a table (jobs, columns) and the columns where the energies of each cut's blocks begin.

        The first columns are the sum of |x| and the energy of the whole update.
        """
        squares, magnitudes = cuda.load("rounding").sum_cells(self._updates)
        cells = squares.shape[1]
        whole = (0, cells, False)
        stretches = [whole]
        for cut in self._cuts:
            starts = [block * (cut.length // CELL) for block in range(cut.count)] if cut.count > 1 else []
            stretches += [(a, b, True) for a, b in zip(starts, [*starts[1:], cells], strict=bool(starts))]
        trees = cuda.load("pairwise")
        sums = trees.stretches(tuple(stretches), self._device).sums(squares)
        sizes = trees.stretches((whole,), self._device).sums(magnitudes)
        firsts, at = [], 2
        for cut in self._cuts:
            firsts.append(1 if cut.count == 1 else at)
            at += 0 if cut.count == 1 else cut.count
        return torch.cat([sizes, sums], dim=1), firsts

    def _round_chunks(self, energies: Tensor, firsts: Sequence[int], found: Decisions) -> None:
        """Rotate and round all jobs that are; what was decided travels in two copies."""
        with np.errstate(divide="ignore"):
            inverses = np.float32(0.5) / found.least
        packed = np.stack([found.factors, found.wanted.view(np.float32), found.least, inverses])
        chosen = [
            [(at, jobs.start + np.flatnonzero(self._cut_of[jobs] == at)) for at in range(len(self._cuts))]
            for jobs in self._chunks()
        ]
        order = np.concatenate([jobs for chunk in chosen for _, jobs in chunk])
        table = to_tensor(packed, self._device)
        numbers = to_tensor(np.stack([order, found.mantissa_bits[order]]), self._device)
        done = 0
        for chunk in chosen:
            groups = []
            for at, jobs in chunk:
                if jobs.size:
                    here, done = numbers[:, done : done + len(jobs)].contiguous(), done + len(jobs)
                    cut, first = self._cuts[at], firsts[at]
                    # Tensors of their own: Triton compiles again for addresses that are not multiples of 16.
                    parts = [part[here[0], : cut.count].contiguous() for part in table]
                    energy = energies[here[0], first : first + cut.count].contiguous()
                    groups.append(self._round(jobs, here, cut, found, parts, energy))
            self._groups.append(groups)

    def _round(
        self, jobs: Int64, numbers: Tensor, cut: Blocks, found: Decisions, parts: Sequence[Tensor], energies: Tensor
    ) -> Group:
        """Rotate and round some jobs, all cut alike; nothing here waits for the GPU."""
        rotation, scaling = cuda.load("rotation"), cuda.load("scales")
        shape = rotation.Shape(cut.dimension, cut.count, cut.length, cut.size, cut.turns)
        rows, mantissa_bits = numbers
        factors, bits, least, inverses = parts
        wanted = found.wanted[jobs, : cut.count]
        seeds, clients = self._seeds[rows], self._clients[rows]
        signs = rotation.draw_signs(seeds, self._work.round, clients, shape)
        rotated = rotation.rotate(self._updates, rows, factors, signs, shape)
        kind = torch.int16 if (wanted < 0).any() else torch.int8
        rounded = cuda.load("rounding").round_blocks(
            rotated, bits.view(torch.int32), least, inverses, max(int(wanted.max()), 0), kind
        )
        scales = scaling.find_scales(rounded, energies, factors, mantissa_bits, seeds, self._work.round, clients)
        usable = scaling.are_usable(rounded, scales, cut.growth)
        return Group(jobs, rows, cut, wanted, found.mantissa_bits[jobs], rounded, scales, signs, shape, usable)

    def _quantize_on_host(self, job: int) -> None:
        row = self._updates[job].cpu().numpy()
        try:
            self._on_host[job] = self._quantizer.quantize(row, key=self._work.keys()[job])
        except NonFiniteUpdateError:
            self._finite[job] = False

    def _place(self, job: int, estimate: Tensor, unit: Tensor) -> None:
        """Write what a job that is in no group adds: estimate times unit."""
        if job in self._on_host:
            message = self._on_host[job]
            rotated = isinstance(message, RotatedMessage)
            values = message.dequantize() if rotated else message.signed_levels.astype(np.float32)  # type: ignore[attr-defined]
            estimate[: self._dimension] = to_tensor(values, self._device)
            unit[0] = 1.0 if rotated else float(message.units()[0])  # type: ignore[attr-defined]
        elif not self._finite[job]:
            unit[0] = math.nan
        else:
            estimate.zero_()


def messages_of(group: Group, keys: Sequence[Any]) -> Iterator[RotatedMessage]:
    """Yield the messages of a group, which has a key for each."""
    levels = group.rounded.levels.cpu().numpy().astype(np.int16).reshape(len(keys), -1)
    levels.flags.writeable = False
    scales = group.scales.cpu().numpy()
    counts = group.rounded.counts.sum(1).cpu().numpy()
    largest = group.rounded.largest.amax(1).cpu().numpy()
    for row, key in enumerate(keys):
        yield RotatedMessage(
            group.blocks, levels[row], scales[row], int(group.mantissa_bits[row]), int(largest[row]),
            int(counts[row]), key,
        )  # fmt: skip
