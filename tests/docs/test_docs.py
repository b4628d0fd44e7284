"""The documentation's code runs, and the names it maps the paper to exist."""

from __future__ import annotations

import contextlib
import importlib
import io
import re

import pytest

from repository import ROOT

DOCS = ROOT / "docs"
BLOCKS = [
    pytest.param(path.name, code, id=f"{path.stem}-{number}")
    for path in sorted(DOCS.glob("*.md"))
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE))
]
NAMES = sorted(set(re.findall(r"`(fedpaq\.[\w.]+)`", (DOCS / "paper-to-code.md").read_text())))
PROSE = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PROSE += sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))


@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_a_documentation_block_runs(page, code):
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, page, "exec", dont_inherit=True), {"__name__": "__main__"})


@pytest.mark.parametrize("name", NAMES)
def test_a_name_the_paper_maps_to_exists(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    pytest.fail(f"{name} does not exist")


def test_extending_examples_are_short():
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL):
        assert len(code.splitlines()) < 40


def test_links_between_pages_lead_somewhere():
    for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_picture_kept_with_the_docs_is_shown_on_a_page():
    pages = "".join(path.read_text() for path in [*DOCS.glob("*.md"), DOCS.parent / "README.md"])
    pictures = [path.relative_to(DOCS).as_posix() for path in DOCS.glob("figures/**/*.png")]
    unseen = [name for name in pictures if name not in pages]
    assert pictures and unseen == []


@pytest.mark.parametrize("page", PROSE)
def test_lines_of_prose_have_at_most_120_characters(page):
    """Tables are exempt: Markdown cannot break a row."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == []
