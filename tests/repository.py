"""Where things are: the repository, and the datasets beside it."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
DATA = Path(os.environ.get("FEDPAQ_DATA", ROOT.parent / "shared" / "data"))
