"""Verdicts: what the runs of a study show against float32 on the same seeds. Criteria were fixed before any run.

Differences are paired by seed; the mean over the seeds decides, and its interval is Student's t at 95 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpaq.arrays import Float64
from fedpaq.experiments.judging import FAILS, HOLDS, half_width
from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN, Arm
from fedpaq.experiments.models.schedule import result_of, tuning_of
from fedpaq.experiments.models.tasks import Task
from fedpaq.experiments.models.trial import Result, Run

POINTS, BITS_PER_BYTE = 0.5, 0.02  # that test accuracy and bits per byte may be worse by
FEWER_UP, FEWER_BOTH_WAYS = 1000, 30  # times
LOSS = 1.01  # that the training loss may be larger by


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it may lie."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Float64) -> Interval:
        """Return that of some values; of a single one nothing is known beyond it."""
        mean, half = float(values.mean()), half_width(values)
        return cls(mean, mean - half, mean + half)

    @property
    def values(self) -> dict[str, float]:
        """The numbers to four digits."""
        return {name: float(f"{getattr(self, name):.4g}") for name in ("mean", "low", "high")}


@dataclass(frozen=True, eq=False)
class Study:
    """The finished arms of a task: those whose seeds are all there."""

    task: Task
    runs: dict[Arm, list[Result]]
    step_sizes: dict[Arm, float]

    @classmethod
    def load(cls, task: Task, folder: Path) -> Study:
        """Return what is in a folder."""
        runs, step_sizes = {}, {}
        for arm in task.arms:
            tuned = result_of(tuning_of(task, arm), folder)
            if tuned is not None:
                found = [result_of(Run(task, arm, seed, tuned["step_size"]), folder) for seed in task.seeds]
                whole = [each for each in found if each is not None]
                if len(whole) == len(found):
                    runs[arm], step_sizes[arm] = whole, tuned["step_size"]
        return cls(task, runs, step_sizes)

    @property
    def is_whole(self) -> bool:
        """Whether every arm is there."""
        return len(self.runs) == len(self.task.arms)

    def column(self, arm: Arm, name: str) -> Float64:
        """Return a list that every run keeps, as an array (seeds, points); a run that diverged ends early."""
        rows = [run[name] for run in self.runs[arm]]
        shortest = min(map(len, rows))
        return np.array([row[:shortest] for row in rows], float)

    def sent(self, arm: Arm, *, both_ways: bool) -> Float64:
        """Return the bytes sent so far by and to all clients, (seeds, points)."""
        up = self.column(arm, "payload_bytes")
        return up + self.column(arm, "download_bytes") if both_ways else up

    def bytes_a_time(self, arm: Arm, *, both_ways: bool) -> float:
        """Return the bytes of one participation: an upload, or an upload and a download; 0 if there was none."""
        names = ("payload_bytes", "download_bytes") if both_ways else ("payload_bytes",)
        sent = sum(run[name][-1] for run in self.runs[arm] for name in names)
        rounds = sum(run["rounds"][-1] for run in self.runs[arm])
        return float(sent / max(rounds * self.task.clients_per_round, 1))

    def fewer(self, arm: Arm, *, both_ways: bool) -> float:
        """Return how many times fewer bytes than float32 an arm sends."""
        dense, own = (self.bytes_a_time(each, both_ways=both_ways) for each in (FLOAT32, arm))
        return dense / own if own else 0.0

    def final(self, arm: Arm) -> Float64:
        """Return the measure after the last round, (seeds,)."""
        return np.array([run["measure"][-1] for run in self.runs[arm]])

    def diverged(self, arm: Arm) -> bool:
        """Tell whether one of its runs did not end: then it has no mean."""
        return any(run["diverged"] for run in self.runs[arm])

    def behind(self, arm: Arm) -> Interval:
        """Return how much worse than float32 an arm ends: points, or bits per byte."""
        difference = self.final(FLOAT32) - self.final(arm)
        return Interval.of(difference if self.task.is_accuracy else -difference)

    def training_losses(self, arm: Arm) -> Float64:
        """Return the training loss after the last round, (seeds,)."""
        return np.array([run["training_loss"] for run in self.runs[arm]])

    @property
    def allowed(self) -> float:
        """By how much an arm may be worse."""
        return POINTS if self.task.is_accuracy else BITS_PER_BYTE

    @property
    def unit(self) -> str:
        """Of ``behind``."""
        return "points" if self.task.is_accuracy else "bits per byte"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every finished arm, float32 first."""
        return [self._row(arm) for arm in self.task.arms if arm in self.runs] if FLOAT32 in self.runs else []

    def summary(self) -> dict[str, Any]:
        """Return all that is shown of it."""
        names = ("name", "title", "measure", "rounds", "clients_per_round", "local_steps", "batch_size", "optimizer")
        first = self.runs[FLOAT32][0]
        return {
            **{name: getattr(self.task, name) for name in (*names, "precision")},
            **{name: first[name] for name in ("dimension", "num_clients", "source")},
            "seeds": len(self.task.seeds),
            "is_whole": self.is_whole,
            "unit": self.unit,
            "rows": self.rows(),
            "verdicts": judge_study(self),
        }

    def _row(self, arm: Arm) -> dict[str, Any]:
        diverged = self.diverged(arm)
        return {
            "arm": arm.label,
            "quantizer": arm.quantizer,
            "downlink": arm.downlink,
            "step_size": self.step_sizes[arm],
            "bytes_per_upload": round(self.bytes_a_time(arm, both_ways=False)),
            "bytes_both_ways": round(self.bytes_a_time(arm, both_ways=True)),
            "times_fewer_up": float(f"{self.fewer(arm, both_ways=False):.4g}"),
            "times_fewer_both_ways": float(f"{self.fewer(arm, both_ways=True):.4g}"),
            "measure": None if diverged else float(f"{self.final(arm).mean():.5g}"),
            "behind_float32": None if diverged else self.behind(arm).values,
            "training_loss": None if diverged else float(f"{self.training_losses(arm).mean():.5g}"),
        }


def behind(study: Study, arm: Arm) -> tuple[Interval, float]:
    """Return how far an arm is behind float32, and how far it may be."""
    return study.behind(arm), study.allowed


def loss_ratio(study: Study, arm: Arm) -> tuple[Interval, float]:
    """Return the ratio of an arm's training losses to float32's, and what it may be."""
    return Interval.of(study.training_losses(arm) / study.training_losses(FLOAT32)), LOSS


@dataclass(frozen=True)
class ModelClaim:
    """What should hold of one arm: a number is at most its limit."""

    name: str
    sentence: str
    arm: Arm
    find: Callable[[Study, Arm], tuple[Interval, float]]


CLAIMS = (
    ModelClaim(
        "float32-quality-1000-times-fewer-bytes-up",
        f"With {FEWER_UP:,} times fewer bytes up (Rotated, 0.03 bits) a model is at most {POINTS:g} points, or "
        f"{BITS_PER_BYTE:g} bits per byte, behind float32.",
        PLAIN[5],
        behind,
    ),
    ModelClaim(
        "float32-quality-30-times-fewer-bytes-both-ways",
        f"The same with {FEWER_BOTH_WAYS} times fewer bytes both ways (0.03 bits up, 0.2 down).",
        CODED[2],
        behind,
    ),
    ModelClaim(
        "float32-loss-at-the-lowest-rate",
        "At 0.0024 bits (3.3 kB of ResNet-18's 44.7 MB) the training loss is at most 1 % above float32's.",
        PLAIN[3],
        loss_ratio,
    ),
)


def judge_study(study: Study) -> list[dict[str, Any]]:
    """Return one entry per claim whose arm and float32 are finished."""
    entries = []
    for claim in CLAIMS:
        arms = (FLOAT32, claim.arm)
        if all(arm in study.runs for arm in arms):
            holds, numbers = False, []
            if not any(map(study.diverged, arms)):
                interval, limit = claim.find(study, claim.arm)
                holds = interval.mean <= limit and saves_enough(study, claim.arm)
                numbers = [{"arm": claim.arm.label, **interval.values, "limit": limit}]
            entries.append(
                {
                    "claim": claim.name, "sentence": claim.sentence,
                    "verdict": HOLDS if holds else FAILS, "numbers": numbers,
                }
            )  # fmt: skip
    return entries


def saves_enough(study: Study, arm: Arm) -> bool:
    """Tell whether an arm sends as few bytes as the claims say."""
    both_ways = arm.downlink is not None
    return study.fewer(arm, both_ways=both_ways) >= (FEWER_BOTH_WAYS if both_ways else FEWER_UP)
