"""``nearfar paging --view machine``: the time per reference and its parts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from conftest import DATA, Run, refused
from nearfar import units
from nearfar.declared import paging as declared
from nearfar.explain import explain
from nearfar.generate import generate
from nearfar.machine import load
from nearfar.paging import paging

GNUGO = DATA / "captures" / "gnugo.trace"
PARTS = (
    "cpu_ns", "tlb_ns", "walk_ns", "cache_ns", "dram_ns", "fault_ns", "io_ns", "start_ns"
)  # fmt: skip


def times(trace: Path, **options: object) -> list[declared.Row]:
    """Rows of the machine view; by default, memory holds the whole footprint."""
    given = {"machine": "zen4-vm", "view": "machine", "memory": "100%", **options}
    return paging(trace, **given).rows  # type: ignore[arg-type]


def test_the_parts_add_up_to_the_total() -> None:
    rows = times(GNUGO)
    # Linux has no anonymous pages of 8 KiB.
    sizes = [4096 << power for power in range(7) if power != 1]
    assert [row["page_bytes"] for row in rows] == sizes
    for row in rows:
        parts = [row[part] for part in PARTS]  # type: ignore[literal-required]
        assert all(part >= 0 for part in parts), row
        assert math.isclose(sum(parts), row["total_ns"])
        assert math.isclose(row["translation_ns"] + row["data_ns"], row["total_ns"])


def test_the_papers_view_has_no_parts() -> None:
    rows = paging(GNUGO, machine="zen4-vm", memory="100%", page_sizes="4K", view="paper").rows
    assert all(rows[0][part] is None for part in (*PARTS, "resident_bytes"))  # type: ignore[literal-required]


def test_large_pages_save_page_walks_of_random_accesses(tmp_path: Path) -> None:
    trace = tmp_path / "walk.trace"
    generate("uniform", trace, refs=400_000, pages=40_000, seed=1)
    small, large = times(trace, page_sizes="4K,2M", nested="2M")
    assert (small["walk_ns"] or 0) > 20 * (large["walk_ns"] or 0)
    assert small["tlb_misses"] > 100_000 > large["tlb_misses"]
    # If the host has 4 KiB pages, TLB entries of the guest's large pages cover 4 KiB only.
    _, split = times(trace, page_sizes="4K,2M", nested="4K")
    assert split["tlb_misses"] > 100_000
    # Cache misses do not depend on the page size.
    assert small["dram_ns"] == pytest.approx(large["dram_ns"], rel=0.1)


def test_less_memory_leaves_processor_time_unchanged() -> None:
    half, whole = times(GNUGO, page_sizes="4K", memory="10%,100%", page_cache="warm")
    assert whole["io_ns"] == 0 < half["io_ns"]
    assert half["cpu_ns"] == whole["cpu_ns"]


def test_a_warm_page_cache_shortens_only_the_start() -> None:
    """It saves at most one read of each file page."""
    trace = DATA / "captures" / "memcached.trace"
    (cold,) = times(trace, page_sizes="4K")
    for cache in ("warm", "elsewhere"):
        (warm,) = times(trace, page_sizes="4K", page_cache=cache)
        assert {part: warm[part] for part in PARTS[:-1]} == {
            part: cold[part] for part in PARTS[:-1]
        }  # type: ignore[literal-required]
        assert 0 < (warm["start_ns"] or 0) < (cold["start_ns"] or 0)
    pages = cold["file_reads"] / cold["references"]
    alone = load("zen4-vm").io_ns("disk", [4096])[0]
    assert (cold["start_ns"] or 0) - (warm["start_ns"] or 0) < pages * alone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--machine", "desktop-nvm"), ("cpu.reorder_window", "--view paper")),
        (("--machine", "zen4-vm", "--page-sizes", "2K,4K"), ("2048", "--page-sizes 4K,...,2M")),
        (("--machine", "zen4-vm", "--nested", "64K"), ("--nested", "4K, 2M or 1G")),
        (("--machine", "zen4-vm", "--tlb", "32"), ("--tlb", "--set tlb.first.entries")),
        (
            ("--machine", "zen4-vm", "--filter", "cache"),
            ("--filter", "simulates the machine's caches"),
        ),
        (("--view", "paper", "--nested", "2M"), ("--nested", "--view machine")),
        (("--view", "paper", "--whole"), ("--whole", "--view machine")),
    ],
)
def test_mistakes_are_one_line(nearfar: Run, options: tuple[str, ...], words: list[str]) -> None:
    refused(nearfar("paging", GNUGO, "--view", "machine", *options), *words)


def test_explain_compares_the_parts_with_4k(nearfar: Run, tmp_path: Path) -> None:
    given = ("--machine", "zen4-vm", "--view", "machine", "--page-sizes", "4K,256K")
    assert nearfar("paging", GNUGO, *given, "-o", tmp_path / "a.run").returncode == 0
    rows = {row["page_bytes"]: row for row in times(GNUGO, page_sizes="4K,256K")}
    small, large = rows[4096], rows[256 << 10]
    found = explain(tmp_path / "a.run", page="256K", memory="100%")
    assert found.total["tlb_misses"] == large["tlb_misses"] > 0
    for places in (found.regions, found.ranges, found.sites, found.functions):
        assert sum(one["tlb_misses"] for one in places) == large["tlb_misses"]
    spent = sum(large[part] for part in ("tlb_ns", "walk_ns", "fault_ns", "io_ns", "start_ns"))  # type: ignore[literal-required]
    assert sum(one["ns"] for one in found.regions) == pytest.approx(spent)
    assert [term["ns"] for term in found.terms] == [large[part] for part in PARTS]  # type: ignore[literal-required]
    assert small["references"] == large["references"]
    usual = {part: small[part] for part in (*PARTS, "total_ns")}  # type: ignore[literal-required]
    assert [term["usual_ns"] for term in found.terms] == [usual[part] for part in PARTS]
    assert found.terms[0]["saved_ns"] == pytest.approx(0, abs=1e-9), "instructions gain nothing"
    own = [term["ns"] for term in found.terms if term["part"] == "T_A"]
    assert math.isclose(sum(own), large["translation_ns"])
    saved = [term["saved_ns"] or 0.0 for term in found.terms]
    assert math.isclose(sum(saved), usual["total_ns"] - large["total_ns"])
    gain = 1 - large["total_ns"] / usual["total_ns"]
    assert math.isclose(sum(term["gain"] or 0.0 for term in found.terms), gain)
    assert {row["name"] for row in found.table.to_pylist()} >= {"[stack]"}
    pytest.importorskip("altair")
    bars = found.plot().to_dict()["datasets"]["bars"]
    assert [bar["value"] for bar in bars[: len(PARTS)]] == [t["usual_ns"] for t in found.terms]
    shown = nearfar("explain", tmp_path / "a.run", "--page", "256K", "--memory", "100%").stdout
    word = "less" if gain >= 0 else "more"
    assert f"{units.percent(abs(gain))} {word} than with 4 KiB" in shown
    assert "Where the misses and faults are, by region" in shown


def test_explain_without_4k_or_of_4k_compares_nothing(nearfar: Run, tmp_path: Path) -> None:
    given = ("--machine", "zen4-vm", "--view", "machine", "--memory", "100%")
    for sizes, page in (("64K", "64K"), ("4K,64K", "4K")):
        run = tmp_path / f"{page}.run"
        assert nearfar("paging", GNUGO, *given, "--page-sizes", sizes, "-o", run).returncode == 0
        found = explain(run, page=page)
        assert all(term["gain"] is term["usual_ns"] is None for term in found.terms)
        assert math.isclose(sum(term["share"] for term in found.terms), 1)
        assert "than with 4 KiB" not in nearfar("explain", run, "--page", page).stdout
