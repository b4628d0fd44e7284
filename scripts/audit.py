"""Audit what is installed: do the packages fit together, are they the pinned ones, are any known bad?

    python scripts/audit.py [--strict]

Works offline: the query for known vulnerabilities needs the package ``pip-audit`` and a package
index that answers it; otherwise it is skipped, with the reason. Packages that conflict, or have a
known vulnerability, make the audit fail; with --strict so does a version other than the pinned one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def conflicts() -> str | None:
    """Return what ``pip check`` complains about, or None."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode else None


def pinned() -> dict[str, str]:
    """Return the version of each package that constraints.txt pins."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE))


def differences() -> list[str]:
    """Return the installed packages whose version is not the pinned one, builds (+cpu) aside."""
    found = []
    for name, version in pinned().items():
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.partition("+")[0] != version:
            found.append(f"{name} {installed} (pinned: {version})")
    return found


def vulnerabilities() -> tuple[list[str], str]:
    """Return known vulnerabilities of the installed packages, and a line to print: these, or why none."""
    if importlib.util.find_spec("pip_audit") is None:
        return [], "skipped: pip-audit is not installed"
    options = ["--skip-editable", "--format", "json", "--timeout", "10"]
    done = subprocess.run([sys.executable, "-m", "pip_audit", *options], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return [], f"skipped: pip-audit gave no answer ({(done.stderr.strip().splitlines() or ['?'])[-1]})"
    asked = [package for package in packages if "vulns" in package]
    if not asked:
        return [], "skipped: the package index does not answer queries for vulnerabilities"
    known = [
        f"{package['name']} {package['version']}: {flaw['id']}, fixed in {flaw['fix_versions']}"
        for package in asked
        for flaw in package["vulns"]
    ]
    return known, "; ".join(known) or f"none in the {len(asked)} of {len(packages)} packages asked about"


def main() -> None:
    """Audit and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="fail where a version is not the pinned one")
    options = parser.parse_args()
    conflict, different, (known, note) = conflicts(), differences(), vulnerabilities()
    print(f"pip check: {conflict or 'no conflicts'}")
    print(f"constraints: {', '.join(different) or f'all as pinned ({len(pinned())} packages)'}")
    print(f"known vulnerabilities: {note}")
    sys.exit(1 if conflict or known or (options.strict and different) else 0)


if __name__ == "__main__":
    main()
