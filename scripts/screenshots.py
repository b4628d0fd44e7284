"""The report and every page of the documentation in a real browser, wide and narrow; pictures of the report.

    make screenshots          # builds the site first; needs playwright and Chromium

Writes docs/figures/screens/*.png. Exits 1, and names the page, where something is wider than the screen,
a picture does not load, or a page complains in the browser's console.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from reproduce_docs import PUBLISHED, published_curves

from fedpaq.experiments import FIGURES, save_report

ROOT = Path(__file__).resolve().parent.parent
SITE, SCREENS = ROOT / "site", ROOT / "docs" / "figures" / "screens"
WIDTHS = {1280: 900, 400: 800}  # pixels wide, pixels high


def write_report(path: Path) -> None:
    """Write the report of the published curves."""
    verdicts = json.loads((PUBLISHED / "verdicts.json").read_text(encoding="utf-8"))
    save_report([(figure, published_curves(figure)) for figure in FIGURES.values()], verdicts, path)


def faults(page: Page, address: str) -> list[str]:
    """Open a page and return what is wrong with it."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(300)
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > page.evaluate("window.innerWidth"):
        found.append(f"{wide} pixels wide")
    broken: list[Any] = page.evaluate(
        "Array.from(document.images).filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    )
    return found + [f"no picture at {source}" for source in broken]


def main() -> int:
    """Look at every page in both widths, keep pictures of the report."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium on this machine; install it, e.g. with apt-get install chromium")
    if not SITE.is_dir():
        sys.exit("site/ is not there; run make docs first")
    SCREENS.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = Path(folder) / "report.html"
        write_report(report)
        pages = {"report": report} | {
            path.parent.name if path.parent != SITE else "home": path for path in sorted(SITE.glob("**/index.html"))
        }
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, height in WIDTHS.items():
            for name, path in pages.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                for fault in faults(page, path.as_uri()):
                    wrong += 1
                    print(f"{name} at {width} pixels: {fault}", file=sys.stderr)
                if name == "report":
                    page.screenshot(path=SCREENS / f"{name}-{width}.png")
                    page.locator("#mnist-levels").scroll_into_view_if_needed()
                    page.wait_for_timeout(300)
                    page.screenshot(path=SCREENS / f"{name}-figure-{width}.png")
                page.close()
        browser.close()
    print(f"{len(pages)} pages looked at in {len(WIDTHS)} widths, {wrong} faults; pictures in {SCREENS.name}/")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
