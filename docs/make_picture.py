"""Makes docs/picture.png: a screenshot of the report of the Redis server of `make demo`.

Run it in the repository after `make demo`: `.venv/bin/python docs/make_picture.py`. It needs the
Debian package `chromium`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from nearfar.report import report

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "out" / "demo" / "redis-benchmark.run"
PICTURE = Path(__file__).with_name("picture.png")
#: Maximum size of the picture.
MAX_BYTES = 300_000


def main() -> int:
    """Open the page, take the picture."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("make_picture: Chromium is missing; apt-get install chromium", file=sys.stderr)
        return 3
    if not STUDY.is_dir():
        print(f"make_picture: no {STUDY.relative_to(ROOT)}; run `make demo`", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        page_file = Path(folder) / "page.html"
        page_file.write_text(report(STUDY), encoding="utf-8")
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = player.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1100, "height": 1440}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector("svg.marks")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURE)
        browser.close()
    size = PICTURE.stat().st_size
    print(f"{PICTURE.relative_to(ROOT)}: {size:,} bytes")
    return 0 if size <= MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
