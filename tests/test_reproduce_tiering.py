"""``nearfar reproduce tiering``: NOMAD and selective shadow paging (SSP, paper 003)."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from capturing import needs_cc
from nearfar.declared import reproduce as declared
from nearfar.errors import NearfarError
from nearfar.reproduce import KEYS
from nearfar.reproduce import tiering as study
from nearfar.reproduce._live import MicroBenchmark
from nearfar.reproduce._tiering_rows import row_of
from nearfar.tiering import policies
from tiers import needs_userfaultfd


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
    near = row_of("p", "i", 0.5, 0.54, "within 0.05", "x")
    assert tuple(near) == KEYS
    assert near["holds"] is True
    assert row_of("p", "i", 0.5, 0.56, "within 0.05", "x")["holds"] is False


@pytest.fixture(scope="module")
def small() -> dict[str, declared.Row]:
    """Rows at a small scale, at which directions must hold too."""
    options = {"scale": "1/256", "threads": 0, "progress": None, "seeds": 3}
    return {row["item"]: row for row in study._paper_003(options)}


def test_rows_of_paper_003_at_a_small_scale(small: dict[str, declared.Row]) -> None:
    data = study.published("ssp")
    copies = [f"figure 4: shadow copies, {mix}" for mix in data["figures"]["shadow_copies"]]
    assert {*copies, "figure 5: bandwidth, write"} <= small.keys()
    assert all(tuple(row) == KEYS for row in small.values())
    read, write, split = (
        small[f"figure 4: shadow copies, {mix}"]["ours"]
        for mix in ("read", "write", "mixed by page")
    )
    assert read > 0.95 and write < split < 0.95
    assert small["figures 2 and 3: shadow reclaims, write, fall"]["holds"]


def test_policies_are_compared_by_medians_and_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected values are computed by hand."""
    counts = {"nomad": [10, 20, 30, 40, 50], "ssp": [1, 15, 16, 18, 19]}
    runs = [
        {"policy": policy, "seed": seed, "phase": phase, "shadow_faults": count / 2,
         "bandwidth_mb_s": count + (phase == "round-2")}
        for policy, values in counts.items()
        for seed, count in enumerate(values)
        for phase in ("warm-up", "round-1", "round-2")
    ]  # fmt: skip
    mix = object.__new__(study._Mix)
    series = [{**run, "shadow_bytes": run["shadow_faults"] * 4096} for run in runs]
    mix.result = types.SimpleNamespace(rows=runs, series=series)
    assert mix.ratio("shadow_faults")[0] == pytest.approx(16 / 30)
    ours, note = mix.separation("shadow_faults")
    assert (ours, note) == (
        pytest.approx(18 / 20),
        "NOMAD quartiles 20 to 40, SSP quartiles 15 to 18",
    )
    assert mix.ratio("bandwidth_mb_s")[0] == pytest.approx(17 / 31)
    assert mix.runs("nomad", "shadow_faults", rounds_only=False) == [15, 30, 45, 60, 75]
    assert mix.shadow_pages("nomad") == [5, 10, 15, 20, 25]


def test_the_sensitivity_tries_every_way_to_notice_writes() -> None:
    """Every value of SSP's knob `notice` but the default, with which rows are scored."""
    (ssp,) = (one for one in policies() if one["name"] == "ssp")
    (notice,) = (knob for knob in ssp["knobs"] if knob["name"] == "notice")
    kinds = notice["kind"].replace(" or ", ", ").split(", ")
    tried = {options.get("knobs", {}).get("ssp.notice") for _, _, options in study.VARIANTS}
    assert tried - {None} == {*kinds} - {notice["default"]}
    assert notice["default"] == "dirty-bit"


def test_ssp_gains_by_fewer_faults(small: dict[str, declared.Row]) -> None:
    """If first writes to pages without a shadow fault too (`write-protect`), SSP gains less."""
    gain = small["figure 5: bandwidth, write"]["ours"]
    assert gain > 1.05
    options = {"scale": "1/256", "threads": 0, "progress": None}
    watched = study._Mix("write", {**options, "knobs": {"ssp.notice": "write-protect"}})
    assert watched.ratio("bandwidth_mb_s")[0] < gain - 0.05


def test_statements_on_tpp_and_on_shadows_hold_in_direction() -> None:
    found = study._Policies({"scale": "1/512", "threads": 0, "progress": None}).paper_003()
    slower, swaps = found
    assert slower["published"] == 8 and slower["ours"] > 2
    assert swaps["published"] == "stated" and swaps["ours"] > 0 and swaps["holds"]


@needs_userfaultfd
@needs_cc
def test_the_papers_benchmark_runs_on_live_memory(tmp_path: Path) -> None:
    program = MicroBenchmark(tmp_path, 1 / 1024)
    measured = program.run("mixed", "ssp", 1, "13707M", "15559M")
    seen = measured.outcome.counters
    assert seen["promotions"] > seen["shadow_copies"] > 0
    assert len(measured.seconds) == 5 and measured.bandwidth_mb_s > 0
