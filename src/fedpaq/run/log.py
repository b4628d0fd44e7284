"""RoundLog: one row per round, written during the run, for the tools with which people watch runs.

    with open_log("run.csv") as log:  # or run.jsonl, or a folder that TensorBoard is pointed at
        fedpaq.train(problem, config, callback=lambda record, _: log.add("FedPAQ", record))

A row is on the disk before the next round begins. A resumed run keeps the rows of the rounds that are
done; rounds it plays again replace theirs, and half a row left by a crash is dropped.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from fedpaq.errors import ConfigError
from fedpaq.run.history import Record
from fedpaq.storage.atomic_file import StrPath, atomic_write

COLUMNS = ("method", *(field.name for field in fields(Record)))

Row = dict[str, Any]


class RoundLog(Protocol):
    """Where the rounds of a run are written."""

    def add(self, method: str, record: Record) -> None:
        """Write the state after one round of a method."""

    def __enter__(self) -> RoundLog: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_log(path: StrPath, *, resume: bool = False) -> RoundLog:
    """Return the log for this path: ``.csv``, ``.jsonl``, or else a TensorBoard folder."""
    target = Path(path)
    if target.suffix in (".csv", ".jsonl"):
        if not target.absolute().parent.is_dir():
            raise ConfigError(f"log={str(path)!r} is in a folder that does not exist; create it first")
        return TextLog(target, resume)
    if target.suffix and not target.is_dir():
        raise ConfigError(f"log={str(path)!r} has an unknown form; choose FILE.csv, FILE.jsonl or a FOLDER")
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            f"log={str(path)!r} is a TensorBoard folder, and tensorboard is not installed; "
            "run pip install 'fedpaq[tensorboard]', or choose FILE.csv or FILE.jsonl"
        )
    return TensorBoardLog(target)


class TextLog:
    """Rows in a CSV or JSONL file, appended and flushed one at a time."""

    def __init__(self, path: Path, resume: bool) -> None:
        self._path, self._csv = path, path.suffix == ".csv"
        self._begun: set[str] = set()
        kept = self._read() if resume and path.exists() else []
        self._stream = self._rewrite(kept)

    def __enter__(self) -> TextLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def add(self, method: str, record: Record) -> None:
        """Append the row; the first row of a method replaces what an earlier run wrote from that round on."""
        if method not in self._begun:
            self._begun.add(method)
            rows = self._read()
            kept = [row for row in rows if row["method"] != method or row["round"] < record.round]
            if len(kept) < len(rows):
                self._stream.close()
                self._stream = self._rewrite(kept)
        self._stream.write(self._text({"method": method, **asdict(record)}))
        self._stream.flush()

    def _rewrite(self, rows: list[Row]) -> io.TextIOWrapper:
        head = ",".join(COLUMNS) + "\n" if self._csv else ""
        atomic_write(self._path, (head + "".join(map(self._text, rows))).encode())
        return open(self._path, "a", encoding="utf-8", newline="")

    def _text(self, row: Row) -> str:
        if not self._csv:
            return json.dumps(row) + "\n"
        line = io.StringIO()
        csv.DictWriter(line, COLUMNS, lineterminator="\n").writerow(row)
        return line.getvalue()

    def _read(self) -> list[Row]:
        """Return the rows at the start of the file that are complete."""
        text = self._path.read_text(encoding="utf-8", errors="replace")
        lines = text[: text.rfind("\n") + 1].splitlines()
        rows: list[Row] = []
        # What is not a row, and what follows it, is not kept.
        with contextlib.suppress(ValueError, TypeError, OverflowError, RecursionError, csv.Error):
            for row in csv.DictReader(lines) if self._csv else map(json.loads, lines):
                if not isinstance(row, dict) or set(row) != set(COLUMNS):
                    break
                rows.append({**row, "round": int(row["round"])})
        return rows


class TensorBoardLog:
    """Scalars by round in a TensorBoard folder, one run per method."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, method: str, record: Record) -> None:
        """Write every number of the record; rounds that are played again replace theirs."""
        from torch.utils.tensorboard import SummaryWriter

        if method not in self._writers:
            self._writers[method] = SummaryWriter(str(self._folder / method), purge_step=record.round)
        values = asdict(record)
        step = values.pop("round")
        for name, value in values.items():
            if value is not None:
                self._writers[method].add_scalar(name, value, step)
        self._writers[method].flush()
