"""HTML pages, wide in light and narrow in dark colours: no text is cut, overlaps, split or JSON."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import browser
from conftest import DATA
from live_fixture import ran
from nearfar.explain import explain
from nearfar.info import info
from nearfar.paging import paging
from sweeping import swept

CAPTURES = DATA / "captures"
GNUGO, REDIS = CAPTURES / "gnugo.trace", CAPTURES / "redis.trace"


def _paging(folder: Path) -> str:
    return paging(GNUGO, machine="optane-ssd", memory="10%,25%,50%,100%").html()


def _machine(folder: Path) -> str:
    return paging(REDIS, machine="zen4-vm", view="machine", page_sizes="4K,...,2M").html()


def _info(folder: Path) -> str:
    return info(REDIS, heatmap=True).html()


def _explain(folder: Path) -> str:
    run = folder / "explained.run"
    options = {"machine": "zen4-vm", "view": "machine", "page_sizes": "4K,2M"}
    paging(REDIS, **options).write(run)  # type: ignore[arg-type]
    return explain(run, by_region=True).html()


def _ssd(folder: Path) -> str:
    from nearfar.ssd import ssd

    return ssd(CAPTURES / "pigz.trace", dram=["1M", "2M"], epf=["none", "all"]).html()


def _tiering(folder: Path) -> str:
    from nearfar.tiering import tiering

    return tiering(GNUGO, copies=36, points=20).html()


def _numa(folder: Path) -> str:
    from nearfar.numa import alloc

    return alloc(["80G", "700G", "3000G"], mode="memory-mode,alius").html()


def _fleet(folder: Path) -> str:
    from nearfar.advise import advise

    for trace in (GNUGO, REDIS):
        shutil.copytree(trace, folder / trace.name)
    file = folder / "fleet.toml"
    file.write_text(
        'machine = "optane-ssd"\nstorage = "optane-ssd"\n'
        '[vm.web-server-of-a-long-name]\ntrace = "redis.trace"\nmemory = "60%"\n'
        '[vm.go]\ntrace = "gnugo.trace"\nmemory = "20%"\nworkload = "a game of Go"\n'
    )
    return advise(file).html()


def _reproduce(folder: Path) -> str:
    from nearfar.reproduce import reproduce

    return reproduce("numa").html()


def _run(folder: Path) -> str:
    return ran().html()


def _sweep(folder: Path) -> str:
    return swept(folder).html()


def _runs(folder: Path) -> str:
    from nearfar.report import report

    options: dict[str, Any] = {"machine": "nvme", "memory": "50%,100%", "page_sizes": "4K,16K"}
    for name, trace, more in (
        ("a", REDIS, {}), ("b", REDIS, {"replacement": "linux"}), ("c", GNUGO, {}),
    ):  # fmt: skip
        paging(trace, **options, **more).write(folder / f"{name}.run")
    return report([folder / f"{name}.run" for name in "abc"])


PAGES: dict[str, Callable[[Path], str]] = {
    "paging": _paging,
    "machine": _machine,
    "info": _info,
    "explain": _explain,
    "ssd": _ssd,
    "tiering": _tiering,
    "numa": _numa,
    "fleet": _fleet,
    "reproduce": _reproduce,
    "run": _run,
    "sweep": _sweep,
    "runs": _runs,
}


@pytest.fixture(scope="module", params=list(PAGES))
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    file = folder / f"{request.param}.html"
    file.write_text(PAGES[request.param](folder), encoding="utf-8")
    return file


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_are_tidy(page_file: Path, width: int, scheme: str) -> None:
    with browser.opened(page_file, width=width, scheme=scheme, ready="section") as (page, problems):
        browser.settled(page)
        assert browser.untidy(page) == []
        run_details = page.locator("#run details").first
        assert run_details.get_attribute("open") is None, "details of the run are folded"
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        browser.settled(page)
        assert browser.untidy(page) == []
        if page_file.stem == "reproduce":
            page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = false })")
            # Folded and wide, it fits three screens.
            height = page.evaluate("document.documentElement.scrollHeight")
            assert width < 500 or height <= 3 * 800
    assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_untidy_reports_each_fault(tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "bad.html"
    file.write_text(
        "<!doctype html><title>bad</title><style>p { width: 40px; overflow-wrap: anywhere }"
        "div { width: 3000px }</style><section><p>123456789012345</p></section>"
        '<p style="overflow: hidden; white-space: nowrap">a text that is longer than its place</p>'
        '<div>{"a": 1}</div><p style="width: 3em; overflow-wrap: anywhere">1.23456e-5</p>'
        '<p class="key" style="width: 20px"><i class="swatch" style="padding: 7px"></i> name</p>',
        encoding="utf-8",
    )
    with browser.opened(file, width=390, scheme=scheme, ready="section") as (page, _):
        found = " ".join(browser.untidy(page))
    for fault in (
        "wider than the window",
        "split over lines: 1234",
        "JSON is shown",
        "split over lines: 1.23456e-5",
        "swatch without name: name",
        "cut: a text",
    ):
        assert fault in found


def test_a_phone_shows_the_advised_sizes_of_a_fleet(tmp_path: Path) -> None:
    file = tmp_path / "fleet.html"
    file.write_text(_fleet(tmp_path), encoding="utf-8")
    with browser.opened(file, width=390) as (page, _):
        browser.settled(page)
        for size in page.locator("#fleet .size").all():
            box: Any = size.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 390
