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
    {"errors"},
    {"config", "randomness", "compiled", "cuda", "devices", "ranks", "atomic_file", "strict_json"},
    {"problems", "quantizers"},
    {"codec", "clients", "theory", "cost_model", "aggregation"},
    {"history", "checkpoint", "run_lock", "saved_run", "fingerprint", "meter", "uplink", "round_log"},
    {"algorithm"},
    {"experiments", "verification", "planner", "flower"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imports_of(path):
    """Yield the first-level fedpaq names a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fedpaq":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedpaq."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedpaq."))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts == ("__init__",):
        return
    here = parts[0]
    assert here in RANK, f"{here} has no place in the layers"
    for name in imports_of(path):
        if name in RANK and name != here:
            assert RANK[name] <= RANK[here], f"{path.name} ({here}) imports {name} from above"


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
