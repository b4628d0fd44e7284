"""Download: the official files, checked, with a progress bar.

pooch writes to a temporary file and moves it into place only when its SHA-256 is right, so an
interrupted or corrupted download leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpaq.errors import DatasetError
from fedpaq.problems.datasets.catalogue import DatasetSpec, OfficialFile

if TYPE_CHECKING:
    from rich.progress import Progress

CHUNK_BYTES = 2**16
TIMEOUT_SECONDS = 30.0  # without a byte


def default_cache() -> Path:
    """Return the user's cache folder for datasets."""
    import pooch

    return Path(pooch.os_cache("fedpaq"))


def download(dataset: DatasetSpec, folder: Path, *, timeout: float = TIMEOUT_SECONDS) -> Path:
    """Fetch the dataset's files into ``folder``; files already there with the right checksum stay."""
    from rich.console import Console

    console = Console(stderr=True)
    console.print(
        f"downloading {dataset.name} ({dataset.num_bytes / 1e6:.0f} MB) from {dataset.address}",
        highlight=False,
        soft_wrap=True,
    )
    with progress_on(console) as progress:
        for file in dataset.files:
            _fetch(dataset, file, folder, Bar(progress, file), timeout)
    return folder


def progress_on(console: Any) -> Progress:
    """Return a progress display of bytes; silent where the console is not a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def is_intact(file: OfficialFile, folder: Path) -> bool:
    """Tell whether the file is in ``folder`` with the published checksum."""
    path = folder / file.name
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256


def _fetch(dataset: DatasetSpec, file: OfficialFile, folder: Path, bar: Bar, timeout: float) -> None:
    import pooch
    import requests

    url = dataset.address + file.name
    try:
        with _quiet(pooch.get_logger()):
            pooch.retrieve(
                url,
                known_hash=f"sha256:{file.sha256}",
                fname=file.name,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=timeout),
            )
    except requests.RequestException as error:
        status = type(error).__name__ if error.response is None else f"HTTP {error.response.status_code}"
        raise DatasetError(f"url={url!r} could not be downloaded ({status}); {dataset.advice()}") from error
    except ValueError as error:
        raise DatasetError(
            f"url={url!r} did not deliver the published file (SHA-256 {file.sha256}); what it did "
            "deliver was discarded; try again, or report it to the dataset's authors"
        ) from error
    except OSError as error:
        raise DatasetError(f"folder={str(folder)!r} cannot be written ({error}); choose another") from error


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from logging what the progress bar shows already."""
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


class Bar:
    """What pooch expects of a progress bar; also stops a download that will not end."""

    def __init__(self, progress: Progress, file: OfficialFile) -> None:
        self._progress, self._file, self._received = progress, file, 0
        self._task = progress.add_task(file.name, total=file.num_bytes)
        self.total = file.num_bytes  # pooch sets it from the server's headers

    def update(self, num_bytes: int) -> None:
        """Count ``num_bytes`` more."""
        self._received += num_bytes
        if self._received > 2 * self._file.num_bytes + CHUNK_BYTES:
            raise ValueError("more bytes than the file has")
        self._progress.update(self._task, completed=min(self._received, self._file.num_bytes))

    def reset(self) -> None:
        """Start over; pooch does so before it fills the bar."""
        self._received = 0

    def close(self) -> None:
        """Mark the file as done."""
        self._progress.update(self._task, completed=self._file.num_bytes)
