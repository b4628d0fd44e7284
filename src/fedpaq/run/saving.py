"""SavedRun: a run's state in a checkpoint, after every round. A run resumed from it ends bit-identical.

What the run is (problem, data, configs, quantizer, ...) is stored too; a checkpoint of another run is refused.
"""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpaq.arrays import AnyArray
from fedpaq.config import require_int, require_path
from fedpaq.errors import CheckpointError, LostRankError
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.run.settings import RunSettings
from fedpaq.run.state import RunState
from fedpaq.storage import checkpoint as files
from fedpaq.storage.atomic_file import StrPath
from fedpaq.storage.lock import hold

KIND = "fedpaq run 4"
OLDER_KINDS = {
    "fedpaq run": "0.1.0 before downloads were counted",
    "fedpaq run 2": "0.1.0 before optimizers were named",
    "fedpaq run 3": "0.1.0 before losses were compared by value",
}
TRACKED_NAME = re.compile("[0-9a-f]{12}")
MARGIN_BYTES = 2**25  # header and records, on top of the params


@dataclass(frozen=True)
class CheckpointPolicy:
    """Save to ``path`` after every ``every`` rounds and after the last.

    If the file exists, the run continues from it, or with ``resume=False`` is refused. A file of
    another run is always refused; nothing is overwritten. ``tracked_as`` is kept in the file: the name
    under which trackers know the run, see ``tracked_name``.

    >>> CheckpointPolicy("run.ckpt", every=10)
    CheckpointPolicy(path='run.ckpt', every=10, resume=True, tracked_as=None)
    """

    path: StrPath
    every: int = 1
    resume: bool = True
    tracked_as: str | None = None

    def __post_init__(self) -> None:
        require_path("checkpoint", self.path, "run.ckpt")
        require_int("every", self.every, 1)

    def require_free(self) -> None:
        """Raise CheckpointError if the file exists and its run is not to be continued."""
        if not self.resume and files.exists(self.path):
            raise CheckpointError(
                f"checkpoint={str(self.path)!r} exists; pass --resume (resume=True) to continue its run, "
                "or choose another file"
            )


class SavedRun:
    """Saves the state after each round; ``policy`` is None where this process does not save."""

    def __init__(self, settings: RunSettings, state: RunState, policy: CheckpointPolicy | None, ranks: Ranks) -> None:
        self._settings, self._state, self._policy, self._ranks = settings, state, policy, ranks
        self._identity = {} if policy is None else settings.identity()
        self._tracked_as = None if policy is None else policy.tracked_as
        self._is_new = True

    def take_up(self) -> None:
        """Take up what the first rank's checkpoint holds, if there is one."""
        packed = b""
        if self._policy is not None and files.exists(self._policy.path):
            self._policy.require_free()
            self._resume(str(self._policy.path))
            packed = files.pack(*self._state.to_parts())
        packed = self._ranks.broadcast(packed)  # the other ranks need not reach the first one's disk
        self._is_new = not packed
        if packed and not self._ranks.is_first:
            self._state.take_up(*files.unpack(packed), self._settings)

    def rounds(self) -> Iterator[int]:
        """Yield the rounds left to do, k = 0, 1, ..., saving after each; none once every run has diverged."""
        if self._is_new:
            self._save()
        for round in range(self._state.rounds_done, self._settings.num_rounds):
            if not self._state.running().size:
                return
            yield round
            done = self._state.rounds_done
            if self._policy is not None and (done == self._settings.num_rounds or done % self._policy.every == 0):
                self._save()

    def _save(self) -> None:
        if self._policy is not None:
            header, arrays = self._state.to_parts()
            own = {"kind": KIND, "run": self._identity, "tracked_as": self._tracked_as}
            files.save(self._policy.path, {**own, **header}, arrays)

    def _most_bytes(self) -> int:
        params: AnyArray = self._state.params
        held = 8 * self._settings.problem.num_clients  # what a downlink may remember of each client
        return 4 * params.nbytes + (MARGIN_BYTES + held) * len(params)

    def _resume(self, path: str) -> None:
        header, arrays = files.load(path, max_bytes=self._most_bytes())
        kind = header.get("kind")
        if kind in OLDER_KINDS:
            raise CheckpointError(
                f"checkpoint={path!r} was written by fedpaq {OLDER_KINDS[kind]}; finish its run there"
            )
        if kind != KIND:
            raise CheckpointError(f"checkpoint={path!r} is a {kind!r}, not a {KIND!r}")
        differences = differing(header.get("run"), self._identity)
        if differences:
            raise CheckpointError(
                f"checkpoint={path!r} is of another run: {'; '.join(differences[:3])}; "
                "resume with the settings it was started with, or choose another file"
            )
        try:
            self._state.take_up(header, arrays, self._settings)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"checkpoint={path!r} holds an impossible state ({error})") from error
        self._tracked_as = self._tracked_as or header.get("tracked_as")


def tracked_name(path: StrPath) -> str:
    """Return the name under which trackers know the run saved at ``path``; a new name if there is none."""
    name = _header_of(path).get("tracked_as")
    return name if isinstance(name, str) and TRACKED_NAME.fullmatch(name) else uuid.uuid4().hex[:12]


def as_policy(given: StrPath | CheckpointPolicy | None) -> CheckpointPolicy | None:
    """Return a checkpoint given as a policy or as its path."""
    return given if given is None or isinstance(given, CheckpointPolicy) else CheckpointPolicy(given)


@contextmanager
def saved_run(
    policy: CheckpointPolicy | None, settings: RunSettings, state: RunState, ranks: Ranks = ALONE
) -> Iterator[SavedRun]:
    """Take up the state in ``checkpoint``, if there is one, and save to it from then on.

    Without a checkpoint nothing is saved. With one, no other process can work on it meanwhile; the
    first rank reads and writes it.
    """
    mine = policy if ranks.is_first else None
    with nullcontext() if mine is None else hold(mine.path):
        run = SavedRun(settings, state, mine, ranks)
        try:
            run.take_up()
            yield run
        except LostRankError as error:
            raise LostRankError(f"{error} in round={state.rounds_done + 1}; {_way_on(policy)}") from error


def executor_of(policy: CheckpointPolicy | None) -> str | None:
    """Return the name of the executor that a checkpoint was started with, if one can be read.

    ``auto`` chooses by timing, and might choose another in the middle of a run.
    """
    run = None if policy is None else _header_of(policy.path).get("run")
    name = run.get("executor") if isinstance(run, dict) else None
    return name if isinstance(name, str) else None


def _header_of(path: StrPath) -> dict[str, Any]:
    """Return the header of the newest file that can be read; a bad one is refused when the run takes it up."""
    newest = Path(os.path.realpath(path))
    for file in (newest, files.previous(newest)):
        with suppress(CheckpointError):
            return files.read(file)[0]
    return {}


def _way_on(checkpoint: CheckpointPolicy | None) -> str:
    if checkpoint is None:
        return "nothing was saved: run with a checkpoint to be able to resume"
    often = "round" if checkpoint.every == 1 else f"{checkpoint.every} rounds"
    return (
        f"checkpoint={str(checkpoint.path)!r}, saved every {often}, holds the last finished state: "
        "run the same command again with --resume (resume=True)"
    )


def differing(saved: Any, here: Any, name: str = "") -> list[str]:
    """Return a line for each leaf in which two JSON values differ.

    >>> differing({"quantizer": {"levels": 1}}, {"quantizer": {"levels": 2}})
    ['quantizer.levels=1 in the checkpoint, 2 here']
    """
    if isinstance(saved, dict) and isinstance(here, dict):
        keys = [*here, *(key for key in saved if key not in here)]
        front = f"{name}." if name else ""
        return [line for key in keys for line in differing(saved.get(key), here.get(key), f"{front}{key}")]
    if isinstance(saved, list) and isinstance(here, list) and len(saved) == len(here):
        pairs = enumerate(zip(saved, here, strict=True))
        return [line for at, (a, b) in pairs for line in differing(a, b, f"{name}[{at}]")]
    return [] if saved == here else [f"{name}={_short(saved)} in the checkpoint, {_short(here)} here"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
