"""plan: the fastest FedPAQ for a problem on a network, found in a race of pilots and validated.

1. The target must be reachable: a descent on all samples has to get below it.
2. The race (``planner.race``): every setting and step size, on four seeds, the loss watched on some samples.
3. The validation (``planner.validation``): the fastest settings with neighbouring step sizes, on fresh seeds
   and all samples. The pick has the least mean time to the first round at the target; ties are broken.
4. The schedule (``planner.schedule``): how many rounds until nine in ten runs of the pick are at the target.
5. FedAvg (no quantizer) and QSGD (one local step, all clients, ``LowPrecision``), each with its own tuning.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpaq.config import FedPAQConfig, require_function, require_positive
from fedpaq.cost_model import CostModel
from fedpaq.downlink import Downlink
from fedpaq.errors import ConfigError
from fedpaq.planner.pilot import Candidate, Pilot
from fedpaq.planner.race import race
from fedpaq.planner.schedule import Schedule, make_schedule
from fedpaq.planner.search_space import SearchSpace
from fedpaq.planner.task import Task
from fedpaq.planner.validation import Choice, settle, validate
from fedpaq.problems import Problem
from fedpaq.problems.problem import require_problem
from fedpaq.quantizers import Identity, LowPrecision, Quantizer
from fedpaq.theory.round_setting import RoundSetting

RACE_SEEDS = range(4)
BASELINE_SETTINGS = 4  # of each baseline are validated: one alone may owe its place to luck
BASELINE_LAST_FACTORS = (0.5, 2**-0.5, 1.0)  # so that no baseline loses by a step size that was lucky before
BASELINE_LIMIT = 100.0  # times the pick's seconds, after which a baseline is given up

Progress = Callable[[str, float], None]  # stage, modelled seconds so far


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A recommendation, the alternatives, and what it cost to find."""

    task: Task
    pick: Choice
    schedule: Schedule
    runners_up: Sequence[Choice]
    fedavg: Choice | None  # None: not compared, or slower than BASELINE_LIMIT times the pick
    qsgd: Choice | None
    finished: Sequence[Candidate]  # everything that reached the target in the race
    gradient_steps: int  # simulated to find and validate the pick

    @property
    def quantizer(self) -> Quantizer:
        """The recommended quantizer, for ``train`` beside ``config()``."""
        return self.pick.setting.quantizer

    @property
    def downlink(self) -> Downlink:
        """The recommended downlink, for ``train`` beside ``config()``."""
        return self.pick.setting.downlink

    @property
    def tied(self) -> list[Choice]:
        """The runners-up whose time differs from the fastest's by at most two standard errors, or 1 %."""
        fastest = min((self.pick, *self.runners_up), key=lambda choice: choice.seconds)
        return [choice for choice in self.runners_up if choice is fastest or choice.is_tied_with(fastest)]

    def config(self, seed: int = 0) -> FedPAQConfig:
        """Return the recommended run, with the rounds of ``schedule``."""
        return self.task.config(self.pick.setting, self.pick.step_size, seed, self.schedule.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        choices = {"pick": self.pick, "fedavg": self.fedavg, "qsgd": self.qsgd}
        return {
            "problem": self.task.problem.name,
            "target_loss": self.task.target_loss,
            "cost_model": self.task.cost_model.to_dict(),
            **{name: None if choice is None else choice.to_dict() for name, choice in choices.items()},
            "schedule": self.schedule.to_dict(),
            "runners_up": [{**choice.to_dict(), "tied": choice in self.tied} for choice in self.runners_up],
            "gradient_steps": self.gradient_steps,
        }


def plan(
    problem: Problem,
    *,
    target_loss: float,
    cost_model: CostModel,
    max_clients: int | None = None,
    batch_size: int | None = 10,
    max_steps: int = 2000,
    quantizers: Sequence[Quantizer | str] | None = None,
    downlinks: Sequence[Downlink | str] | None = None,
    space: SearchSpace | None = None,
    confidence: float = 0.9,
    compare: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """Return the configuration that reaches ``target_loss`` soonest under ``cost_model``.

    ``target_loss`` is a loss as ``train`` reports it. ``max_clients`` is the most clients that may take part
    in a round (default: all). ``quantizers`` are those to choose from, as objects or texts (default: several, and
    rates between them), ``downlinks`` the ways down (default: dense, and coded changes where downloads are priced);
    ``space`` replaces all default choices. A candidate that has not reached the target after ``max_steps`` local
    steps is given up. ``confidence`` is the share of runs that are to be at the target after the scheduled rounds.
    ``compare`` also times FedAvg and QSGD. ``progress(stage, seconds)`` gets the modelled time.
    """
    require_problem(problem)
    if space is not None:
        if not isinstance(space, SearchSpace):
            raise ConfigError(f"space={space!r} is not a SearchSpace; write SearchSpace(local_steps=[...], ...)")
        if quantizers is not None or downlinks is not None:
            raise ConfigError("space= has its own quantizers and downlinks; leave out quantizers= and downlinks=")
    require_positive("confidence", confidence)
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence={confidence} is not a share of runs to plan for; choose 0.5 to below 1")
    require_function("progress", progress)
    task = Task(
        problem=problem,
        target_loss=target_loss,
        cost_model=cost_model,
        max_clients=problem.num_clients if max_clients is None else max_clients,
        batch_size=batch_size,
        max_steps=max_steps,
    )
    if space is not None and max(space.clients_per_round) > task.max_clients:
        raise ConfigError(
            f"clients_per_round={max(space.clients_per_round)} of the search space exceeds "
            f"max_clients={task.max_clients}; choose 1..{task.max_clients}"
        )
    task.require_reachable()
    space = space or task.default_space(quantizers, downlinks)
    finished, spent = run_race(task, space.settings(), space.step_sizes, "race", progress)
    choices, more = validate(task, finished, refine=space.refine)
    if not choices:
        raise ConfigError(
            f"target_loss={target_loss} was not reached by any candidate within max_steps={max_steps} "
            "local steps; raise max_steps, or choose a higher target"
        )
    pick, *others = settle(choices)
    if progress is not None:
        progress("schedule", pick.seconds)
    schedule, last = make_schedule(task, pick, confidence)
    baselines = _baselines(task, space, pick.seconds, progress) if compare else {}
    return Plan(
        task=task,
        pick=pick,
        schedule=schedule,
        runners_up=others,
        fedavg=baselines.get("fedavg"),
        qsgd=baselines.get("qsgd"),
        finished=finished,
        gradient_steps=spent + more + last,
    )


def run_race(
    task: Task,
    settings: Sequence[RoundSetting],
    step_sizes: Sequence[float],
    stage: str,
    progress: Progress | None = None,
    max_seconds: float = math.inf,
) -> tuple[list[Candidate], int]:
    """Race all settings and step sizes; return the candidates that finished, and the gradient steps spent."""
    pilots = [Pilot(task, setting, step_sizes, RACE_SEEDS) for setting in settings]
    finished = race(
        pilots,
        max_steps=task.max_steps,
        max_seconds=max_seconds,
        progress=None if progress is None else lambda seconds: progress(stage, seconds),
    )
    return finished, sum(pilot.gradient_steps for pilot in pilots)


def _baselines(task: Task, space: SearchSpace, pick_seconds: float, progress: Progress | None) -> dict[str, Choice]:
    """Time the best FedAvg and the best QSGD."""
    low_precision = [q for q in space.quantizers if isinstance(q, LowPrecision)] or [LowPrecision(1)]
    most = max(space.clients_per_round)
    entries = {
        "fedavg": [RoundSetting(tau, r, Identity()) for tau in space.local_steps for r in space.clients_per_round],
        "qsgd": [RoundSetting(1, most, quantizer) for quantizer in low_precision],
    }
    found = {}
    for name, settings in entries.items():
        finished, _ = run_race(
            task, settings, space.step_sizes, name, progress, max_seconds=BASELINE_LIMIT * pick_seconds
        )
        leading = list(dict.fromkeys(candidate.setting for candidate in finished))[:BASELINE_SETTINGS]
        entered = [candidate for candidate in finished if candidate.setting in leading]
        choices, _ = validate(task, entered, BASELINE_LAST_FACTORS)
        if choices:
            found[name] = choices[0]
    return found
