"""``nearfar reproduce ssd``: UMD, the DRAM-interface SSD of paper 002."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearfar import machine, trace, workload
from nearfar.errors import NearfarError
from nearfar.reproduce import (
    KEYS,
    Reproduced,
    published,
    reproduce,
    statements,
    within_tolerance,
)
from nearfar.reproduce import ssd as study
from nearfar.ssd import ssd

#: Two that tests name, and one that changes the machine. All would take 15 s.
ALTERNATIVES = tuple(
    alternative
    for alternative in study.ALTERNATIVES
    if alternative[0] in ("page cache atomic", "first touches read flash", "stripes of 4")
)


@pytest.fixture(scope="module")
def result() -> Iterator[Reproduced]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "ALTERNATIVES", ALTERNATIVES)
        yield reproduce("ssd")


def test_published_numbers() -> None:
    published = {one.key: one.published for one in statements("002")}
    times = [published[f"{epf}-{size}"] for size in (100, 150) for epf in ("none", "all", "smart")]
    assert times == [3.9, 3.25, 3.3, 3.2, 3.4, 3.2]
    assert (published["rate"], published["passed-smart"]) == (0.0011, 0.27)


def test_verdicts_follow_from_the_tolerances(result: Reproduced) -> None:
    rows = result.rows
    assert len(rows) == len(statements("002"))
    for row, one in zip(rows, statements("002"), strict=True):
        assert tuple(row) == KEYS
        within = within_tolerance(one.published, row["ours"], one.tolerance)
        assert row["holds"] is (None if one.input else within)
        assert within or one.input or "why: " in row["note"], row["item"]


def test_main_findings_hold(result: Reproduced) -> None:
    rows = {one.key: row for one, row in zip(statements("002"), result.rows, strict=True)}
    for key in ("faster-100", "long-100", "same-faults"):
        assert rows[key]["holds"], rows[key]


def test_every_alternative_is_judged_anew(result: Reproduced) -> None:
    usual, *others = result.sensitivity
    assert [case["setting"] for case in others] == [name for name, _, _ in ALTERNATIVES]
    for case in others:
        assert case["holds"] == usual["holds"] + len(case["more"]) - len(case["fewer"])
    (atomic,) = (case for case in others if case["setting"] == "page cache atomic")
    assert any("faster than no_EPF" in item for item in atomic["fewer"])
    (stored,) = (case for case in others if case["setting"] == "first touches read flash")
    assert any("only in flash" in item for item in stored["more"])


@pytest.mark.long("a whole study again")
def test_all_alternatives_are_judged() -> None:
    usual, *others = reproduce("ssd").sensitivity
    assert [case["setting"] for case in others] == [name for name, _, _ in study.ALTERNATIVES]
    for case in others:
        assert case["holds"] == usual["holds"] + len(case["more"]) - len(case["fewer"])


def test_recorded_seconds_of_page_views_are_recomputed() -> None:
    known = tomllib.loads(published("002/pigz"))
    for program in ("pigz", "pigz-45"):
        view = workload.bundled() / f"{program}-pages.trace"
        _, seconds = study.waits(view, ("l1d", "l1i", "l2"))
        assert seconds == pytest.approx(known[program]["view_seconds"], abs=1e-6)


def test_pigz_exceeds_100_mb_and_nearly_fits_150() -> None:
    view = workload.bundled() / "pigz-pages.trace"
    pages = trace.open(view).footprint_bytes // 4096
    assert 100 << 20 < pages * 4096 < 155 << 20
    rows = ssd(view, dram=["100M", "150M"], epf=["none"], atomic="none").rows
    for row in rows:
        # Few evicted pages return.
        beyond_dram = pages - row["dram_bytes"] // 4096
        assert beyond_dram <= row["services"] <= beyond_dram + 100


def test_the_table_of_predictions_counts_late_services(result: Reproduced) -> None:
    (table,) = (table for table in result.tables if table["title"].startswith("Service times"))
    assert [row[1] for row in table["rows"]] == [*study.POLICIES] * 2
    late = [row[table["headers"].index("late")] for row in table["rows"]]
    assert all(count != "0" for count in late)


def test_swapping_to_a_disk_is_slower_than_the_device(result: Reproduced) -> None:
    (table,) = (table for table in result.tables if table["title"].startswith("No device"))
    for row in table["rows"]:
        # 3.2 s is the shortest published time with the device.
        assert float(row[1].removesuffix(" s")) > 2 * 3.2


def test_tables_of_thresholds_threads_and_latencies(result: Reproduced) -> None:
    tables = {table["title"].partition(":")[0].partition(",")[0]: table for table in result.tables}
    thresholds = tables["Threshold of smart_EPF"]["rows"]
    assert (thresholds[0][0], thresholds[-1][0]) == ("0 us", "400 us")
    assert [row[0] for row in tables["Threads of a synthetic mix"]["rows"]] == [
        "1", "2", "4", "8", "16",
    ]  # fmt: skip
    # Reads take 25 us, programs of a stripe of 8 pages 200 us: thresholds in between act alike.
    passed = {row[0]: row[1].partition(", ")[2] for row in thresholds}
    assert passed["0 us"] == "100 %"
    assert passed["26 us"] == passed["50 us"] == passed["200 us"] != passed["224 us"]
    assert 0 < float(passed["50 us"].removesuffix(" %")) < 100 / 8
    assert "UMD (002)" in tables["Other latencies"]["rows"][0][0]


def test_the_error_for_a_missing_capture_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="nearfar workload capture pigz ") as raised:
        reproduce("ssd", traces=tmp_path)
    assert raised.value.exit_code == 3


def test_alternatives_set_only_keys_that_the_machine_has() -> None:
    settings = [changes.get("machine", {}) for _, _, changes in study.ALTERNATIVES]
    assert any(settings)
    for values in settings:
        changed = machine.load(study.MACHINE, set=values)
        assert {key for key, _ in changed.set_values} == {*values}
