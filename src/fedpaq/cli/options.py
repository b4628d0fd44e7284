"""Options that several verbs share, said in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(envvar="FEDPAQ_DATA", help="Folder with .npz files or the datasets' official files."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
