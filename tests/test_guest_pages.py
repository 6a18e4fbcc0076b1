"""The bench case `guest-pages` (a guest's progress by page size): evaluation and record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import guest_tables
import kernel
import pytest
from cases import guest_pages
from table import recorded

from nearfar.errors import NearfarError

RECORD = recorded("guest-pages")


def cell(page_bytes: int, seconds: list[float], **more: Any) -> dict[str, Any]:
    """A cell with laps of these durations, half of each in the kernel."""
    return {
        "workload": "one",
        "part": 0.5,
        "page_bytes": page_bytes,
        "advised": {"paper": 4096, "machine": 65536},
        "laps": [
            {"user_seconds": each / 2, "system_seconds": each / 2, "major": 7} for each in seconds
        ],
        "ended": [],
        **more,
    }


def test_the_best_size_has_the_least_median_and_overlapping_ones_are_as_good() -> None:
    small, large = cell(4096, [1.0, 1.1, 1.2]), cell(65536, [1.15, 2.0, 2.2])
    none = cell(2 << 20, [], ended=[guest_pages.KILLED])
    own = [small, large, none]
    assert guest_pages.best(own) is small
    assert guest_pages.as_good(own) == [small, large]
    assert guest_pages.as_good([small, cell(65536, [1.3, 2.0, 2.2])]) == [small]
    assert guest_pages.chosen(own, "machine") is large
    assert guest_pages.lost(own, large) == pytest.approx(100 * (2.0 / 1.1 - 1))
    rows = {row.name: row for row in guest_pages.rows(own)}
    assert rows["longer than best, one, 50% of the memory, advice by --view paper"].value == 0
    assert rows["longer than best, one, 50% of the memory, advice by --view machine"].value > 80
    assert not any("2M" in name for name in rows)


def test_laps_are_found_in_split_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(guest_pages.Laps, "_begin", lambda _self: seen.append("begin"))
    monkeypatch.setattr(guest_pages.Laps, "_end", lambda _self: seen.append("end"))
    laps = guest_pages.Laps(kernel.Controller(tmp_path, 1), tmp_path, 4096, [None])
    for part in (b"beg", b"in\nend\nbegi", b"n\n", b"other\nend"):
        laps.read("output", part)
    assert seen == ["begin", "end", "begin"]
    assert not laps.late()


def test_shrinking_a_control_group_is_retried_while_the_kernel_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def write(_path: Path, text: str) -> None:
        written.append(text)
        if len(written) < 3:
            raise OSError(16, "busy")

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(guest_pages.time, "sleep", lambda _seconds: None)
    guest_pages.shrink(tmp_path / "limit", 4096)
    assert written == ["4096"] * 3
    monkeypatch.setattr(guest_pages, "_TRIES", 1)
    written.clear()
    with pytest.raises(OSError, match="busy"):
        guest_pages.shrink(tmp_path / "limit", 4096)


def test_times_and_faults_of_a_process_are_read() -> None:
    found = guest_pages.counts(os.getpid(), 4096)
    assert found["minor"] > 0 and found["user_seconds"] > 0 and found["swpin"] == 0


@pytest.mark.parametrize("well", [1, guest_pages.TRIES, guest_pages.TRIES + 1])
def test_a_boot_that_fails_is_repeated(well: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def booted(*_words: Any) -> tuple[list[dict[str, Any]], str]:
        calls.append(1)
        if len(calls) < well:
            raise NearfarError("panic", 1)
        return [{}], ""

    monkeypatch.setattr(guest_pages, "booted", booted)
    work: Any = SimpleNamespace(name="one")
    where = kernel.Controller(Path("/none"), 1)
    wanted = ([{}], "") if well <= guest_pages.TRIES else ([], guest_pages.PANIC)
    assert guest_pages.tried(where, work) == wanted
    assert len(calls) == min(well, guest_pages.TRIES)


def test_recorded_figures_come_from_the_cells() -> None:
    cells = RECORD["cells"]
    made = [row.to_dict() for row in guest_pages.rows(cells)]
    assert json.loads(json.dumps(made)) == RECORD["rows"]
    assert {each["workload"] for each in cells} == set(guest_pages.WORKLOADS)
    assert {each["part"] for each in cells} == set(guest_pages.PARTS)
    sizes = {each["page_bytes"] for each in cells}
    assert {4096, 16384, 2 << 20} <= sizes
    assert len(cells) == len(guest_pages.WORKLOADS) * len(guest_pages.PARTS) * len(sizes)
    assert not RECORD["options"]["quick"]
    for own in guest_pages.settings(cells):
        assert own[0]["laps"]
    for each in cells:
        # Little memory: every lap reads pages back from swap.
        assert all(lap["major"] > 0 for lap in each["laps"])


def test_every_cell_is_in_the_tables() -> None:
    assert guest_tables.every_cell().count("\n") == 2 + len(RECORD["cells"])
    assert guest_tables.advice().count("\n") == 2 + len(guest_pages.settings(RECORD["cells"]))
