"""``nearfar advise --regions``, ``--slowdown``, ``--set-memory``: a row's regions and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import browser
from conftest import DATA, Run, refused
from nearfar import units
from nearfar.advise import advise
from nearfar.advise.memory import guest_memory
from nearfar.errors import NearfarError
from nearfar.explain import explain
from nearfar.paging import paging
from nearfar.paging_answers import memory_curves
from nearfar.regions import _sized
from nearfar.run_folder import open_run

CAPTURES = DATA / "captures"
GRAPH, SQLITE = CAPTURES / "graph.trace", CAPTURES / "sqlite.trace"
MIB = 1 << 20


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    (row,) = advise(GRAPH, machine="zen4-vm", regions=True).rows
    return dict(row)


def test_regions_are_those_of_explain(row: dict[str, Any], tmp_path: Path) -> None:
    sizes = [point["page_bytes"] for point in row["curve"]]
    study = paging(GRAPH, view="machine", machine="zen4-vm", nested="4K", memory="100%",
                   page_sizes=sizes, storage="disk")  # fmt: skip
    study.write(tmp_path / "run")
    assert row["regions"] == explain(tmp_path / "run", page="4K", by_region=True).sizes
    assert {one["page_bytes"] for one in row["regions"]} == set(sizes)
    assert sum(one["advised"] for one in row["regions"]) == len(
        {one["name"] for one in row["regions"]}
    )


def test_a_size_whose_pages_do_not_fit_into_the_region_is_not_advised(row: dict[str, Any]) -> None:
    larger = [one for one in row["regions"] if one["advised"] and one["page_bytes"] > 4096]
    assert larger
    for one in larger:
        assert one["added_bytes"] >= 0 and one["resident_bytes"] >= one["page_bytes"]
    # Time, and bytes in whole pages, by page size: the region has no whole page of 2 MiB.
    times = {4096: (10.0, 512 << 10), 65536: (6.0, 576 << 10), 131072: (5.0, 512 << 10),
             2 * MIB: (1.0, 0)}  # fmt: skip
    assert [one["page_bytes"] for one in _sized("r", times, 100.0) if one["advised"]] == [131072]
    # The region has 8 KiB.
    times = {4096: (10.0, 8 << 10), 65536: (6.0, 8 << 10)}
    assert [one["page_bytes"] for one in _sized("r", times, 100.0) if one["advised"]] == [4096]


def test_a_run_folder_keeps_the_regions(row: dict[str, Any], tmp_path: Path) -> None:
    result = advise([GRAPH, SQLITE], machine="zen4-vm", regions=True)
    assert [one["vm"] for one in result.rows] == ["graph", "sqlite"]
    assert result.rows[0]["regions"] == row["regions"]
    result.write(tmp_path / "run")
    assert open_run(tmp_path / "run").result.rows == result.rows
    plain = advise(GRAPH, machine="zen4-vm")
    plain.write(tmp_path / "plain")
    assert not (tmp_path / "plain" / "regions.parquet").exists()
    assert open_run(tmp_path / "plain").result.rows == plain.rows


def test_terminal_and_page_show_the_regions(
    row: dict[str, Any], nearfar: Run, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = ("advise", GRAPH, "--machine", "zen4-vm", "--regions")
    done = nearfar(*words, "--html", page, first="import os; os.environ['COLUMNS'] = '80'")
    assert done.returncode == 0, done.stderr
    assert "Regions that gain by larger pages" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    largest = next(one for one in row["regions"] if one["advised"])
    assert largest["name"] in done.stdout
    assert json.loads(nearfar(*words, "--format", "json").stdout)["rows"][0]["regions"]
    for width in (1280, 390):
        with browser.opened(page, width=width, ready="#regions table") as (shown, problems):
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            assert largest["name"] in shown.locator("#regions").inner_text()
        assert not problems


def test_regions_are_refused_in_the_paper_view(nearfar: Run) -> None:
    done = nearfar("advise", GRAPH, "--machine", "optane-ssd", "--regions")
    refused(done, "--regions: does not apply to --view paper")


# --- memory


@pytest.mark.parametrize("view", ["machine", "paper"])
def test_the_advised_memory_is_that_of_the_paging_study(view: str) -> None:
    options: dict[str, Any] = {"machine": "nvme", "view": view}
    rows = advise([GRAPH, SQLITE], memory="50%", slowdown="30%", **options).rows
    for trace, row in zip((GRAPH, SQLITE), rows, strict=True):
        nested = {"nested": "4K"} if view == "machine" else {}
        study = paging(trace, page_sizes="4K", **options, **nested)
        (curve,) = memory_curves(study)
        assert row["enough_bytes"] == curve.enough(0.3).bytes
        assert row["wanted_bytes"] == curve.whole.bytes
        below = curve.thrashes_below
        assert row["thrashes_below_bytes"] == (below and below.bytes)
        assert "it is at most 30 % slower than with enough memory" in row["why"]
    without = advise(GRAPH, memory="50%", **options).rows[0]
    assert without["enough_bytes"] is None and "slower" not in without["why"]


def test_memory_is_advised_for_each_machine_and_storage() -> None:
    rows = advise(GRAPH, machine="nvme,desktop-hdd", memory="50%", view="paper", slowdown=0.5).rows
    assert {row["machine"] for row in rows} == {"nvme", "desktop-hdd"}
    for row in rows:
        (alone,) = advise(GRAPH, machine=row["machine"], storage=row["storage"], memory="50%",
                          view="paper", slowdown="50%").rows  # fmt: skip
        assert alone["enough_bytes"] == row["enough_bytes"]


def test_guest_memory_includes_the_guests_system() -> None:
    (row,) = advise(GRAPH, memory="64MiB", set_memory=True, whole=True).rows
    # 64 MiB, bloat, 256 MiB, and 1/64 of the total, rounded up to a multiple of 256 MiB.
    assert row["guest_memory_bytes"] == 512 * MIB
    program = units.size(64 * MIB + row["bloat_bytes"])
    assert row["bloat_bytes"] > 0 and f"512 MiB: {program} for the program, 256 MiB" in row["why"]
    assert [guest_memory(size * MIB) // MIB for size in (0, 248, 249, 7 * 1024)] == [
        512, 512, 768, 7680,
    ]  # fmt: skip
    for size in (1, 100, 3000, 90000):
        given = guest_memory(size * MIB)
        assert given % (256 * MIB) == 0
        assert given * 63 / 64 - 256 * MIB >= size * MIB > (given - 256 * MIB) * 63 / 64 - 256 * MIB
    (plain,) = advise(GRAPH, memory="64MiB").rows
    assert plain["guest_memory_bytes"] is None


def test_a_bad_slowdown_is_refused() -> None:
    with pytest.raises(NearfarError, match="--slowdown"):
        advise(GRAPH, slowdown="much")


# --- explain


def test_a_study_with_nested_pages_is_explained(tmp_path: Path) -> None:
    study = paging(GRAPH, view="machine", machine="zen4-vm", nested="2M", memory="100%")
    study.write(tmp_path / "run")
    found = explain(tmp_path / "run", page="4K")
    assert found.total["tlb_misses"] > 0
