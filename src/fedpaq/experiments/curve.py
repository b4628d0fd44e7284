"""Curve: one tuned setting on some seeds. All its axes follow from what each round cost.

A run keeps, per round, the loss, the bytes really uploaded and the seconds of computation. Modelled
time under each count of bits is  computation + bits / bandwidth,  so one run serves them all.
Numbers have six digits, on the disk and in memory: a curve read back is the curve that was run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedpaq import __version__, codec
from fedpaq.arrays import Float64, Int64
from fedpaq.cost_model import CostModel
from fedpaq.errors import ConfigError, unknown_name
from fedpaq.experiments.figures import BATCH_SIZE, NUM_CLIENTS, TOTAL_STEPS, Figure, PaperSetting

FORMAT = "fedpaq-curve-1"
ARRAYS = {"loss": float, "accuracy": float, "payload_bytes": np.int64, "computation_seconds": float}  # of a curve
ACCOUNTINGS = ("payload", "elias", "fixed-width")
AXES = ("seconds", "rounds", "bits")
PROBLEM_SEED = 0  # one partition and one x_0, shared by all curves of a figure
SEEDS = (0, 1, 2, 3, 4)  # of the sixth figure
SEEDS_AT_ONCE, MOST_SEEDS = 10, 160  # of a network's curve: added until its rows are decided
MORE_SEEDS_AT_ONCE, MOST_MORE_SEEDS = 30, 300  # where a run takes milliseconds
TUNING_SEEDS = (100, 101, 102)
MORE_TUNING_SEEDS = tuple(range(100, 110))  # where a run takes milliseconds
COARSE = (4.0**-3, 4.0**-2, 4.0**-1)  # widened where the best lies at an end
FINE = tuple(2.0**power for power in (-1.0, -0.5, 0.5, 1.0))  # around the coarse best


@dataclass(frozen=True)
class CurveSettings:
    """Everything a curve depends on; two equal ones give equal curves."""

    problem: str
    setting: PaperSetting
    seeds: tuple[int, ...] = SEEDS  # all that it may have, in their order
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    coarse_seeds: int = 2  # of the tuning seeds, the first that the coarse grid runs on
    coarse: tuple[float, ...] = COARSE
    fine: tuple[float, ...] = FINE
    tuning_stride: int = 10  # tuning evaluates the loss on every tenth sample
    num_clients: int = NUM_CLIENTS
    total_steps: int = TOTAL_STEPS
    batch_size: int = BATCH_SIZE
    problem_seed: int = PROBLEM_SEED
    version: str = __version__
    seeds_at_once: int | None = None  # None: all of them
    rule: str = "area"  # what the step size minimises; see ``tuning``
    device: str = "cpu"

    @property
    def key(self) -> str:
        """A hash of the settings, for file names."""
        text = json.dumps([FORMAT, self.values], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def values(self) -> dict[str, Any]:
        """The fields as JSON has them; what was added later is left out where it says nothing."""
        later = {"seeds_at_once": None, "rule": "area", "device": "cpu"}
        values = {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}
        return {**values, "setting": self.setting.values}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> CurveSettings:
        """Return the settings that have these ``values``, or had before JSON."""
        plain: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in values.items()}
        return cls(**{**plain, "setting": PaperSetting(**values["setting"])})

    @property
    def first_seeds(self) -> int:
        """How many seeds a curve begins with."""
        return self.seeds_at_once or len(self.seeds)

    @property
    def num_rounds(self) -> int:
        """K = T / tau."""
        return self.total_steps // self.setting.local_steps


def curve_settings(figure: Figure, device: str = "cpu") -> list[CurveSettings]:
    """Return what each curve of the figure depends on; the sixth figure keeps the rule it was fixed with."""
    is_quick = figure.folder == "mnist"
    tuning_seeds = MORE_TUNING_SEEDS if is_quick else TUNING_SEEDS
    common: dict[str, Any] = {"tuning_seeds": tuning_seeds, "device": device}
    if figure.beside is None:
        most, at_once = (MOST_MORE_SEEDS, MORE_SEEDS_AT_ONCE) if is_quick else (MOST_SEEDS, SEEDS_AT_ONCE)
        seeds = tuple(seed for seed in range(most + len(tuning_seeds)) if seed not in tuning_seeds)[:most]
        common |= {"seeds": seeds, "seeds_at_once": at_once, "rule": "steady"}
    return [CurveSettings(figure.problem, setting, **common) for setting in figure.settings]


@dataclass(frozen=True, eq=False)
class Curve:
    """A finished curve; arrays are (seeds, K + 1), entry k after k rounds: of the first seeds of its settings."""

    settings: CurveSettings
    dimension: int
    tuning: dict[float, list[float | None]]  # mean losses of the tuning seeds by step size
    step_size: float
    loss: Float64
    accuracy: Float64
    payload_bytes: Int64
    computation_seconds: Float64

    @property
    def num_seeds(self) -> int:
        """How many seeds were run."""
        return len(self.loss)

    def first(self, seeds: int) -> Curve:
        """Return the curve of its first seeds alone."""
        arrays: dict[str, Any] = {name: getattr(self, name)[:seeds] for name in ARRAYS}
        return replace(self, **arrays)

    @property
    def relative_loss(self) -> Float64:
        """f(x_k) / f(x_0)."""
        return np.asarray(self.loss / self.loss[:, :1])

    def bits(self, accounting: str) -> Float64:
        """Return the bits uploaded so far under ``accounting``: (seeds, K + 1)."""
        if accounting == "payload":
            return np.asarray(8.0 * self.payload_bytes)
        if accounting not in ACCOUNTINGS:
            raise unknown_name("accounting", accounting, ACCOUNTINGS)
        setting = self.settings.setting
        if setting.other is not None:
            raise ConfigError(f"{setting.quantizer} has no {accounting} count; count its payload")
        each = codec.message_bits(self.dimension, setting.levels, accounting=accounting)
        per_round = setting.clients_per_round * each
        return np.broadcast_to(per_round * np.arange(self.loss.shape[1], dtype=float), self.loss.shape)

    def axis(self, name: str, accounting: str, cost_model: CostModel) -> Float64:
        """Return an x axis: "seconds" (modelled), "rounds" or "bits"."""
        if name == "rounds":
            return np.broadcast_to(np.arange(self.loss.shape[1], dtype=float), self.loss.shape)
        bits = self.bits(accounting)
        if name == "bits":
            return bits
        if name not in AXES:
            raise unknown_name("axis", name, AXES)
        received = np.full(self.settings.setting.clients_per_round, codec.raw_bytes(self.dimension))
        each = cost_model.download_seconds(received) + cost_model.round_seconds
        sending = bits / cost_model.bandwidth_for(self.dimension) + each * np.arange(self.loss.shape[1])
        return np.asarray(self.computation_seconds + sending)

    def to_json(self) -> str:
        """Return the curve as JSON, one line per run."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "key": self.settings.key,
            "settings": self.settings.values,
            "dimension": self.dimension,
            "step_size": self.step_size,
            "tuning": [{"step_size": eta, "losses": losses} for eta, losses in sorted(self.tuning.items())],
        }
        head = json.dumps(values, indent=1, allow_nan=False)[:-2]
        return head + ',\n "runs": [\n  ' + ",\n  ".join(self._runs()) + "\n ]\n}\n"

    def _runs(self) -> list[str]:
        return [
            json.dumps({"seed": seed, **{name: getattr(self, name)[row].tolist() for name in ARRAYS}}, allow_nan=False)
            for row, seed in enumerate(self.settings.seeds[: self.num_seeds])
        ]

    @classmethod
    def from_json(cls, text: str) -> Curve:
        """Return the curve that ``to_json`` wrote."""
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise ConfigError(f"format={values['format']!r} is not {FORMAT!r}")
            return cls(
                settings=CurveSettings.from_values(values["settings"]),
                dimension=values["dimension"],
                tuning={entry["step_size"]: entry["losses"] for entry in values["tuning"]},
                step_size=values["step_size"],
                **{name: np.array([run[name] for run in values["runs"]], kind) for name, kind in ARRAYS.items()},
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"not a curve in the form {FORMAT!r}: {error}") from error


Curves = Mapping[PaperSetting, Curve]


def rounded(values: Any) -> list[float]:
    """Return numbers to six significant digits, which keeps the JSON small and readable."""
    return [float(f"{value:.6g}") for value in np.asarray(values, float)]
