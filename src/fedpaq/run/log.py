"""RoundLog: one row per round, written during the run, for the tools with which people watch runs.

    with open_log("run.csv") as log:  # or run.jsonl, a TensorBoard folder, wandb:PROJECT, mlflow:EXPERIMENT
        fedpaq.train(problem, config, callback=lambda record, _: log.add("FedPAQ", record))

``fedpaq run --log`` and Flower's ``FedPAQ(log=...)`` write through the same interface; anything with its ``add`` can
stand in. A row is on the disk before the next round begins. A file of an earlier run is replaced by the first row, not
before. A resumed run keeps the rows of the rounds that are done; rounds it plays again replace theirs, and half a row
left by a crash is dropped.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from fedpaq.errors import ConfigError
from fedpaq.run import trackers
from fedpaq.run.history import Record, as_row
from fedpaq.storage.atomic_file import StrPath, atomic_write

Row = dict[str, Any]
FORMS = "FILE.csv, FILE.jsonl, a FOLDER for TensorBoard, wandb:PROJECT or mlflow:EXPERIMENT"


class RoundLog(Protocol):
    """Where the rounds of a run are written."""

    def add(self, method: str, record: Record | Mapping[str, Any]) -> None:
        """Write the state after one round of a method: a record, or a row with its ``round``."""

    def __enter__(self) -> RoundLog: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_log(target: StrPath, *, resume: bool = False, run: str | None = None) -> RoundLog:
    """Return the log for this text or path, see ``FORMS``; ``run`` is the identity under which trackers resume."""
    if not os.fspath(target):
        raise ConfigError(f"log={target!r} names nothing; choose {FORMS}")
    kind, _, name = os.fspath(target).partition(":")
    if kind in trackers.SERVICES and not name and str(target) != kind:
        raise ConfigError(f"log={str(target)!r} names no project; choose {FORMS}")
    if kind in trackers.SERVICES and name:
        trackers.require(kind, target)
        service: RoundLog = trackers.SERVICES[kind](name, run)
        return service
    path = Path(target)
    if path.suffix in (".csv", ".jsonl"):
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"log={str(target)!r} is in a folder that does not exist; create it first")
        return TextLog(path, resume)
    if path.suffix and not path.is_dir():
        raise ConfigError(f"log={str(target)!r} has an unknown form; choose {FORMS}")
    trackers.require("tensorboard", target)
    return trackers.TensorBoardLog(path)


class TextLog:
    """Rows in a CSV or JSONL file, appended and flushed one at a time; a CSV file widens with its rows."""

    def __init__(self, path: Path, resume: bool) -> None:
        self._path, self._csv = path, path.suffix == ".csv"
        self._begun: set[str] = set()
        self._columns: list[str] = []
        self._keeps = resume
        if resume and path.exists():
            self._stream = self._rewrite(self._read())
        else:
            self._stream = self._append()  # fails now, not after the first round

    def __enter__(self) -> TextLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def add(self, method: str, record: Record | Mapping[str, Any]) -> None:
        """Append the row; the first row of a method replaces what an earlier run wrote from that round on."""
        row = {"method": method, **as_row(record)}
        first = method not in self._begun
        if first or (self._csv and not set(row) <= set(self._columns)):
            self._begun.add(method)
            rows = self._read() if self._keeps else []
            self._keeps = True
            kept = [one for one in rows if not first or one["method"] != method or one["round"] < row["round"]]
            self._stream.close()
            self._stream = self._rewrite(kept, row)
        self._stream.write(self._text(row))
        self._stream.flush()

    def _rewrite(self, rows: list[Row], *coming: Row) -> io.TextIOWrapper:
        """Write the rows anew, with columns for those that are coming, too."""
        self._columns = list(dict.fromkeys(name for row in [*rows, *coming] for name in row))
        head = ",".join(self._columns) + "\n" if self._csv and self._columns else ""
        atomic_write(self._path, (head + "".join(map(self._text, rows))).encode())
        return self._append()

    def _append(self) -> io.TextIOWrapper:
        return open(self._path, "a", encoding="utf-8", newline="")

    def _text(self, row: Row) -> str:
        if not self._csv:
            return json.dumps(row) + "\n"
        line = io.StringIO()
        csv.DictWriter(line, self._columns, lineterminator="\n").writerow(row)
        return line.getvalue()

    def _read(self) -> list[Row]:
        """Return the rows at the start of the file that are complete."""
        text = self._path.read_text(encoding="utf-8", errors="replace")
        lines = text[: text.rfind("\n") + 1].splitlines()
        rows: list[Row] = []
        # What is not a row, and what follows it, is not kept.
        with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError, csv.Error):
            for row in csv.DictReader(lines) if self._csv else map(json.loads, lines):
                whole = isinstance(row, dict) and None not in row and (not self._csv or None not in row.values())
                if not whole or not {"method", "round"} <= set(row):
                    break
                rows.append({**row, "round": int(row["round"])})
        return rows
