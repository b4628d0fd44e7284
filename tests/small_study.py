"""A study that takes seconds, and results that were made up."""

from __future__ import annotations

from dataclasses import replace

from fedpaq.experiments.models.arms import CODED, FLOAT32, PLAIN
from fedpaq.experiments.models.schedule import tuning_of
from fedpaq.experiments.models.tasks import TASKS
from fedpaq.experiments.models.trial import Run, to_json

SMALL = replace(
    TASKS["transformer"],
    name="small",
    rounds=3,
    tuning_rounds=1,
    batch_size=2,
    clients_per_round=2,
    local_steps=1,
    precision="float32",
    arms=(FLOAT32, PLAIN[5], CODED[2]),
    seeds=(0, 1),
    options={"width": 8, "layers": 1, "length": 16, "clients": 4},
)


def write_result(trial, folder, result):
    path = trial.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(trial, result))


def write_study(task, folder, finals, step_size=0.01, payloads=None, downloads=None, losses=None):
    """Write finished runs; ``finals`` has the last measure of each seed by arm."""
    for arm, values in finals.items():
        write_result(tuning_of(task, arm), folder, {"step_size": step_size, "tried": []})
        for seed, value in zip(task.seeds, values, strict=True):
            up = (payloads or {}).get(arm, 4000.0)
            down = (downloads or {}).get(arm, 4000.0)
            diverged = value is None
            rounds = [0] if diverged else [0, 1, task.rounds]
            each = task.clients_per_round
            write_result(
                Run(task, arm, seed, step_size),
                folder,
                {
                    "rounds": rounds,
                    "measure": [10.0] if diverged else [10.0, 20.0, value],
                    "payload_bytes": [up * each * k for k in rounds],
                    "download_bytes": [down * each * k for k in rounds],
                    "training_loss": None if diverged else (losses or {}).get(arm, 1.0),
                    "diverged": "the loss is not finite" if diverged else None,
                    "dimension": 1000, "num_clients": 4, "source": "made up", "seconds": 1.0,
                },
            )  # fmt: skip
