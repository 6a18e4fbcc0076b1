"""UMD (002): the published data, and that rows are computed from the study."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearfar import machine
from nearfar.errors import NearfarError
from nearfar.reproduce import KEYS, Reproduced, reproduce, statements, within_tolerance
from nearfar.reproduce import ssd as study


@pytest.fixture(scope="module")
def found() -> Reproduced:
    return reproduce("ssd")


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
        assert within or ("why: " in row["note"]), row["item"]


def test_what_the_study_must_find_whatever_is_left_open(found: Reproduced) -> None:
    rows = {one.key: row for one, row in zip(statements("002"), found.rows, strict=True)}
    for key in ("faster-100", "long-100", "same-faults"):
        assert rows[key]["holds"], rows[key]


def test_every_other_choice_is_judged_anew(found: Reproduced) -> None:
    usual, *others = found.sensitivity
    assert [case["setting"] for case in others] == [name for name, _, _ in study.OTHERWISE]
    for case in others:
        assert case["holds"] == usual["holds"] + len(case["more"]) - len(case["fewer"])
    (atomic,) = (case for case in others if case["setting"] == "page cache atomic")
    assert any("faster than no_EPF" in item for item in atomic["fewer"])


def test_the_figure_extended(found: Reproduced) -> None:
    tables = {table["title"].partition(":")[0].partition(",")[0]: table for table in found.tables}
    thresholds = tables["Threshold of smart_EPF"]["rows"]
    assert (thresholds[0][0], thresholds[-1][0]) == ("0 us", "400 us")
    assert [row[0] for row in tables["Threads of a synthetic mix"]["rows"]] == [
        "1", "2", "4", "8", "16",
    ]  # fmt: skip
    # A step between a clean and a written victim: any threshold there acts alike.
    passed = {row[0]: row[1].partition(", ")[2] for row in thresholds}
    assert passed["10 us"] == passed["50 us"] == passed["200 us"]
    assert passed["0 us"] == "100 %"
    assert passed["224 us"] != passed["200 us"]
    assert "UMD (002)" in tables["Other latencies"]["rows"][0][0]


def test_captures_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="nearfar workload capture pigz-45") as raised:
        reproduce("ssd", traces=tmp_path)
    assert raised.value.exit_code == 3


def test_every_change_of_the_machine_is_of_a_key_that_it_has() -> None:
    changes = [otherwise.get("machine", {}) for _, _, otherwise in study.OTHERWISE]
    assert any(changes)
    for change in changes:
        made = machine.load(study.MACHINE, set={**study._MACHINE, **change})
        assert {key for key, _ in made.set_values} == {*study._MACHINE, *change}
