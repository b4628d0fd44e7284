"""Trackers: rounds as scalars by step in TensorBoard, Weights & Biases and MLflow, one run per method.

Each is an optional package. Weights & Biases and MLflow are set up by their own variables: ``WANDB_MODE=offline``
needs no account, ``MLFLOW_TRACKING_URI`` says where the store is.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fedpaq.errors import ConfigError
from fedpaq.run.history import Record, as_row
from fedpaq.storage.atomic_file import StrPath

RUN_TAG = "fedpaq-run"


def require(package: str, target: StrPath) -> None:
    """Raise ConfigError unless the tracker's package is installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"log={str(target)!r} needs the package {package}, which is not installed; "
            f"run pip install 'fedpaq[{package}]', or choose FILE.csv or FILE.jsonl"
        )


def _closed(target: str, error: Exception, advice: str) -> ConfigError:
    return ConfigError(f"log={target!r} cannot be opened ({' '.join(str(error).split())}); {advice}")


class Tracker(ABC):
    """What the trackers share: a writer per method, made at its first row, and closed at the end."""

    def __init__(self) -> None:
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            self._close(writer)

    def add(self, method: str, record: Record | Mapping[str, Any]) -> None:
        """Write every number of the record."""
        row = as_row(record)
        step = int(row.pop("round"))
        if method not in self._writers:
            self._writers[method] = self._open(method, step)
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        self._write(self._writers[method], step, numbers)

    @abstractmethod
    def _open(self, method: str, step: int) -> Any:
        """Return the writer of a method whose first row is that of round ``step``."""

    @abstractmethod
    def _write(self, writer: Any, step: int, numbers: dict[str, float]) -> None:
        """Write the numbers of one round."""

    @abstractmethod
    def _close(self, writer: Any) -> None:
        """Finish a method."""


class TensorBoardLog(Tracker):
    """A TensorBoard folder; rounds that are played again replace theirs."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _open(self, method: str, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder / method), purge_step=step)

    def _write(self, writer: Any, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    def _close(self, writer: Any) -> None:
        writer.close()


class WandbLog(Tracker):
    """A project of Weights & Biases; a resumed run goes on under its own id, where the service keeps one row a step."""

    def __init__(self, project: str, run: str | None) -> None:
        super().__init__()
        self._project, self._run = project, run

    def _open(self, method: str, step: int) -> Any:
        import wandb

        id = None if self._run is None else f"{self._run}-{method}"
        try:
            return wandb.init(
                project=self._project, name=method, id=id, resume=None if id is None else "allow", reinit="create_new"
            )
        except wandb.Error as error:
            raise _closed(f"wandb:{self._project}", error, "WANDB_MODE=offline needs no account") from error

    def _write(self, writer: Any, step: int, numbers: dict[str, float]) -> None:
        writer.log(numbers, step=step)

    def _close(self, writer: Any) -> None:
        writer.finish()


class MlflowLog(Tracker):
    """An experiment of MLflow; a resumed run goes on in its own, and a round already there is not written twice."""

    def __init__(self, experiment: str, run: str | None) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        super().__init__()
        self._run = run
        try:
            self._client = MlflowClient()
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = self._client.create_experiment(experiment) if found is None else found.experiment_id
        except MlflowException as error:
            raise _closed(f"mlflow:{experiment}", error, "MLFLOW_TRACKING_URI says where the store is") from error

    def _open(self, method: str, step: int) -> Any:
        tag = f"{self._run}-{method}"
        found = self._client.search_runs([self._experiment], f"tags.`{RUN_TAG}` = '{tag}'") if self._run else []
        tags = {RUN_TAG: tag} if self._run else {}
        run = found[0] if found else self._client.create_run(self._experiment, run_name=method, tags=tags)
        return run.info.run_id, int(run.data.metrics.get("round", -1))

    def _write(self, writer: Any, step: int, numbers: dict[str, float]) -> None:
        run, last = writer
        if step > last:
            for name, value in {"round": float(step), **numbers}.items():
                self._client.log_metric(run, name, value, step=step)

    def _close(self, writer: Any) -> None:
        self._client.set_terminated(writer[0])


SERVICES: dict[str, Any] = {"wandb": WandbLog, "mlflow": MlflowLog}
