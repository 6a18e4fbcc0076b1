"""UMD (002): the published data, and that rows are computed from the study."""

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

#: Those of which the tests say more, and one of the machine. The others take a quarter of a minute.
OTHERWISE = tuple(
    one
    for one in study.OTHERWISE
    if one[0] in ("page cache atomic", "first touches read flash", "stripes of 4")
)


@pytest.fixture(scope="module")
def found() -> Iterator[Reproduced]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "OTHERWISE", OTHERWISE)
        yield reproduce("ssd")


def test_published_numbers() -> None:
    published = {one.key: one.published for one in statements("002")}
    times = [published[f"{epf}-{size}"] for size in (100, 150) for epf in ("none", "all", "smart")]
    assert times == [3.9, 3.25, 3.3, 3.2, 3.4, 3.2]
    assert (published["rate"], published["passed-smart"]) == (0.0011, 0.27)


def test_rows_follow_from_the_tolerances(found: Reproduced) -> None:
    rows = found.rows
    assert len(rows) == len(statements("002"))
    for row, one in zip(rows, statements("002"), strict=True):
        assert tuple(row) == KEYS
        within = within_tolerance(one.published, row["ours"], one.tolerance)
        assert row["holds"] is (None if one.input else within)
        assert within or one.input or "why: " in row["note"], row["item"]


def test_what_the_study_must_find_whatever_is_left_open(found: Reproduced) -> None:
    rows = {one.key: row for one, row in zip(statements("002"), found.rows, strict=True)}
    for key in ("faster-100", "long-100", "same-faults"):
        assert rows[key]["holds"], rows[key]


def test_every_other_choice_is_judged_anew(found: Reproduced) -> None:
    usual, *others = found.sensitivity
    assert [case["setting"] for case in others] == [name for name, _, _ in OTHERWISE]
    for case in others:
        assert case["holds"] == usual["holds"] + len(case["more"]) - len(case["fewer"])
    (atomic,) = (case for case in others if case["setting"] == "page cache atomic")
    assert any("faster than no_EPF" in item for item in atomic["fewer"])
    (stored,) = (case for case in others if case["setting"] == "first touches read flash")
    assert any("only in flash" in item for item in stored["more"])


@pytest.mark.long("a whole study again")
def test_all_choices_are_judged() -> None:
    usual, *others = reproduce("ssd").sensitivity
    assert [case["setting"] for case in others] == [name for name, _, _ in study.OTHERWISE]
    for case in others:
        assert case["holds"] == usual["holds"] + len(case["more"]) - len(case["fewer"])


def test_what_the_view_cannot_know_is_that_of_the_program() -> None:
    known = tomllib.loads(published("002/pigz"))
    for program in ("pigz", "pigz-45"):
        view = workload.bundled() / f"{program}-pages.trace"
        _, seconds = study.waits(view, ("l1d", "l1i", "l2"))
        assert seconds == pytest.approx(known[program]["view_seconds"], abs=1e-6)


def test_100_mb_are_too_few_and_150_nearly_enough_by_what_pigz_touches() -> None:
    view = workload.bundled() / "pigz-pages.trace"
    pages = trace.open(view).footprint_bytes // 4096
    assert 100 << 20 < pages * 4096 < 155 << 20
    rows = ssd(view, dram=["100M", "150M"], epf=["none"], atomic="none").rows
    for row in rows:
        # Every page comes once; those that come again are few.
        once = pages - row["dram_bytes"] // 4096
        assert once <= row["services"] <= once + 100


def test_predictions_are_counted_and_their_errors_have_causes(found: Reproduced) -> None:
    (table,) = (table for table in found.tables if table["title"].startswith("Predictions"))
    assert [row[1] for row in table["rows"]] == [*study.POLICIES] * 2
    late = [row[table["headers"].index("late")] for row in table["rows"]]
    assert all(count != "0" for count in late)


def test_a_disk_in_place_of_the_device_is_slower(found: Reproduced) -> None:
    (table,) = (table for table in found.tables if table["title"].startswith("No device"))
    for row in table["rows"]:
        assert float(row[1].removesuffix(" s")) > 2 * 3.2


def test_the_figure_extended(found: Reproduced) -> None:
    tables = {table["title"].partition(":")[0].partition(",")[0]: table for table in found.tables}
    thresholds = tables["Threshold of smart_EPF"]["rows"]
    assert (thresholds[0][0], thresholds[-1][0]) == ("0 us", "400 us")
    assert [row[0] for row in tables["Threads of a synthetic mix"]["rows"]] == [
        "1", "2", "4", "8", "16",
    ]  # fmt: skip
    # Long is what programs a stripe: any threshold between a read and a program acts alike.
    passed = {row[0]: row[1].partition(", ")[2] for row in thresholds}
    assert passed["0 us"] == "100 %"
    assert passed["26 us"] == passed["50 us"] == passed["200 us"] != passed["224 us"]
    assert 0 < float(passed["50 us"].removesuffix(" %")) < 100 / 8
    assert "UMD (002)" in tables["Other latencies"]["rows"][0][0]


def test_captures_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="nearfar workload capture pigz ") as raised:
        reproduce("ssd", traces=tmp_path)
    assert raised.value.exit_code == 3


def test_every_change_of_the_machine_is_of_a_key_that_it_has() -> None:
    changes = [otherwise.get("machine", {}) for _, _, otherwise in study.OTHERWISE]
    assert any(changes)
    for change in changes:
        made = machine.load(study.MACHINE, set=change)
        assert {key for key, _ in made.set_values} == {*change}
