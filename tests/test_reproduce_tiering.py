"""SSP (003) and NOMAD's tables: the published data, and that rows are computed from it."""

from __future__ import annotations

import pytest

from nearfar.errors import NearfarError
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
    rows = {row["item"]: row for row in study._paper_003(options)}
    assert len(rows) == 26
    assert all(list(row) == KEYS for row in rows.values())
    for notice in ("dirty-bit", "shadow-fault"):
        assert rows[f"figure 4: shadow copies, read, {notice}"]["ours"] > 0.95
        written = rows[f"figure 4: shadow copies, write, {notice}"]["ours"]
        assert written < rows[f"figure 4: shadow copies, mixed by page, {notice}"]["ours"] < 0.95
        assert rows[f"figures 2 and 3: shadow reclaims, write, fall, {notice}"]["holds"]
        assert rows[f"figure 5: bandwidth, write, {notice}"]["ours"] > 1.0


def test_write_protection_costs_what_ssp_gains() -> None:
    """With a fault for every first write, SSP has no bandwidth over NOMAD."""
    options = {"scale": "1/128", "threads": 0, "progress": None}
    watched = {"knobs": {"ssp.notice": "write-protect"}}
    assert study._run("write", options | watched).bandwidth("dirty-bit") < 1.03
