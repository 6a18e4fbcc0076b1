"""Paper 003 and NOMAD's tables: the published data, and that rows are computed from it."""

from __future__ import annotations

import pytest

from nearfar.errors import NearfarError
from nearfar.report import reproduce as report
from nearfar.reproduce import reproduce
from nearfar.reproduce import tiering as study

KEYS = ["paper", "item", "published", "ours", "unit", "tolerance", "holds", "note"]


def test_published_numbers() -> None:
    ssp, nomad = study.published("ssp"), study.published("nomad")
    assert ssp["table1"]["write"] == {"faults": 236183, "reclaims": 14065758}
    assert ssp["figures"]["shadow_copies"] == {"write": 0.5, "mixed": 0.74, "read": 1.0}
    counts = [
        value
        for policy in ("tpp", "memtis", "nomad")
        for case in ("small", "medium", "large")
        for phase in ("in-progress", "stable")
        for mix in ("read", "write")
        for value in nomad["table2"][policy][case][phase][mix]
    ]
    assert len(counts) == 72
    assert nomad["table3"]["shadow_gb"] == [3.93, 2.68, 2.2, 0.58]
    with pytest.raises(NearfarError) as raised:
        study.published("nothing")
    assert raised.value.exit_code == 2


def test_holds_follows_from_the_tolerance() -> None:
    near = study._near("p", "i", 0.5, 0.54, 0.05, "x")
    assert list(near) == KEYS
    assert near["holds"] is True
    assert study._near("p", "i", 0.5, 0.56, 0.05, "x")["holds"] is False
    for ours, holds in ((101, True), (49, False), (201, False), (0, False)):
        assert study._within("p", "i", 100, ours, 2.0, "x")["holds"] is holds


def test_rows_of_paper_003_at_a_small_scale() -> None:
    """What does not hang on scale must hold at any: directions, and reads."""
    options = {"scale": "1/128", "threads": 0, "progress": None}
    rows = {row["item"]: row for row in study._paper_003(1, options)}
    assert len(rows) == 15
    assert all(list(row) == KEYS for row in rows.values())
    assert rows["figure 4: shadow copies, read"]["ours"] > 0.95
    written = rows["figure 4: shadow copies, write"]["ours"]
    assert written < rows["figure 4: shadow copies, mixed by page"]["ours"] < 0.95
    assert rows["figures 2 and 3: shadow reclaims, write, fall"]["holds"]
    assert rows["figure 5: bandwidth, write"]["ours"] > 1.05


def test_write_protection_costs_what_ssp_gains() -> None:
    """With a fault for every first write, SSP has no bandwidth over NOMAD."""
    options = {"scale": "1/128", "threads": 0, "progress": None}
    watched = {"knobs": {"ssp.notice": "write-protect"}}
    assert study._bandwidth(study._pair("write", 1, options | watched)) < 1.03


def test_the_whole_study() -> None:
    found = reproduce("tiering")
    assert {row["paper"] for row in found.rows} == {"003", "NOMAD"}
    assert len(found.rows) == 108
    usual, *others = found.sensitivity
    assert [case["setting"] for case in others] == [name for name, _, _ in study.VARIANTS]
    for case in others:
        assert case["rows"] == 15
        assert case["holds"] == usual["holds"] + len(case["more"]) - len(case["fewer"])
    assert any(case["fewer"] for case in others)
    for row in found.rows:
        assert ("; why: " in f"; {row['note']}") is not row["holds"], row["item"]
    assert "108 rows hold" in report.summary(found.to_dict())
