"""The README's code runs, and prints what the README says."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from repository import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, re.DOTALL)


@pytest.mark.parametrize(("code", "output"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_readme_block_runs_and_prints_what_it_says(code, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    if output:
        assert printed.getvalue() == output


def test_your_own_model_takes_under_fifteen_lines():
    own = next(code for code, _ in BLOCKS if "fedpaq.Problem(" in code)
    statements = [line for line in own.splitlines() if line.strip() and not line.startswith("import")]
    assert len(statements) < 15


def test_there_are_blocks_to_run():
    assert len(BLOCKS) >= 2


def test_the_table_of_folders_names_every_package():
    table = README[README.index("## Where things are") :]
    named = set(re.findall(r"`(\w+)/`", table.split("\n\n")[1]))
    assert named == {path.parent.name for path in (ROOT / "src" / "fedpaq").glob("*/__init__.py")}
