"""KeptModel: the model that a client keeps between messages, in a file of its own for each run and client.

Every message may be a new process, so a file it is. It is written in one step and carries a digest, and nothing in
it is trusted further than the digest that the server sends along.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context

from fedpaq.arrays import Float32
from fedpaq.downlink.stream import NOTHING, receive
from fedpaq.errors import CheckpointError, WireFormatError
from fedpaq.flower.downloads import digest, download_in
from fedpaq.storage import checkpoint
from fedpaq.storage.atomic_file import atomic_write

log = logging.getLogger("flwr")
SUFFIX = ".model"
FORGET_AFTER = 7 * 24 * 3600.0  # seconds since a file was last written


class NeedsModel(Exception):
    """The client cannot make the server's model from what it holds; the text says why."""


@dataclass(frozen=True)
class KeptModel:
    """Where one client keeps the model of one run."""

    folder: Path
    run: str
    client: int

    @classmethod
    def of(cls, asked: ConfigRecord, context: Context) -> KeptModel:
        """Return the place for a message: the node config's ``fedpaq-cache``, FEDPAQ_CACHE, or the user's cache."""
        import platformdirs

        chosen = context.node_config.get("fedpaq-cache") or os.environ.get("FEDPAQ_CACHE")
        folder = Path(str(chosen)) if chosen else Path(platformdirs.user_cache_dir("fedpaq")) / "models"
        run = re.sub(r"[^0-9a-zA-Z-]", "", str(asked["run"]))
        return cls(folder, run, _int(asked["client"]))

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.run}-{self.client}{SUFFIX}"

    def receive(self, asked: ConfigRecord, frames: bytes, dimension: int) -> tuple[Float32, int]:
        """Return the server's model, and the frame that is kept of it; raise NeedsModel where it cannot be made."""
        download, frame, seed = download_in(asked, frames), _int(asked["frame"]), int(str(asked["seed"]))
        held, params = self._load() if download.held != NOTHING else (NOTHING, None)
        try:
            made = receive(download, params, dimension, seed, frame, held)
        except WireFormatError as error:
            raise NeedsModel(f"the model in {self.path.name} does not fit: {error}") from error
        if digest(made) != asked["digest"]:
            raise NeedsModel(f"the model made from {self.path.name} is not the server's")
        return made, self._keep(made, frame) if held != frame else frame

    def _load(self) -> tuple[int, Float32]:
        """Return the frame and the model kept; raise NeedsModel where there is none."""
        try:
            header, arrays = checkpoint.unpack(self.path.read_bytes())
            params = arrays["params"]
            if header["run"] != self.run or params.dtype != np.float32 or params.ndim != 1:
                raise NeedsModel(f"{self.path.name} is of another run")
            return _int(header["frame"]), params
        except FileNotFoundError as error:
            raise NeedsModel(f"{self.path.name} is not there") from error
        except (OSError, CheckpointError, KeyError, TypeError, WireFormatError) as error:
            raise NeedsModel(f"{self.path.name} cannot be read ({error})") from error

    def _keep(self, params: Float32, frame: int) -> int:
        """Keep a model; return its frame, or NOTHING where the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self._forget_old()
            atomic_write(self.path, checkpoint.pack({"run": self.run, "frame": frame}, {"params": params}))
        except OSError as error:
            log.warning("the model cannot be kept in %s (%s); the next one comes whole", self.folder, error)
            return NOTHING
        return frame

    def _forget_old(self) -> None:
        """Remove the models of runs that ended long ago."""
        for path in self.folder.glob(f"*{SUFFIX}"):
            try:
                if time.time() - path.stat().st_mtime > FORGET_AFTER:
                    path.unlink()
            except OSError:
                continue  # another client was faster, or it is not ours


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WireFormatError(f"value={value!r} is not an integer")
    return value
