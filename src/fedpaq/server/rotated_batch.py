"""RotatedOnDevice: updates rotated, rounded and summed on the GPU, decided about on the host.

    GPU    energies of the blocks of every possible cut      -> host
    host   cut, factors, how many to send (NumPy, as on the CPU) -> GPU
    GPU    rotation, levels, scales; later the inverse, and the sum in client order

Updates for which ``LowPrecision`` may be better are fetched and looked at as on the CPU; so are all of few
coordinates, where it always may.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpaq.clients.work import LocalWork
from fedpaq.errors import NonFiniteUpdateError
from fedpaq.hardware.devices import to_tensor
from fedpaq.kernels import cuda
from fedpaq.quantizers import Message
from fedpaq.quantizers.rotated import Rotated, RotatedMessage, plans
from fedpaq.quantizers.rotated.allocation import body_bits, candidates
from fedpaq.quantizers.rotated.message import zero_message
from fedpaq.quantizers.rotated.rival import CARE, HEADER_BITS, LOOK_RATE, SMALL, better_levels
from fedpaq.quantizers.rotated.rotation import CELL, Blocks
from fedpaq.server.rotated_sizes import payload_bytes

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Usable = npt.NDArray[np.bool_]
CHUNK = 2**29  # rotated coordinates at once: two gigabytes
SUM_BLOCK = 256  # rows of estimates are multiples of this
PLANNED = 512  # updates that a thread plans at a time
THREADS = min(8, os.cpu_count() or 1)
CLOSE = 1 + 1e-9  # what is so near to a decision is decided as on the CPU


@dataclass(frozen=True, eq=False)
class Group:
    """The messages of some jobs of a chunk, all cut alike."""

    jobs: Int64
    rounding: plans.Rounding
    rounded: Any  # ``cuda.rounding.RoundedBlocks``
    scales: Tensor
    signs: Tensor
    shape: Any  # ``cuda.rotation.Shape``
    usable: Tensor

    @property
    def blocks(self) -> Blocks:
        """How they are cut."""
        return self.rounding.blocks


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
        bits = body_bits(self._dimension, quantizer.target_bytes(self._dimension))
        self._cuts = candidates(self._dimension, bits)
        self._chunk = max(1, CHUNK // max(cut.padded for cut in self._cuts))
        if self._dimension <= SMALL:
            for job in range(len(updates)):
                self._quantize_on_host(job)
            return
        best, errors, energies = self._plan(bits)
        for jobs in self._chunks():
            numbers = np.arange(jobs.start, jobs.stop)
            groups = []
            for at, cut in enumerate(self._cuts):
                chosen = numbers[best[jobs] == at]
                if chosen.size:
                    rounding = plans.roundings(cut, energies[at][chosen], errors[chosen], bits)
                    groups.append(self._round(chosen, rounding))
            self._groups.append(groups)

    def add_to(self, total: Tensor, first_job: Tensor) -> None:
        """Add to total (runs, p), in order."""
        width = -(-self._dimension // SUM_BLOCK) * SUM_BLOCK
        for jobs, groups in zip(self._chunks(), self._groups or [[]] * len(self._updates), strict=False):
            rows = jobs.stop - jobs.start
            estimates = torch.empty(rows, width, device=self._device)
            units = torch.ones(rows, 1, dtype=torch.float64, device=self._device)
            for group in groups:
                targets = to_tensor(group.jobs - jobs.start, self._device)
                cuda.load("rotation").rotate_back(
                    group.rounded.levels, torch.arange(len(targets), device=self._device), targets,
                    group.scales, group.signs, group.shape, estimates,
                )  # fmt: skip
                units[targets, 0] = torch.where(group.usable, 1.0, math.nan).double()
            grouped = np.concatenate([group.jobs for group in groups]) if groups else np.zeros(0, np.int64)
            for job in np.setdiff1d(np.arange(jobs.start, jobs.stop), grouped).tolist():
                self._place(job, estimates[job - jobs.start], units[job - jobs.start])
            bounds = (first_job - jobs.start).clamp(0, rows)
            cuda.load("low_precision").add_rows(estimates, units, bounds, total)

    def payload_bytes(self) -> Float64:
        """Return the length of each payload (jobs,)."""
        groups = [group for chunk in self._groups for group in chunk]
        return payload_bytes(groups, self._on_host, self._dimension, len(self._updates))

    def fetch(self) -> tuple[Sequence[Message], Usable]:
        """Return the messages and which of them are usable."""
        nothing = Blocks(self._dimension, 1)
        keys = self._work.keys()
        messages: list[Message] = [
            self._on_host.get(j, zero_message(nothing, keys[j])) for j in range(len(keys))
        ]
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

    def _plan(self, bits: float) -> tuple[Int64, Float64, list[Float64]]:
        """Return each job's cut (-1 if it is not rotated here), expected error, and the energies by cut."""
        energies, totals, magnitudes = self._find_energies()
        norms = np.sqrt(totals)
        with np.errstate(over="ignore"):
            self._finite[:] = np.isfinite(norms.astype(np.float32))
        best, errors = np.full(len(totals), -1), np.zeros(len(totals))
        planned = np.flatnonzero(self._finite & (totals > 0))

        def plan(jobs: Int64) -> None:
            parts = [some[jobs] for some in energies]
            best[jobs], errors[jobs] = plans.best_cuts(self._cuts, parts, totals[jobs], bits)

        with ThreadPoolExecutor(THREADS) as pool:  # NumPy lets other threads run
            list(pool.map(plan, np.array_split(planned, -(-planned.size // PLANNED) or 1)))
        target = self._quantizer.target_bytes(self._dimension)
        concentrations = (magnitudes[planned] / norms[planned]) ** 2
        spare = 8.0 * target - HEADER_BITS
        affordable = spare / (math.log2(max(self._dimension / max(spare, 1.0), 1.0)) + 3)
        close = concentrations < 2 * (1 + CARE * errors[planned]) * affordable * CLOSE
        close &= (concentrations < 0.25 * self._dimension * CLOSE) & (spare > 0)
        close |= 8.0 * target >= LOOK_RATE * self._dimension  # then the host looks at every update
        for job in planned[close]:
            row = self._updates[int(job)].cpu().numpy()
            known = float(norms[job]), float(magnitudes[job]), target, float(errors[job])
            rival = better_levels(row, *known, promised=False)
            if rival is not None:
                self._on_host[int(job)] = rival.quantize(row, key=self._work.keys()[int(job)])
                best[job] = -1
        return best, errors, energies

    def _find_energies(self) -> tuple[list[Float64], Float64, Float64]:
        """Return the energies of the blocks of each cut (jobs, blocks), of each update, and the sums of |x|."""
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
        found = torch.cat([sizes, sums], dim=1).cpu().numpy()
        energies, at = [], 2
        for cut in self._cuts:
            first = 1 if cut.count == 1 else at
            energies.append(np.ascontiguousarray(found[:, first : first + cut.count]))
            at += 0 if cut.count == 1 else cut.count
        return energies, found[:, 1].copy(), found[:, 0].copy()

    def _round(self, jobs: Int64, rounding: plans.Rounding) -> Group:
        """Rotate and round some jobs, all cut alike."""
        rotation, cut = cuda.load("rotation"), rounding.blocks
        shape = rotation.Shape(cut.dimension, cut.count, cut.length, cut.size, cut.turns)
        with np.errstate(divide="ignore"):
            inverses = np.float32(0.5) / rounding.least
        numbers, factors, wanted, least, inverse, energies, mantissa_bits = (
            to_tensor(values, self._device)
            for values in (
                jobs, rounding.factors, rounding.wanted.astype(np.int32), rounding.least, inverses,
                rounding.energies, rounding.mantissa_bits,
            )
        )  # fmt: skip
        seeds, clients = self._seeds[numbers], self._clients[numbers]
        signs = rotation.draw_signs(seeds, self._work.round, clients, shape)
        rotated = rotation.rotate(self._updates, numbers, factors, signs, shape)
        kind = torch.int16 if (rounding.wanted < 0).any() else torch.int8
        most = max(int(rounding.wanted.max()), 0)
        rounded = cuda.load("rounding").round_blocks(rotated, wanted, least, inverse, most, kind)
        scaling = cuda.load("scales")
        scales = scaling.find_scales(
            rounded, energies, factors, mantissa_bits, seeds, self._work.round, clients
        )
        usable = scaling.are_usable(rounded, scales, cut.growth)
        return Group(jobs, rounding, rounded, scales, signs, shape, usable)

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
            group.blocks, levels[row], scales[row], int(group.rounding.mantissa_bits[row]), int(largest[row]),
            int(counts[row]), key,
        )  # fmt: skip
