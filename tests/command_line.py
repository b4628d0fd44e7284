"""Runs ``fedpaq`` in this process as the shell would: exit code, standard output, standard error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from fedpaq.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        """Lines on standard error, without the one about kernels that are compiled at first use."""
        return [line for line in self.err.splitlines() if "preparing numeric kernels" not in line]

    @property
    def width(self) -> int:
        """The longest line of standard output."""
        return max(map(len, self.out.splitlines()), default=0)


def fedpaq_main(*words, columns: int = 80) -> Ended:
    """Run ``fedpaq WORDS`` with piped output on ``columns`` columns."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["fedpaq", *map(str, words)]),
        mock.patch.dict(os.environ, {"COLUMNS": str(columns)}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        os.environ.pop("FEDPAQ_DATA", None)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())
