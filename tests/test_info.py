"""``nearfar info``: its numbers, tables, page and ``--verify``; the engine has tests in Rust."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import declared
import pytest

import nearfar as package
from conftest import refused
from nearfar import generate
from nearfar.info import info, rows

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = ROOT / "tests" / "data" / "captures"
CAPTURE = CAPTURES / "gzip.trace"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A new trace of 1,000 records; unlike the bundled captures, it has checksums."""
    return generate.generate("zipf", tmp_path / "z.trace", refs=1000, pages=50)


def test_hot_parts_of_a_capture_have_functions():
    found = info(CAPTURE, reuse=False)
    assert found["hot"] and found["hot"][0]["function"]
    assert all(0 < part["function_share"] <= 1 for part in found["hot"])


def test_regions_of_a_capture_have_names():
    found = info(CAPTURE, reuse=False)
    regions = {r["name"]: r for r in found["regions"]}
    assert {"[heap]", "[stack]", "/usr/bin/gzip"} <= set(regions)
    assert any(name.startswith("page cache: ") for name in regions)
    # What the program touches has a name; at most a page (vdso, kernel helpers) has none.
    assert regions.get("(unnamed)", {"records": 0})["records"] < found["records"] / 100
    assert regions["/usr/bin/gzip"]["fetches"] > 0 == regions["[stack]"]["fetches"]
    assert sum(r["records"] for r in found["regions"]) == found["records"]
    for r in found["regions"]:
        parts = ("loads", "stores", "fetches", "kernel_loads", "kernel_stores")
        assert r["records"] == sum(r[part] for part in parts)
    heat = found["heatmap"]
    assert {b["label"] for b in heat["address_bins"]} <= set(regions)
    assert sum(map(sum, heat["counts"])) >= found["records"]
    assert found["reuse"] == []


def test_a_trace_without_regions_is_named_by_addresses(mixed: Path):
    found = info(mixed, reuse=False)
    (region,) = found["regions"]
    assert region["name"] == f"{region['addr_low']:#x}-{region['addr_high']:#x}"
    assert region["pages"] * 4096 == found["footprint_bytes"]
    assert found["mix"]["write_share"] == pytest.approx(0.3, abs=0.02)
    assert len(found["heatmap"]["address_bins"]) <= 256 == found["heatmap"]["time_bins"]


def test_the_command_prints_the_same_json_as_python(nearfar):
    done = nearfar("info", CAPTURE, "--format", "json")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout) == info(CAPTURE, heatmap=False)


def test_the_table_names_regions_and_working_set(nearfar):
    done = nearfar("info", CAPTURE, "--no-reuse")
    assert done.returncode == 0
    assert "[heap]" in done.stdout and "Working set" in done.stdout
    assert "Reuse" not in done.stdout


def test_csv_has_one_number_per_row(nearfar):
    done = nearfar("info", CAPTURE, "--format", "csv")
    lines = list(csv.reader(io.StringIO(done.stdout)))
    assert lines[0] == ["section", "item", "quantity", "value"]
    assert all(len(line) == 4 for line in lines)
    found = info(CAPTURE)
    assert ["trace", "", "records", str(found["records"])] in lines
    heap = next(r for r in found["regions"] if r["name"] == "[heap]")
    assert ["regions", "[heap]", "pages", str(heap["pages"])] in lines
    assert ["reuse", "first", "count", str(found["reuse"][-1]["count"])] in lines
    assert len(lines) == 1 + sum(1 for _ in rows(found))


def test_the_page_is_whole_and_self_contained(tmp_path: Path, nearfar):
    page = tmp_path / "page.html"
    done = nearfar("info", CAPTURE, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") or text.startswith("<!DOCTYPE html>")
    assert 'id="heat-map"' in text and "/usr/bin/gzip" in text
    assert len(text.encode()) < 3_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("place", ["", "nowhere/page.html"])
def test_an_unwritable_page_is_refused_before_the_work(place: str, tmp_path: Path, nearfar):
    refused(nearfar("info", CAPTURE, "--html", tmp_path / place), f"error: {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_verify_lists_files_with_sizes_and_checksums(small: Path, nearfar):
    found = info(small, verify=True)
    stated = json.loads((small / "trace.json").read_text())
    (part,) = stated["parts"]
    assert found["verified"] == [
        {
            "file": part["file"],
            "bytes": (small / part["file"]).stat().st_size,
            "rows": stated["records"],
            "checksum": part["checksum"],
        },
        {
            "file": "regions.parquet",
            "bytes": (small / "regions.parquet").stat().st_size,
            "rows": 0,
            "checksum": stated["regions"]["checksum"],
        },
    ]
    done = nearfar("info", small, "--verify")
    assert done.returncode == 0 and done.stdout.count("matches") == 2
    assert f"{part['checksum']} matches" in done.stdout
    assert "verified" not in info(small) and "matches" not in nearfar("info", small).stdout
    printed = nearfar("info", small, "--verify", "--format", "csv").stdout
    assert f'"verified","part-00000.parquet","checksum","{part["checksum"]}"' in printed


def test_verify_of_an_old_trace_says_that_it_has_no_checksum(nearfar):
    done = nearfar("info", CAPTURE, "--verify", "--no-reuse")
    assert done.returncode == 0 and done.stdout.count("no checksum") == 2
    seen = info(CAPTURE, verify=True, filter="cache", reuse=False)
    rows_of = [file["rows"] for file in seen["verified"]]
    assert rows_of[0] == package.open(CAPTURE).info["records"] > seen["records"]


def test_verify_finds_damage_that_reading_does_not(small: Path, nearfar):
    """The changed byte is in the footer, in the name of the tool that wrote the file."""
    part = small / "part-00000.parquet"
    whole = part.read_bytes()
    place = whole.rindex(b"nearfar 0.")
    part.write_bytes(whole[:place] + b"Nearfar" + whole[place + 7 :])
    assert info(small)["records"] == 1000
    refused(nearfar("info", small, "--verify"), f"error: {part}: has the checksum xxh3-128:")
    part.write_bytes(whole[:-1])
    refused(nearfar("info", small, "--verify"), f"{part}: ")


def test_every_key_is_in_the_docs():
    page = declared.with_tables(
        (ROOT / "docs" / "info.md").read_text(encoding="utf-8"), declared.schema()
    )
    found = info(CAPTURE, verify=True)
    keys = set(found) | set(found["heatmap"])
    for key in ("regions", "hot", "working_set", "reuse", "verified"):
        keys |= set(found[key][0])
    missing = sorted(key for key in keys if f"`{key}`" not in page)
    assert missing == []


def with_resident_sets(found):
    """A result with made-up resident sets, as from a trace whose events include unmapping."""
    points = [
        {**point, "resident_bytes": 4096 * (1 + number % 7)}
        for number, point in enumerate(found["working_set"])
    ]
    return {**found, "peak_resident_bytes": 7 * 4096, "working_set": points}


def test_resident_sets_are_shown_where_they_are_known():
    from rich.console import Console

    from nearfar.info import Info, rows
    from nearfar.report import tables

    def text(found):
        console = Console(width=100, record=True, quiet=True)
        with console.capture() as shown:
            console.quiet = False
            console.print(tables.info(found))
        return shown.get()

    found = info(CAPTURE, heatmap=False)
    assert found["peak_resident_bytes"] is None
    assert {point["resident_bytes"] for point in found["working_set"]} == {None}
    assert "esident" not in text(found)
    assert "Resident set over time" not in found.html()

    known = Info(with_resident_sets(found))
    assert "peak resident" in text(known)
    assert "28 KiB" in text(known)
    assert "Working set and resident set" in text(known)
    page = known.html()
    assert "Resident set over time" in page
    assert "peak resident" in page
    assert ("trace", "", "peak_resident_bytes", 28672) in list(rows(known))


def test_a_working_set_includes_nearly_all_of_random_accesses(tmp_path: Path) -> None:
    """A window of one heat-map interval would hold only a part of the 10 MB."""
    trace = tmp_path / "random.trace"
    generate.generate("uniform", trace, refs=250_000, pages=2442, seed=1)
    found = info(trace, heatmap=False)
    assert found["working_set_records"] >= 250_000 // 8
    whole_windows = found["working_set"][40:]
    assert all(2430 * 4096 <= row["bytes"] <= 2442 * 4096 for row in whole_windows)
