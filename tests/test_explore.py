"""``nearfar report``: a study's own page where there is one, else rows, chart and differences."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import browser
from conftest import DATA, Run
from nearfar.errors import NearfarError
from nearfar.numa import alloc
from nearfar.numa import run as numa_run
from nearfar.paging import paging
from nearfar.report import report
from nearfar.report.html import explore
from nearfar.ssd import ssd
from nearfar.sweep import sweep
from nearfar.tiering import tiering

TRACE = DATA / "captures" / "gzip.trace"
HOSTILE = "</script><script>alert(1)</script>'\"&"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every study, a second one of tiering, and a sweep."""
    from nearfar.advise import advise

    folder = tmp_path_factory.mktemp("runs")
    paging(TRACE, memory="50%,100%", page_sizes="4K,64K").write(folder / "paging")
    advise(TRACE, storage=["optane-ssd"], page_sizes="4K,16K,64K").write(folder / "advise")
    ssd(TRACE, dram=["100K", "200K"]).write(folder / "ssd")
    alloc(["1G", "200G"]).write(folder / "numa")
    numa_run("4G").write(folder / "numa-run")
    more: dict[str, Any] = {"policy": "nomad,ssp", "scale": "1/1024", "rounds": 1, "seeds": 3}
    tiering(**more).write(folder / "cheap")
    tiering(cost_scale=1.5, **more).write(folder / "dear")
    shutil.copytree(TRACE, folder / "gzip.trace")
    shutil.copytree(DATA / "captures" / "sqlite.trace", folder / "sqlite.trace")
    (folder / "study.toml").write_text(
        'study = "paging"\n[grid]\ntrace = ["gzip.trace", "sqlite.trace"]\n'
        'replacement = ["clock", "lru"]\n[options]\nmachine = "optane-ssd"\n'
        'page_sizes = "4K,16K,64K"\nmemory = "50%,100%"\n',
        encoding="utf-8",
    )
    assert not sweep(folder / "study.toml", folder / "sweep", workers=2).failed
    return folder


def data(text: str, name: str) -> Any:
    found = re.search(f'<script type="application/json" id="data-{name}">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["paging"], True),
        (["advise"], True),
        (["numa"], True),
        (["cheap"], True),
        (["ssd"], True),
        (["numa-run"], False),
        (["sweep"], False),
        (["cheap", "dear"], False),
    ],
)
def test_every_run_has_a_page(runs: Path, tmp_path: Path, names: list[str], own: bool) -> None:
    text = report([runs / name for name in names])
    assert text == report([runs / name for name in names])
    assert len(text.encode()) < 3_000_000
    assert ("nearfar: report of" not in text) is own
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    ready = "svg.marks" if names != ["numa"] else "svg"
    with browser.opened(path, ready=ready) as (page, problems):
        assert page.locator("h1").is_visible()
        assert page.locator("table").count() > 0
    assert problems == []


def test_a_page_of_a_run_is_the_one_the_study_draws(runs: Path) -> None:
    from nearfar.advise import advise

    direct = advise(TRACE, storage=["optane-ssd"], page_sizes="4K,16K,64K")
    assert data(report([runs / "advise"]), "result")["rows"] == direct.to_dict()["rows"]


@pytest.fixture(scope="module")
def page_file(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "sweep.html"
    path.write_text(report([runs / "sweep"]), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_rows_are_filtered_and_axes_chosen(
    page_file: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    rows = 2 * 2 * 3 * 2 * 2
    with browser.opened(page_file, width, scheme) as (page, problems):
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.inner_text("#count") == f"{rows} of {rows} rows"
        page.select_option("select[data-column=trace]", label="gzip.trace")
        assert page.inner_text("#count") == f"{rows // 2} of {rows} rows"
        page.fill("#search", "lru")
        assert page.inner_text("#count") == f"{rows // 4} of {rows} rows"
        assert page.locator("#rows-table tbody tr").count() == rows // 4
        page.select_option("#pick-y", "fault_rate")
        page.select_option("#pick-x", "replacement")
        page.select_option("#pick-colour", "storage")
        page.check("#log")
        page.wait_for_function(
            "document.querySelector('#explore-chart').textContent.includes('fault_rate')"
        )
        page.fill("#search", "")
        page.select_option("#pick-sort", "-total_ns")
        column = page.locator("#rows-table thead th").all_inner_texts().index("total_ns")
        cells = page.locator(f"#rows-table tbody tr td:nth-child({column + 1})").all_inner_texts()
        scale = {"ns": 1, "\u00b5s": 1e3, "ms": 1e6, "s": 1e9}
        pairs = [cell.split("\u00a0") for cell in cells]
        values = [float(number) * scale[unit] for number, unit in pairs]
        assert values == sorted(values, reverse=True)
        with page.expect_download() as got:
            page.click("#save-csv")
        got.value.save_as(tmp_path / "rows.csv")
    assert problems == []
    with (tmp_path / "rows.csv").open(encoding="utf-8") as stream:
        saved = list(csv.DictReader(stream))
    assert len(saved) == rows // 2
    assert {row["trace"] for row in saved} == {"gzip.trace"}


def test_paired_differences_are_those_of_the_rows(runs: Path, page_file: Path) -> None:
    import polars

    frame = polars.read_parquet(runs / "sweep" / "dataset")
    keys = ["trace", "storage", "memory_fraction", "page_bytes"]
    both = frame.filter(polars.col("replacement") == "clock").join(
        frame.filter(polars.col("replacement") == "lru"), on=keys, suffix="_lru"
    )
    mean = float((both["fault_rate_lru"] / both["fault_rate"] - 1).mean())
    with browser.opened(page_file) as (page, problems):
        page.select_option("#pick-by", "replacement")
        page.select_option("#pick-of", "fault_rate")
        answer = page.locator("#differences-table tbody tr").inner_text().replace("\xa0", " ")
    assert problems == []
    cells = answer.split("\t")
    assert cells[:3] == ["lru", "clock", str(both.height)]
    assert float(cells[3].removesuffix(" %")) == pytest.approx(100 * mean, rel=0.01, abs=1e-6)


def test_large_sweeps_stay_small_pages(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data(report([runs / "cheap", runs / "dear"]), "result")
    assert len(whole["columns"][0]["values"]) == 2 * 2 * 2 * 3
    size = len(json.dumps(whole["columns"], separators=(",", ":")))
    monkeypatch.setattr(explore, "MAX_CHARACTERS", size - 1)
    text = report([runs / "cheap", runs / "dear"])
    means = data(text, "result")
    assert len(means["columns"][0]["values"]) == 2 * 2 * 2
    assert "Means over seed" in text
    monkeypatch.setattr(explore, "MAX_CHARACTERS", size // 4)
    some = data(report([runs / "cheap", runs / "dear"]), "result")
    assert 0 < len(some["columns"][0]["values"]) < 8


def test_hostile_names_are_text(runs: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    shutil.copytree(runs / "dear", tmp_path / "bad'\"&<b>")
    table = pq.read_table(tmp_path / "bad'\"&<b>" / "result.parquet")
    place = table.column_names.index("policy")
    table = table.set_column(place, "policy", [[HOSTILE] * len(table)])
    pq.write_table(table, tmp_path / "bad'\"&<b>" / "result.parquet")
    # Rows that cannot be told apart are still drawn.
    path = tmp_path / "page.html"
    path.write_text(report([runs / "cheap", tmp_path / "bad'\"&<b>"]), encoding="utf-8")
    with browser.opened(path) as (page, problems):
        assert page.evaluate("document.querySelectorAll('b').length") == 0
        assert HOSTILE in page.inner_text("#rows-table")
    assert problems == []


def test_the_command(runs: Path, tmp_path: Path, nearfar: Run) -> None:
    page = tmp_path / "page.html"
    done = nearfar("report", runs / "sweep", "-o", page, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == page.stat().st_size
    again = nearfar("report", runs / "sweep", "-o", page)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert nearfar("report", runs / "sweep", "-o", page, "--force").returncode == 0
    mixed = nearfar("report", runs / "sweep", runs / "ssd", "-o", page, "--force")
    assert mixed.returncode == 2
    assert "different studies: paging, ssd" in mixed.stderr
    with pytest.raises(NearfarError, match="no run is named"):
        report([])
