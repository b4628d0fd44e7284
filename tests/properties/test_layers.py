"""The house: imports point downwards, importing is lean, the public names exist."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedpaq

SOURCE = Path(fedpaq.__file__).parent
LAYERS = [
    {"arrays", "errors"},
    {"config", "storage", "kernels"},
    {"randomness", "hardware"},
    {"problems", "quantizers"},
    {"codec", "cost_model"},
    {"clients", "downlink", "quantizers.rotated"},
    {"server", "theory"},
    {"run"},
    {"algorithm"},
    {"experiments", "theory.verification", "planner", "flower"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def place_of(module):
    """Return the entry of ``LAYERS`` that a dotted name below fedpaq belongs to."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in RANK), None)


def imports_of(path):
    """Yield the dotted names below fedpaq that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedpaq":
            front = node.module.removeprefix("fedpaq").removeprefix(".")
            yield from (f"{front}.{alias.name}" if front else alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name[7:] for alias in node.names if alias.name.startswith("fedpaq."))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards_never_sideways(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return
    here = place_of(".".join(part for part in parts if part != "__init__") or "__init__")
    assert here is not None, f"{path} has no place in the layers"
    for name in imports_of(path):
        there = place_of(name)
        if there is not None and there != here:
            assert RANK[there] < RANK[here], f"{path.name} ({here}) imports {there}, which is not below it"


def modules_and_imports():
    """Return every module of the package and the modules it imports when it is loaded."""
    names = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    graph = {}
    for name, path in names.items():
        found = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedpaq":
                front = node.module.removeprefix("fedpaq").removeprefix(".")
                for alias in node.names:
                    whole = f"{front}.{alias.name}" if front else alias.name
                    found.add(whole if whole in names else front)
        graph[name] = found - {name, ""}
    return graph


def test_no_module_imports_itself_through_others():
    graph, done = modules_and_imports(), set()

    def walk(name, above):
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, [*above, name])
            done.add(name)

    for name in sorted(graph):
        walk(name, [])


def modules_after(statement):
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_fedpaq_loads_neither_numba_nor_torch():
    loaded = modules_after("import fedpaq")
    assert not loaded & {"numba", "torch", "constriction", "matplotlib", "typer"}


def test_quantizing_and_encoding_need_no_torch():
    statement = (
        "import fedpaq, numpy as np; "
        "fedpaq.encode(fedpaq.LowPrecision(levels=1).quantize(np.ones(9, np.float32), key=fedpaq.Key(seed=0)))"
    )
    assert "torch" not in modules_after(statement)


def test_every_public_name_exists():
    assert sorted(set(fedpaq.__all__)) == sorted(fedpaq.__all__)
    for name in fedpaq.__all__:
        assert getattr(fedpaq, name) is not None
    assert set(fedpaq.__all__) <= set(dir(fedpaq))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fedpaq.no_such_name
