"""Headless Chromium for tests: open a page from a file and note everything that goes wrong.

Use::

    with browser.opened(path, width=360) as (page, problems):
        ...
    assert problems == []
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import HANG

FLAGS = [
    "--no-sandbox",  # root in a container has no user namespace to build one in
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_LOCAL = ("file://", "data:", "blob:")


def chromium() -> str:
    """Path of Chromium; without it the test is skipped, or fails where ``CI`` is set."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found:
        return found
    reason = "Chromium is absent: install the Debian package `chromium`"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def opened(
    path: Path, width: int = 1280, scheme: str = "light", ready: str = "svg.marks"
) -> Iterator[tuple[Any, list[str]]]:
    """The page at ``path`` and the list of its problems, which grows while it is open.

    Problems are console errors and warnings, uncaught exceptions, and requests that leave the
    machine. ``ready`` is a selector that must appear before the page counts as loaded.
    """
    problems: list[str] = []

    def note_console(message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            problems.append(f"console {message.type}: {message.text}")

    def note_request(request: Any) -> None:
        if not request.url.startswith(_LOCAL):
            problems.append(f"request: {request.url}")

    context = _browser().new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        accept_downloads=True,
    )
    context.set_default_timeout(HANG * 1000)
    try:
        page = context.new_page()
        page.on("console", note_console)
        page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
        page.on("request", note_request)
        page.goto(path.as_uri())
        page.wait_for_selector(ready)
        yield page, problems
    finally:
        context.close()


def settled(page: Any) -> None:
    """Wait until nothing in the page has changed for ten frames: charts redraw in promises."""
    page.evaluate(
        """new Promise(done => {
          let quiet = 0;
          const watch = new MutationObserver(() => { quiet = 0; });
          watch.observe(document, {
            subtree: true, childList: true, attributes: true, characterData: true,
          });
          const frame = () => {
            if (++quiet < 10) requestAnimationFrame(frame);
            else { watch.disconnect(); done(); }
          };
          requestAnimationFrame(frame);
        })"""
    )


@functools.cache
def _browser() -> Any:
    """One Chromium for all tests of a process; each has a context of its own."""
    executable = chromium()
    from playwright.sync_api import sync_playwright

    player = sync_playwright().start()
    atexit.register(player.stop)
    return player.chromium.launch(executable_path=executable, args=FLAGS, timeout=HANG * 1000)
