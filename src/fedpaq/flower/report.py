"""Report: what the operator sees. A line per round, a table at the end, the same rows to every log.

A row is made of the state alone, so a resumed run shows and logs what an uninterrupted one would.

A metric keeps its name where it can. Where places measure metrics of one name, in any rounds so far, the first of
``KEEP_NAMES`` keeps it, and the others are prefixed: ``server-loss``, ``train-loss``. So is one named like a column.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpaq.flower.rounds import RoundRecord
from fedpaq.flower.state import State
from fedpaq.run.log import RoundLog, open_log
from fedpaq.storage.atomic_file import StrPath

log = logging.getLogger("flwr")
TABLE_ROWS = 12  # a longer run shows so many of its rounds, evenly spread
OWN = "fedpaq-"  # how the names of our metrics begin
COUNTS = ("asked", "counted", "rejected", "late")
AMOUNTS = ("payload_bytes", "exact_bytes", "download_bytes", "seconds")
COLUMNS = ("round", *COUNTS, *AMOUNTS)
PLACES = ("train", "clients", "server")  # where metrics are measured, in the order of a row
KEEP_NAMES = ("clients", "server", "train")  # who keeps a name that two places use, the first first

Row = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """Says what happened, and writes it to ``logs`` under the name of the ``method``."""

    method: str
    logs: Sequence[RoundLog]
    num_rounds: int

    def round_done(self, state: State) -> None:
        """Show and log the last round, which is trained and evaluated."""
        row = rows_of(state)[-1]
        log.info("%s", line_of(state.history[-1], row, self.num_rounds))
        for each in self.logs:
            each.add(self.method, row)

    def end(self, state: State, saved: Any) -> None:
        """Show the table of the rounds, what they cost, and where the model is."""
        rows = rows_of(state)
        for line in table_of(rows):
            log.info("%s", line)
        last = rows[-1]
        up, down = size(last["payload_bytes"] + last["exact_bytes"]), size(last["download_bytes"])
        where = "not saved to a file (save=None)" if saved is None else f"saved to {saved}"
        log.info("run=%s: %d rounds, up %s, down %s; the model is %s", state.run, last["round"], up, down, where)


def log_for(target: StrPath | RoundLog, state: State) -> RoundLog:
    """Return the log for a text or path, after the rows of the rounds that are done, or the one given."""
    if isinstance(target, str | os.PathLike):
        return open_log(target, resume=state.rounds_done > 0, run=state.run)
    return target


def rows_of(state: State) -> list[Row]:
    """Return a row per round: amounts add up from the start, metrics are those of the round."""
    found = {place: metrics_of(state, place) for place in PLACES}
    names = names_of(found)
    rows, totals = [], dict.fromkeys(AMOUNTS, 0)
    for record in state.history:
        totals = {name: total + getattr(record, name) for name, total in totals.items()}
        totals["download_bytes"] += record.evaluation_bytes
        row = {"round": record.server_round, **{name: len(getattr(record, name)) for name in COUNTS}, **totals}
        for place, metrics in found.items():
            row |= {names[place, name]: value for name, value in metrics.get(record.server_round, {}).items()}
        rows.append(row)
    return rows


def metrics_of(state: State, place: str) -> dict[int, Row]:
    """Return the numbers that were measured in a place, by round."""
    trained = {record.server_round: record.metrics for record in state.history}
    found = trained if place == "train" else state.evaluations[place]
    ours = (OWN,) if place == "train" else ()
    return {
        at: {
            name: value
            for name, value in metrics.items()
            if isinstance(value, int | float) and not name.startswith(ours)
        }
        for at, metrics in found.items()
    }


def names_of(found: Mapping[str, Mapping[int, Row]]) -> dict[tuple[str, str], str]:
    """Return the name in a row of each (place, name): its own, or where it was measured before it."""
    names, taken = {}, {*COLUMNS, "method"}  # the name under which logs write the method
    for place in KEEP_NAMES:
        given = {name for metrics in found[place].values() for name in metrics}
        for name in sorted(given, key=lambda name: (name in taken, name)):  # first those that keep their name
            shown = name
            while shown in taken:
                shown = f"{place}-{shown}"
            taken.add(shown)
            names[place, name] = shown
    return names


def line_of(record: RoundRecord, row: Row, num_rounds: int) -> str:
    """Return a round as one line."""
    missing = [f"{len(who)} {how}" for how, who in (("late", record.late), ("rejected", record.rejected)) if who]
    clients = f"{len(record.counted)} of {len(record.asked)} clients" + (f" ({', '.join(missing)})" if missing else "")
    parts = [clients, *(f"{name} {row[name]:.4g}" for name in measured(row))]
    up = record.payload_bytes + record.exact_bytes
    amounts = f"up {size(up)} (payload {size(record.payload_bytes)}, exact {size(record.exact_bytes)})"
    down = f"down {size(record.download_bytes + record.evaluation_bytes)}"
    if record.evaluation_bytes:
        down += f" (to train {size(record.download_bytes)}, to evaluate {size(record.evaluation_bytes)})"
    so_far = f"so far up {size(row['payload_bytes'] + row['exact_bytes'])}, down {size(row['download_bytes'])}"
    return f"round {row['round']}/{num_rounds}: {', '.join(parts)}; {amounts}, {down}; {record.seconds:.1f} s; {so_far}"


def measured(row: Row) -> list[str]:
    """Return the names of a row's metrics."""
    return [name for name in row if name not in COLUMNS]


def table_of(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table: at most ``TABLE_ROWS`` rounds, the first and the last among them."""
    last = len(rows) - 1
    steps = min(last, TABLE_ROWS - 1)
    shown = [rows[last * at // steps] for at in range(steps + 1)] if steps else list(rows)
    names = list(dict.fromkeys(name for row in shown for name in measured(row)))
    cells = [["round", "clients", "up so far", "down so far", "seconds", *names]]
    for row in shown:
        metrics = [f"{row[name]:.4g}" if name in row else "" for name in names]
        up, down = size(row["payload_bytes"] + row["exact_bytes"]), size(row["download_bytes"])
        clients = f"{row['counted']} of {row['asked']}"
        cells.append([str(row["round"]), clients, up, down, f"{row['seconds']:.1f}", *metrics])
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def size(count: int) -> str:
    """Return bytes for people.

    >>> size(93), size(5_930), size(44_000_000)
    ('93 B', '5.9 kB', '44.0 MB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
