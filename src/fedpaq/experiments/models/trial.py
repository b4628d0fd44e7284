"""Trial: one tuning of a step size, or one run. Each is a file, named by the hash of all that it depends on.

Tuning, the same rule for every quantizer: three peaks of the step size, a factor 2 apart, on a seed that no run has
and fewer rounds; while the best lies at an end, the next one outwards is tried. The best has the lowest
training loss after its last round, on 2,000 samples. Arms that differ only in their downloads share it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpaq import __version__
from fedpaq.algorithm import sweep
from fedpaq.clients import Captured
from fedpaq.config import round_to_4_digits
from fedpaq.experiments.models.arms import Arm
from fedpaq.experiments.models.tasks import TUNING_SEED, Loaded, Task

FORMAT = "fedpaq-trial-1"
POINTS = 15  # evaluations on the test samples, about, after the one before the first round
WIDEST = 8  # step sizes that a grid may be widened by

Result = dict[str, Any]


@dataclass(frozen=True)
class Tuning:
    """Find the step size of a quantizer."""

    task: Task
    arm: Arm

    @property
    def cost(self) -> int:
        """Rounds, about."""
        return (len(self.task.step_sizes) + 1) * self.task.tuning_rounds

    @property
    def values(self) -> dict[str, Any]:
        """All that it depends on."""
        return {"what": "tuning", "quantizer": self.arm.quantizer, "first": self.task.step_sizes, **self.task.values}

    def path(self, folder: Path) -> Path:
        """Return where its result is, or will be."""
        return folder / self.task.name / f"tuning-{self.arm.slug}-{key_of(self.values)}.json"

    def perform(self, bench: Bench) -> Result:
        """Return the losses by step size, None for one that diverged, and the best."""
        losses: dict[float, float | None] = {}
        wanted: Sequence[float] = self.task.step_sizes
        while wanted:
            losses |= self._tried(bench, wanted)
            wanted = outwards(losses) if len(losses) < len(self.task.step_sizes) + WIDEST else ()
        tried = [{"step_size": eta, "loss": losses[eta]} for eta in sorted(losses)]
        return {"step_size": best(losses), "tried": tried}

    def _tried(self, bench: Bench, step_sizes: Sequence[float]) -> dict[float, float | None]:
        task = self.task
        configs = [task.config(eta, TUNING_SEED, task.tuning_rounds) for eta in step_sizes]
        problem = bench.loaded(task).sampled
        histories = sweep(
            problem, configs, quantizer=self.arm.quantizer, executor=bench.executor, evaluate_every=0,
            device=bench.device,
        )  # fmt: skip
        return {
            eta: None if history.diverged is not None else history.final.loss
            for eta, history in zip(step_sizes, histories, strict=True)
        }


@dataclass(frozen=True)
class Run:
    """Train one arm on one seed, with its step size."""

    task: Task
    arm: Arm
    seed: int
    step_size: float

    @property
    def cost(self) -> int:
        """Rounds."""
        return self.task.rounds

    @property
    def values(self) -> dict[str, Any]:
        """All that it depends on."""
        own = {"quantizer": self.arm.quantizer, "downlink": self.arm.downlink, "step_size": self.step_size}
        return {"what": "run", "seed": self.seed, **own, **self.task.values}

    def path(self, folder: Path) -> Path:
        """Return where its result is, or will be."""
        return folder / self.task.name / f"{self.arm.slug}-seed{self.seed}-{key_of(self.values)}.json"

    def perform(self, bench: Bench) -> Result:
        """Return the measure and the bytes after some rounds, and the training loss after the last."""
        task, loaded, start = self.task, bench.loaded(self.task), time.perf_counter()
        (history,) = sweep(
            loaded.tested, [task.config(self.step_size, self.seed)], quantizer=self.arm.quantizer,
            downlink=self.arm.downlink, executor=bench.executor, evaluate_every=max(1, task.rounds // POINTS),
            device=bench.device,
        )  # fmt: skip
        shown = [record for record in history.records if record.loss is not None]
        diverged = history.diverged is not None
        return {
            "rounds": [record.round for record in shown],
            "measure": [task.measured(record.loss or 0.0, record.accuracy) for record in shown],
            "test_loss": [record.loss for record in shown],
            "payload_bytes": [record.payload_bytes for record in shown],
            "download_bytes": [record.download_bytes for record in shown],
            "training_loss": None if diverged else loaded.problem.evaluate(history.params).loss,
            "payload_size_source": history.payload_size_source,
            "diverged": history.diverged,
            "dimension": history.dimension,
            "num_clients": history.num_clients,
            "source": loaded.source,
            "seconds": time.perf_counter() - start,
        }


Trial = Tuning | Run


@dataclass(eq=False)
class Bench:
    """Where trials are done: a device, and what is kept from one to the next."""

    device: str
    data_dir: Path | None = None
    executor: Captured = field(default_factory=Captured)  # keeps its CUDA graphs
    _loaded: dict[tuple[str, str], Loaded] = field(default_factory=dict)

    def loaded(self, task: Task) -> Loaded:
        """Return the task's problem on the device; only the last is kept."""
        key = task.kind, repr(sorted(task.options.items()))
        if key not in self._loaded:
            self._loaded.clear()
            self.executor = Captured()
            self._loaded[key] = task.load(self.data_dir, self.device)
        return self._loaded[key]


def key_of(values: dict[str, Any]) -> str:
    """Return a hash of what a trial depends on."""
    text = json.dumps([FORMAT, __version__, values], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def to_json(trial: Trial, result: Result) -> str:
    """Return a finished trial as JSON."""
    values = {"format": FORMAT, "version": __version__, "settings": trial.values, **result}
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> Result | None:
    """Return what ``to_json`` wrote, or None if it is damaged."""
    try:
        values: Result = json.loads(text)
        return values if values["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError):
        return None


def best(losses: dict[float, float | None]) -> float:
    """Return the step size of the lowest loss; of equal ones, and where all diverged, the smallest."""
    found = {eta: math.inf if loss is None else loss for eta, loss in losses.items()}
    return min(sorted(found), key=found.__getitem__)


def outwards(losses: dict[float, float | None]) -> tuple[float, ...]:
    """Return the next step size to try, if the best one lies at an end.

    >>> outwards({0.1: 2.0, 0.2: 1.0, 0.4: 3.0}), outwards({0.1: 1.0, 0.2: 2.0}), outwards({0.1: None, 0.2: None})
    ((), (0.05,), (0.05,))
    """
    chosen = best(losses)
    if chosen == min(losses):
        return (round_to_4_digits(chosen / 2),)
    return (round_to_4_digits(chosen * 2),) if chosen == max(losses) else ()
