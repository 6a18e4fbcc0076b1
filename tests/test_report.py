"""Text of tables, plots and pages; behaviour of the pages in a real browser."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import browser
import report_fixture as fixture
from conftest import DATA, Run
from live_fixture import ran
from nearfar import paging_findings as findings
from nearfar import units
from nearfar.errors import NearfarError
from nearfar.numa import alloc
from nearfar.paging import PagingResult, paging
from nearfar.report import palette, tables, terminal
from nearfar.report.html import page as page_module
from nearfar.report.html.info import InfoPage
from nearfar.report.html.paging import PagingPage
from nearfar.report.html.rows import RowsPage
from nearfar.report.runs import together
from sweeping import REPLACEMENTS, swept

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u2028'\"&"


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def printed(renderable: Any, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    tables.show(renderable, stream)
    return stream.getvalue()


# --- units and findings


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (units.size(512), "512 B"),
        (units.size(4096), "4 KiB"),
        (units.size(1.5 * 2**20), "1.5 MiB"),
        (units.size(1000 * 1024 + 512), "1000 KiB"),
        (units.size(1010 * 1024 + 1), "1010 KiB"),
        (units.size(1023.9 * 2**30), "1020 GiB"),
        (units.size(2**64), "16384 PiB"),
        (units.duration(0), "0 ns"),
        (units.duration(85.23), "85.2 ns"),
        (units.duration(999.9), "1 us"),
        (units.duration(1270), "1.27 us"),
        (units.duration(8.04e6), "8.04 ms"),
        (units.rate(0.0), "0"),
        (units.rate(0.01234), "0.0123"),
        (units.rate(6.72e-6), "6.72e-6"),
        (units.percent(0.5), "50 %"),
        (units.percent(0.0289), "2.9 %"),
        (units.count(31_300_000), "31 300 000"),
        (units.clean("a\x1b[31mb\n"), "a\\x1b[31mb\\n"),
        (units.clean("[heap]"), "[heap]"),
        (units.digits(math.inf), "inf"),
    ],
)
def test_units(made: str, expected: str) -> None:
    assert made == expected


def test_the_best_page_has_the_least_time_of_its_memory_and_storage() -> None:
    result = fixture.paging_result()
    best = findings.best_pages(result)
    assert len(best) == len(fixture.FRACTIONS) * len(fixture.STORAGES)
    for (memory, storage), found in best.items():
        for row in result.rows:
            if row["memory_bytes"] == memory.bytes and row["storage"] == storage:
                assert found.row["total_ns"] <= row["total_ns"]


def row(page: int, total: float, **more: Any) -> Any:
    made: Any = dict(fixture.paging_result().rows[0])
    made.update(page_bytes=page, total_ns=total, storage="disk", **more)
    return made


def finding(*rows: Any) -> str:
    (best,) = findings.best_pages(PagingResult({}, list(rows), [])).values()
    return best.sentence


def test_sentence_says_the_saving() -> None:
    assert finding(row(4096, 100.0), row(16384, 62.0)) == (
        "At 10 % memory on disk the best page is 16 KiB: 38 % less time per reference than 4 KiB "
        "(62 ns instead of 100 ns)."
    )


def test_sentence_when_the_usual_page_wins_or_ties() -> None:
    sentence = finding(row(4096, 50.0), row(16384, 50.0), row(512, 50.0))
    assert "best page is 4 KiB, the usual one" in sentence


def test_sentence_without_the_usual_page_and_with_memory_in_bytes() -> None:
    sentence = finding(row(8192, 50.0, memory_fraction=None, memory_bytes=2**26))
    assert sentence.startswith("At 64 MiB of memory on disk the best page is 8 KiB: 50 ns")
    assert "4 KiB was not among the sizes tried" in sentence


@pytest.mark.parametrize("fractions", [True, False])
def test_every_fit_is_matched_to_its_memory_size(fractions: bool) -> None:
    result = fixture.paging_result(fractions=fractions)
    found = [findings.memory_of_fit(fit) for fit in result.fits]
    assert found[0] is None
    assert found[1:] == findings.memories(result)


def test_computed_fits_are_shown(tmp_path: Path) -> None:
    from nearfar.fit import fit_rows
    from nearfar.paging import plain_fit as plain

    result = fixture.paging_result(["nvme"])
    few = [r for r in result.rows if r["memory_fraction"] == 1.0][:1]
    few = [{k: v for k, v in r.items() if k != "tlb_miss_rate"} for r in few]
    whole = [r for r in result.rows if r["memory_fraction"] != 1.0]
    solved = [*fit_rows(whole), *fit_rows(few)]
    made = [plain(fit) for fit in solved]
    result = replace(result, fits=made)
    assert [findings.memory_of_fit(f) for f in made] == [None, *findings.memories(result)]
    assert made[-1]["verdict"] == "bad"
    assert made[-1]["curve"] == []
    first = solved[0].to_dict()
    name, value = next(iter(first["coefficients"].items()))
    low, high = first["intervals"][name]
    assert made[0]["coefficients"][name] == {"value": value, "low": low, "high": high}
    assert made[0]["points"][0] == [512, first["measured"][0], first["fitted"][0]]
    text = printed(tables.paging(result, full=True))
    assert made[0]["formula"] in text
    assert f"page size in {made[0]['page_unit']}" in text
    path = tmp_path / "page.html"
    path.write_text(PagingPage(result).html(), encoding="utf-8")
    with browser.opened(path) as (page, problems):
        browser.settled(page)
        assert marks(page, "tlb", "line") == 1
        assert page.locator("#fits tbody tr").count() == len(made)
    assert problems == []


def test_ink_keeps_contrast_on_every_colour() -> None:
    def luminance(colour: str) -> float:
        """Relative luminance, as WCAG 2 defines it; the least contrast is 4.5 there too."""
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in palette.ramp(64, 0, 1):
        pair = sorted([luminance(colour), luminance(palette.ink(colour))])
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, colour


# --- tables


def test_piped_tables_are_plain_ascii_and_uncut() -> None:
    text = printed(tables.paging(fixture.paging_result(), full=True))
    assert text.isascii()
    assert "\x1b" not in text
    assert "~" not in text
    # 13 page sizes, 10 memory sizes and 3 storages; each memory and storage has a marked best page.
    assert sum(1 for line in text.splitlines() if re.match(r" *(optane|nvme|desktop)", line)) == 390
    assert text.count(" * ") == 30


def test_compact_table_names_the_best_pages() -> None:
    result = fixture.paging_result()
    text = printed(tables.paging(result))
    first = findings.best_pages(result)
    line = next(x for x in text.splitlines() if x.strip().startswith("50 %, 12 MiB"))
    for name in fixture.STORAGES:
        found = next(b for b in first.values() if b.memory.fraction == 0.5 and b.storage == name)
        assert units.size(found.page_bytes) in line
    assert "BAD" not in text
    assert printed(tables.paging(result, full=True)).count("BAD: R2 below 0.9") == 2


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    colour = printed(tables.paging(fixture.paging_result()), Terminal())
    assert "\x1b[" in colour
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colour)
    assert max(map(len, bare.splitlines())) <= width


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(tables.paging(fixture.paging_result()), Terminal())
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", text)
    assert "\x1b" not in terminal.paging(fixture.paging_result(), 80, stream=Terminal())


def test_info_table_shows_names_as_they_are() -> None:
    info = fixture.info()
    info["regions"][0]["name"] = "[red]" + HOSTILE
    text = printed(tables.info(info))
    assert "[red]</script>" in text
    assert "\x1b" not in text
    assert "31 300 000" in text


# --- terminal plots


def test_a_plot_has_the_terminals_own_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = terminal.paging(fixture.paging_result(), 80, stream=Terminal())
    colours = set(re.findall(r"\x1b\[([0-9;]*)m", text))
    assert any(colour.startswith("38;") for colour in colours)
    assert not any(colour.startswith(("4", "7")) for colour in colours)


@pytest.mark.parametrize("width", [44, 80, 140])
def test_plot_fits_its_width(width: int) -> None:
    text = terminal.paging(fixture.paging_result(), width, 14, full=True)
    assert text.isascii()
    assert max(map(len, text.splitlines())) == width
    assert text.count("fault rate per reference") == 1
    assert text.count("TLB miss rate per reference") == 1
    assert "512B" in text
    assert "2MiB" in text
    if width == 140:
        assert text.count("KiB") == 2 * 10  # room for every label


def test_plot_omits_labels_that_would_overlap() -> None:
    result = fixture.paging_result()
    kept = {512: 512, 1024: 1024, 4096: 4096, 2 << 20: 2 << 30}
    rows = [
        {**row, "page_bytes": kept[row["page_bytes"]]}
        for row in result.rows
        if row["page_bytes"] in kept
    ]
    result = replace(result, rows=rows)
    labels = terminal.paging(result, 80, 14, full=True).splitlines()[-1].split()
    assert labels == ["512B", "4KiB", "2GiB"]


def test_plot_distinguishes_series_without_colour() -> None:
    text = terminal.paging(fixture.paging_result(), 80, 16, full=True)
    for mark, label in zip("ox+*", ("10 %", "40 %", "70 %", "100 %"), strict=True):
        assert re.search(rf"{re.escape(mark * 2)} {label} memory", text)


def test_a_note_replaces_a_plot_that_does_not_fit() -> None:
    assert terminal.paging(fixture.paging_result(), 30) == "(no plot: 30 columns; it needs 44)\n"


def test_plot_of_zeros_says_so() -> None:
    result = fixture.paging_result()
    for entry in result.rows:
        entry["tlb_miss_rate"] = 0.0
    assert "TLB miss rate per reference, by page size: zero" in terminal.paging(
        result, 80, full=True
    )


# --- pages, as text


def pages() -> dict[str, str]:
    return {
        "paging": PagingPage(
            fixture.paging_result(), heatmap=fixture.heat_map(256, 256), info=fixture.info()
        ).html(),
        "info": InfoPage(fixture.info(fixture.heat_map(256, 256))).html(),
    }


def test_pages_are_small_self_contained_and_repeatable() -> None:
    first = pages()
    assert first == pages()
    for text in first.values():
        assert len(text.encode()) < 3_000_000
        assert '<html lang="en">' in text
        assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", text)
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", text)
        assert "/root/" not in text


def test_result_is_embedded_unchanged() -> None:
    result = fixture.paging_result(trace=HOSTILE)
    text = PagingPage(result).html()
    found = re.search(r'id="data-result">(.*?)</script>', text)
    assert found
    assert json.loads(found[1]) == result.to_dict()


def test_numbers_that_json_lacks_become_null() -> None:
    result = fixture.paging_result()
    result.fits[0]["rmse"] = math.nan
    found = re.search(r'id="data-result">(.*?)</script>', PagingPage(result).html())
    assert found
    assert json.loads(found[1])["fits"][0]["rmse"] is None


def test_the_charts_script_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vl_convert

    made = iter(["first", "second"])
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda *_, **__: next(made))
    library = page_module._library.__wrapped__
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [library(), library()] == ["first", "first"]
    (kept,) = (tmp_path / "cache" / "nearfar").iterdir()
    assert kept.read_text() == "first"
    # Without a writable cache, it is bundled each time.
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert library() == "second"


def test_a_misshapen_heat_map_is_refused() -> None:
    heat = fixture.heat_map(20, 10)
    heat["counts"] = heat["counts"][:-1]
    with pytest.raises(NearfarError, match="10 address bins of 20 time bins"):
        InfoPage(fixture.info(heat)).html()


# --- pages, in the browser


def scroll_width(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def marks(page: Any, chart: str, kind: str) -> int:
    return int(page.locator(f"#{chart}-chart .mark-{kind} path").count())


def visible(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u00b5s", "us")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, text in pages().items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


def test_choosing_memory_and_storage_moves_the_best_page(written: Path) -> None:
    best = findings.best_pages(fixture.paging_result())
    sentences = {
        (b.memory.fraction, b.storage): (b.sentence, units.size(b.page_bytes))
        for b in best.values()
    }
    assert len({size for _, size in sentences.values()}) > 1

    with browser.opened(written / "paging.html") as (page, problems):
        assert scroll_width(page) <= 1280

        def check(share: float, storage: str) -> None:
            browser.settled(page)
            sentence, size = sentences[share, storage]
            assert visible(page.inner_text("#finding")) == sentence
            page.evaluate("document.querySelector('#times details').open = true")
            marked = page.locator("#times-table tr.marked th")
            assert visible(marked.inner_text()) == f"{size} (best)"
            # The one opaque pair of bars is the best page's.
            labels = page.locator(
                '#times-chart .mark-rect path[opacity="1"], '
                "#times-chart .mark-rect path:not([opacity])"
            )
            assert {
                visible(labels.nth(i).get_attribute("aria-label") or "").split(";")[0]
                for i in range(labels.count())
            } == {f"label: {size}"}
            pressed = page.locator('button.cell[aria-pressed="true"]')
            assert pressed.count() == 1
            assert size in visible(pressed.inner_text())

        check(0.5, "optane-ssd")
        page.select_option("#storage", label="desktop-hdd")
        check(0.5, "desktop-hdd")
        # By keyboard: Tab from storage reaches the chart's controls; arrows change a select.
        page.focus("#memory")
        page.keyboard.press("ArrowDown")
        check(0.6, "desktop-hdd")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "storage"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "zoom"
        page.keyboard.press("Space")
        check(0.6, "desktop-hdd")
        page.locator('button.cell[data-memory="0"][data-storage="1"]').focus()
        page.keyboard.press("Enter")
        check(0.1, "nvme")
        assert page.input_value("#memory") == "0"
        assert page.input_value("#storage") == "1"
    assert problems == []


def test_curves_points_and_series_can_be_switched(written: Path) -> None:
    with browser.opened(written / "paging.html") as (page, problems):
        browser.settled(page)
        # At first, five of ten memory sizes are drawn.
        assert marks(page, "faults", "line") == 5
        assert marks(page, "faults", "symbol") == 5 * len(fixture.PAGES)
        # Bad fits are dotted.
        dashes = page.evaluate(
            "[...document.querySelectorAll('#faults-chart .mark-line path')]"
            ".map(p => p.getAttribute('stroke-dasharray'))"
        )
        assert {d.replace(",", " ") for d in dashes} == {"1 0", "6 3", "2 3"}
        page.uncheck("#faults-curves")
        browser.settled(page)
        assert marks(page, "faults", "line") == 0
        assert marks(page, "faults", "symbol") == 5 * len(fixture.PAGES)
        page.focus("#faults-curves")
        page.keyboard.press("Space")
        page.uncheck("#faults-points")
        page.click("#series-all")
        browser.settled(page)
        assert marks(page, "faults", "line") == 10
        assert marks(page, "faults", "symbol") == 0
        page.click("#series-none")
        page.uncheck("#faults-log")
        page.check("#faults-points")
        page.check('input.series[value="9"]')
        browser.settled(page)
        assert marks(page, "faults", "line") == 1
        page.uncheck("#tlb-curves")
        browser.settled(page)
        assert marks(page, "tlb", "line") == 0
        assert marks(page, "tlb", "symbol") == len(fixture.PAGES)
        page.check("#tlb-curves")
        page.uncheck("#tlb-log")
        browser.settled(page)
        assert marks(page, "tlb", "line") == 1
        page.locator("#tlb-chart .mark-symbol path").first.hover()
        page.wait_for_selector("#vg-tooltip-element.visible")
        assert "512" in page.inner_text("#vg-tooltip-element")
        assert page.locator(".verdict.bad").count() == 2
        assert "2 of 11 fits are bad" in page.inner_text("#fits .warning")
    assert problems == []


def test_pages_fit_a_phone_and_adapt_when_it_is_turned(written: Path) -> None:
    with browser.opened(written / "paging.html", width=360) as (page, problems):
        browser.settled(page)
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
        assert scroll_width(page) <= 360
        for chart in page.locator(".chart").all():
            box = chart.locator("svg").bounding_box()
            assert 200 < box["width"] <= 360
        page.set_viewport_size({"width": 800, "height": 700})
        browser.settled(page)
        assert scroll_width(page) <= 800
        assert page.locator(".chart svg").first.bounding_box()["width"] > 500
        page.emulate_media(color_scheme="dark")
        browser.settled(page)
        assert page.locator(".chart svg").first.is_visible()
    assert problems == []


def test_every_control_is_reached_by_keyboard_and_named(written: Path) -> None:
    with browser.opened(written / "paging.html") as (page, problems):
        browser.settled(page)
        wanted = page.evaluate(
            "[...document.querySelectorAll('select,input,button,summary')].length"
        )
        reached = page.evaluate(
            """() => [...document.querySelectorAll('select,input,button,summary')]
            .filter(e => { e.focus(); return document.activeElement === e && e.tabIndex >= 0; })
            .length"""
        )
        assert wanted > 50
        assert reached == wanted
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('select,input,button')]
            .filter(e => !e.textContent.trim() && !e.labels?.[0]?.textContent.trim()
              || e.tagName === 'SELECT' && !e.labels.length).map(e => e.outerHTML)"""
        )
        assert nameless == []
        for figure in page.locator("figure").all():
            assert figure.locator("figcaption").inner_text()
            assert figure.locator("[role=img]").first.get_attribute("aria-label")
        levels = page.evaluate(
            "[...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))"
        )
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        own = [i for i in ids if not i.startswith(("vg-", "gradient"))]
        assert len(own) == len(set(own))
    assert problems == []


def test_the_heat_map_is_an_image(written: Path) -> None:
    with browser.opened(written / "info.html") as (page, problems):
        browser.settled(page)
        ticks = page.locator("#heat-ticks span").all_inner_texts()
        assert [visible(tick) for tick in ticks] == ["0 s", "3.2 s", "6.4 s", "16 s", "25.6 s"]
        # One pixel per cell, in many colours.
        seen = page.evaluate(
            """() => { const i = document.getElementById('heat-map');
            const c = document.createElement('canvas');
            c.width = i.naturalWidth; c.height = i.naturalHeight;
            c.getContext('2d').drawImage(i, 0, 0);
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            const s = new Set(); for (let i = 0; i < d.length; i += 404) s.add(d[i] * 65536
              + d[i + 1] * 256 + d[i + 2]); return [c.width, c.height, s.size]; }"""
        )
        assert seen[:2] == [256, 256] and seen[2] > 10
    assert problems == []


def test_downloads_hold_the_result(written: Path) -> None:
    result = fixture.paging_result()
    with browser.opened(written / "paging.html") as (page, problems):
        with page.expect_download() as saved:
            page.click("#save-json")
        assert json.loads(Path(saved.value.path()).read_text()) == result.to_dict()
        with page.expect_download() as saved:
            page.click("#save-csv")
        rows = list(csv.DictReader(Path(saved.value.path()).read_text().splitlines()))
        assert len(rows) == len(result.rows)
        assert list(rows[0]) == list(result.rows[0])
        assert float(rows[-1]["total_ns"]) == result.rows[-1]["total_ns"]
    assert problems == []


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    result = fixture.paging_result([HOSTILE, "=1+1"], trace=HOSTILE, **{HOSTILE: HOSTILE})
    result.fits[0]["reason"] = HOSTILE
    heat = fixture.heat_map(30, 20)
    info = fixture.info(heat)
    info["trace"] = HOSTILE
    info["regions"][0]["name"] = HOSTILE
    for entry in heat["address_bins"]:
        entry["label"] = HOSTILE
    heat["address_bins"][-1]["addr_high"] = 2**64 - 1
    for name, text in {
        "paging": PagingPage(result, heat, info).html(),
        "info": InfoPage(info).html(),
    }.items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        with browser.opened(path) as (page, problems):
            browser.settled(page)
            assert page.locator("img:not(#heat-map)").count() == 0
            # The heading is the trace's path after the last slash.
            assert "script><img src=x" in page.inner_text("h1")
            assert page.locator(".bands span").first.inner_text().startswith("</script>")
            bars = page.locator(".chart .mark-rect path")
            bars.first.hover()
            page.wait_for_selector("#vg-tooltip-element.visible")
            assert page.locator("#vg-tooltip-element img").count() == 0
            if name == "paging":
                page.select_option("#storage", index=1)
                browser.settled(page)
                assert "=1+1" in page.inner_text("#finding")
        assert problems == []


def test_small_and_odd_results_still_make_a_page(tmp_path: Path) -> None:
    whole = fixture.paging_result()
    one = PagingResult({"trace": "t"}, whole.rows[:1], [])
    zero = replace(fixture.paging_result(["nvme"], fractions=False), fits=[])
    for entry in zero.rows:
        entry.update(tlb_miss_rate=0.0, fault_rate=0.0)
    for name, result in {"one": one, "zero": zero}.items():
        path = tmp_path / f"{name}.html"
        path.write_text(PagingPage(result).html(), encoding="utf-8")
        with browser.opened(path) as (page, problems):
            browser.settled(page)
            assert page.inner_text("#finding")
            page.uncheck("#faults-log")
            browser.settled(page)
        assert [p for p in problems if "Infinite extent" not in p] == []
    path = tmp_path / "empty.html"
    path.write_text(PagingPage(PagingResult({}, [], [])).html(), encoding="utf-8")
    with browser.opened(path, ready="#run") as (page, problems):
        assert "no rows" in page.inner_text("header")
    assert problems == []


# --- nearfar report


def test_report_draws_the_page_of_a_run(tmp_path: Path, nearfar: Run) -> None:
    from nearfar.numa import run as numa_run
    from nearfar.report import report

    made = alloc(["1G", "200G"])
    folder = made.write(tmp_path / "numa.run")
    assert report(folder) == report(folder)
    found = re.search(r'<script type="application/json" id="data-result">(.*?)<', report(folder))
    assert found and json.loads(found[1])["rows"] == made.to_dict()["rows"]
    page = tmp_path / "page.html"
    done = nearfar("report", folder, "-o", page, "--format", "json")
    assert done.returncode == 0, done.stderr
    expected = {"page": str(page), "bytes": page.stat().st_size, "runs": [str(folder)]}
    assert json.loads(done.stdout) == expected
    numa_run("4G").write(tmp_path / "pageless.run")
    with pytest.raises(NearfarError, match=r"numa run: has no HTML page; .*result\.parquet"):
        report(tmp_path / "pageless.run")


def test_runs_of_one_program_and_view_are_compared(tmp_path: Path) -> None:
    from nearfar.report import report

    options: dict[str, Any] = {"machine": "nvme", "memory": "100%", "page_sizes": "4K,16K"}
    folders = [tmp_path / f"{name}.run" for name in "abc"]
    redis, gnugo = (DATA / "captures" / f"{name}.trace" for name in ("redis", "gnugo"))
    first = paging(redis, **options)
    first.write(folders[0])
    second = paging(redis, replacement="linux", **options)
    second.write(folders[1])
    paging(gnugo, **options).write(folders[2])
    pages = RowsPage(together(folders))
    by_key = {(choice.key, choice.value): choice for choice in pages.choices}
    assert set(by_key) == {("run", "b.run"), ("page_bytes", "16 KiB")}
    ratios = [b["total_ns"] / a["total_ns"] for a, b in zip(first.rows, second.rows, strict=True)]
    assert list(by_key["run", "b.run"].ratios) == ratios, "those of one program"
    assert len(by_key["page_bytes", "16 KiB"].ratios) == 3
    text = report(folders)
    assert "machine nvme" in text and "gnugo.trace: lowest total" in text
    assert ">linux<" in text, "what differs between the runs"
    paging(redis, view="paper", **options).write(tmp_path / "paper.run")
    apart = RowsPage(together([folders[0], tmp_path / "paper.run"]))
    assert {choice.key for choice in apart.choices} == {"page_bytes"}
    alone = RowsPage(together([folders[0], folders[2]]))
    assert {choice.key for choice in alone.choices} == {"page_bytes"}
    alloc(["1G"]).write(tmp_path / "numa.run")
    with pytest.raises(NearfarError, match="give runs of one study"):
        report([folders[0], tmp_path / "numa.run"])


def test_the_page_of_a_sweep_has_its_choices(tmp_path: Path) -> None:
    made = swept(tmp_path)
    pages = RowsPage(made)
    text = pages.html()
    assert {choice.key for choice in pages.choices} >= {"replacement", "page_bytes", "storage"}
    assert "machine optane-ssd" in text and len(text.encode()) < 3_000_000
    rows = {row["replacement"]: row["total_ns"] for row in made.table.to_pylist()
            if row["trace"] == "sqlite.trace" and row["page_bytes"] == 32768
            and row["storage"] == "optane-ssd" and row["memory_fraction"] == 0.5}  # fmt: skip
    lru = next(c for c in pages.choices if c.value == REPLACEMENTS[1])
    ratio = rows[REPLACEMENTS[1]] / rows[REPLACEMENTS[0]]
    assert any(math.isclose(ratio, other) for other in lru.ratios)


def test_the_page_of_nearfar_run_has_its_summary() -> None:
    text = ran().html()
    assert "2 times as long as without nearfar: 4.00" in text.replace("\u00a0", " ")
    assert "on Linux 6.18" in text and "promotions" in text and "shadow copies" not in text
    assert "--alone measures" in ran(alone_seconds=None).html()


def test_an_ssd_without_faults_says_so() -> None:
    from nearfar.ssd import ssd

    trace = DATA / "captures" / "gzip.trace"
    text = ssd(trace, dram=["100M"]).html()
    assert "No fault reaches the flash" in text and 'id="service' not in text
    assert "No fault" not in ssd(trace, dram=["100K"]).html()
