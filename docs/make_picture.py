"""Makes docs/picture.png: the page of a study of a bundled capture, as Chromium shows it.

Run it in the repository after `make env`: `.venv/bin/python docs/make_picture.py`. It needs the
Debian package `chromium`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from nearfar.paging import paging

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "tests" / "data" / "captures" / "gnugo.trace"
PICTURE = Path(__file__).with_name("picture.png")
#: Bytes that a picture on a front page may take.
MAX_BYTES = 300_000


def main() -> int:
    """Run the study, open its page, take the picture."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("make_picture: Chromium is missing; apt-get install chromium", file=sys.stderr)
        return 3
    # By its bare name: the page shows the path it was given.
    os.chdir(TRACE.parent)
    result = paging(
        TRACE.name, machine="optane-ssd", storage=["optane-ssd"], page_sizes="512,1K,...,128K"
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        page_file = Path(folder) / "gnugo.html"
        page_file.write_text(result.html(), encoding="utf-8")
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = player.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1100, "height": 1410}, color_scheme="light")
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
