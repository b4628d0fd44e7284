"""Tests mirror the source: a test file is found from its module, and a module from its test file.

``src/fedpaq/a/b.py`` is tested by ``tests/a/test_b.py`` or ``tests/a/test_b_<aspect>.py``, the whole
package ``a`` by ``tests/a/test_a.py`` or ``tests/a/test_a_<aspect>.py``.
"""

from __future__ import annotations

from pathlib import Path

import fedpaq
from repository import TESTS

SOURCE = Path(fedpaq.__file__).parent
TOGETHER = {  # modules whose twin test stands in another module's file
    ("kernels/cuda", "pairwise"): "tests/kernels/cuda/test_rotation.py",
    ("kernels/cuda", "rounding"): "tests/kernels/cuda/test_rotation.py",
    ("kernels/cuda", "scales"): "tests/kernels/cuda/test_rotation.py",
    ("kernels/numba", "evaluation"): "tests/experiments/test_following.py",
    ("kernels/numba", "plans"): "tests/quantizers/rotated/test_decisions.py",
    ("quantizers/rotated", "steps"): "tests/kernels/numba/test_steps.py",
    ("server", "rotated_sizes"): "tests/server/test_rotated_batch.py",
}
ACROSS = ("properties", "faults", "docs", "fuzz", "flower/apps")  # folders that cut across the source


def modules():
    """Return the modules that need a test file: folder and name."""
    paths = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return sorted((path.parent.as_posix(), path.stem) for path in paths if not path.stem.startswith("__"))


def subjects():
    """Return what a test file may be named after: modules, and packages in their own folder."""
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    return {*modules(), *((package, package.split("/")[-1]) for package in packages - {"."})}


def mirrored_files():
    """Return the test files that mirror the source: folder and name without ``test_``."""
    paths = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return sorted(
        (path.parent.as_posix(), path.stem.removeprefix("test_"))
        for path in paths
        if not any(path.is_relative_to(folder) for folder in ACROSS)
    )


def is_about(file, subject):
    """Tell whether a test file is named after a subject, alone or with an aspect."""
    return file[0] == subject[0] and (file[1] == subject[1] or file[1].startswith(f"{subject[1]}_"))


def test_every_test_file_is_named_after_a_module_or_package():
    strays = [file for file in mirrored_files() if not any(is_about(file, subject) for subject in subjects())]
    assert not strays


def test_every_module_has_a_test_file_of_its_name():
    lacking = {module for module in modules() if not any(is_about(file, module) for file in mirrored_files())}
    assert lacking == set(TOGETHER)
    assert all((TESTS.parent / path).exists() for path in TOGETHER.values())
