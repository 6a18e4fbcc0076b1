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
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import HANG, tool

FLAGS = [
    "--no-sandbox",  # the sandbox needs a user namespace, which a container may forbid
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_LOCAL = ("file://", "data:", "blob:")


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
    """Wait until the page has not changed for ten frames: charts redraw asynchronously."""
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
    """One Chromium for all tests of a process."""
    executable = shutil.which("chromium-browser") or tool("chromium", "chromium")
    from playwright.sync_api import sync_playwright

    player = sync_playwright().start()
    atexit.register(player.stop)
    return player.chromium.launch(executable_path=executable, args=FLAGS, timeout=HANG * 1000)


def untidy(page: Any) -> list[str]:
    """Defects of a page's layout, such as cut or overlapping text, or raw JSON."""
    found: list[str] = page.evaluate(_UNTIDY)
    return found


_UNTIDY = r"""() => {
  const found = [];
  const seen = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const short = (text) => text.trim().slice(0, 60);
  if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window");
  // A number and its unit stay on one line.
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  const unit = "(?:\\u00a0?(?:%|ns|\\u00b5s|ms|[KMGT]iB|s|B))?";
  const digits = "\\d[\\d.,\\u00a0\\u202f]*(?:e-\\u2060?\\d+)?";
  const number = new RegExp(`(?<![\\w.])${digits}${unit}(?!\\w)`, "g");
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (parent.closest("script, style, svg, code, .icicle") || !seen(parent)) continue;
    for (const match of node.textContent.matchAll(number)) {
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const tops = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
      if (tops.size > 1) found.push(`split over lines: ${match[0]}`);
    }
  }
  if (/\{"|"\s*:\s*["\[{\d]/.test(document.body.innerText)) found.push("JSON is shown");
  // Axis labels: not cut, not overlapping, and none dropped where there is room.
  for (const axis of document.querySelectorAll("svg .role-axis-label")) {
    const frame = axis.closest("svg").getBoundingClientRect();
    const all = [...axis.querySelectorAll("text")].filter((t) => t.textContent);
    const shown = all.filter((t) => t.getAttribute("opacity") !== "0" && seen(t));
    const boxes = shown.map((t) => [short(t.textContent), t.getBoundingClientRect()]);
    boxes.forEach(([text, box], at) => {
      const outside = box.left < frame.left - 1 || box.right > frame.right + 1;
      if (outside) found.push(`cut label: ${text}`);
      for (const [other, next] of boxes.slice(at + 1)) {
        const wide = Math.min(box.right, next.right) - Math.max(box.left, next.left);
        const high = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
        // The bounding box of a slanted label is larger than its text.
        const slanted = /rotate\((?!0\))/.test(shown[at].getAttribute("transform") || "");
        if (wide > 1 && high > 1 && !slanted) found.push(`labels overlap: ${text} / ${other}`);
      }
    });
    const across = boxes.length > 1 && boxes[0][1].top === boxes[1][1].top;
    if (across && shown.length < all.length) {
      const needed = all.reduce((sum, t) => sum + t.getBoundingClientRect().width + 8, 0);
      const left = Math.min(...boxes.map(([, b]) => b.left));
      const room = Math.max(...boxes.map(([, b]) => b.right)) - left;
      if (needed < 0.8 * room) found.push(`labels dropped: ${short(axis.textContent)}`);
    }
  }
  for (const text of document.querySelectorAll("svg .role-legend-label text")) {
    const [box, frame] = [text, text.closest("svg")].map((e) => e.getBoundingClientRect());
    const outside = seen(text) && box.right > frame.right + 1;
    if (outside) found.push(`cut legend: ${short(text.textContent)}`);
  }
  // Half-width sections stand side by side.
  if (innerWidth >= 960) {
    const halves = [...document.querySelectorAll("main > section:not(.wide)")];
    const tops = halves.map((e) => Math.round(e.getBoundingClientRect().top));
    tops.forEach((top, at) => {
      if (tops.filter((t) => t === top).length < 2) found.push(`stands alone: ${halves[at].id}`);
    });
  }
  for (const swatch of document.querySelectorAll(".key .swatch")) {
    const after = swatch.nextSibling;
    range.selectNodeContents(after);
    const [first] = [...range.getClientRects()].filter((r) => r.width > 0).slice(-1);
    const below = !first || first.top >= swatch.getBoundingClientRect().bottom;
    if (seen(swatch) && below) found.push(`swatch without name: ${short(after.textContent)}`);
  }
  const texts = "td, th, dd, dt, p, h1, h2, h3, button, label, figcaption, summary, li";
  for (const e of document.querySelectorAll(texts)) {
    if (!seen(e) || e.closest(".icicle, .skip")) continue;
    const hides = getComputedStyle(e).overflowX !== "visible";
    if (hides && e.scrollWidth > e.clientWidth + 1) found.push(`cut: ${short(e.textContent)}`);
    const holder = e.closest("section");
    if (holder && !e.closest(".scroll")) {
      const [box, frame] = [e.getBoundingClientRect(), holder.getBoundingClientRect()];
      if (box.right > frame.right + 1) found.push(`out of its section: ${short(e.textContent)}`);
    }
  }
  return [...new Set(found)];
}"""
