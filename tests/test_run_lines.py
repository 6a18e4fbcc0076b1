"""The summary that ``nearfar run`` prints at its end, for made-up outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from live_fixture import BUDGET, MIB, ran
from nearfar import live


def outcome(options: dict[str, Any] | None = None, **more: Any) -> live.Outcome:
    """A run with a budget in bytes, and without a run alone; ``more`` overrides values."""
    usual: dict[str, Any] = {
        "options": {"fast": "8M", "far": "zstd"} | (options or {}),
        "counters": dict.fromkeys(live.counters(), 0) | more.pop("counters", {}),
        "seconds": 3.7,
        **dict.fromkeys(("alone_seconds", "alone_exit_code", "alone_bytes")),
    }
    return ran(**{**usual, **more})


def test_the_summary_has_time_memory_moves_and_faults() -> None:
    counters = {
        "promotions": 10858, "shadow_copies": 4335, "demotions_copied": 6000,
        "demotions_remapped": 378, "faults": 60000, "hint_faults": 5823, "shadow_faults": 1721,
        "window_faults": 5837, "aborts": 20,
    }  # fmt: skip
    bare = {"alone_seconds": 2.05, "alone_exit_code": 0, "alone_bytes": 30 * MIB}
    assert str(outcome(counters=counters, **bare)).splitlines() == [
        "3.70 s (CPU 2.25 s), 1.8x as long as without nearfar (2.05 s). "
        "Peak: 7.5 MiB fast, 20 MiB far (compressed to 3 MiB)",
        "Promotions: 10,858 (4,335 kept a shadow). Demotions: 6,378 (378 to their shadow)",
        "Faults: 60,000 (hint 5,823, shadow 1,721, let through 5,837). Aborted copies: 20",
    ]


@pytest.mark.parametrize(("more", "says"), [
    ({}, "3.70 s (CPU 2.25 s; for the slowdown add --alone). Peak: "),
    ({"alone_seconds": 0.1, "alone_exit_code": 0},
     "37x as long as without nearfar (0.10 s). Peak: "),
    ({"alone_seconds": 2.0, "alone_exit_code": 1},
     "s), 2.00 s without nearfar, with exit code 1. Peak: "),
    ({"far_pages_bytes": 0, "far_bytes": 0}, "7.5 MiB fast, 0 B far"),
    ({"options": {"far": "shm"}}, "7.5 MiB fast, 20 MiB far"),
    ({"options": {"far": "lz4"}}, "20 MiB far (compressed to 3 MiB)"),
])  # fmt: skip
def test_the_first_line_says_what_is_known(more: dict[str, Any], says: str) -> None:
    first = str(outcome(**more)).splitlines()[0]
    assert says in first and (says.endswith(": ") or first.endswith(says)), first


def test_waits_for_the_far_tier_are_summarised() -> None:
    counters = {"fetches": 10, "fetches_ns": 2_000_000, "fetches_predicted_ns": 1_000_000,
                "slept": 7, "stalled": 3}  # fmt: skip
    assert str(outcome(counters=counters)).splitlines()[-1] == (
        "Waited for the far tier 10 times, 200 us each (predicted 100 us): "
        "7 slept, 3 kept a processor busy"
    )


UNMANAGED = "96 MiB in mappings that are not managed"
HELD = "8 MiB held in memory (locked, in I/O or shared with a child)"


@pytest.mark.parametrize(("more", "says"), [
    ({"resident_bytes": 112 * MIB, "unmanaged_bytes": 96 * MIB, "held_bytes": 8 * MIB},
     f"Resident: 112 MiB, 104 MiB above --fast 8M: {UNMANAGED}, {HELD}"),
    ({"resident_bytes": 112 * MIB, "unmanaged_bytes": 96 * MIB, "held_bytes": 0},
     f"Resident: 112 MiB, 104 MiB above --fast 8M: {UNMANAGED}"),
    ({"resident_bytes": 112 * MIB}, "Resident: 112 MiB, 104 MiB above --fast 8M"),
    ({"resident_bytes": 20 * MIB, "options": {"fast": "50%"}},
     "Resident: 20 MiB, 12 MiB above --fast 50% (8 MiB)"),
    ({"resident_bytes": 20 * MIB, "counters": {"over_budget": 3000}},
     "Resident: 20 MiB, 12 MiB above --fast 8M: the far tier was full (give more --far-size)"),
    ({"resident_bytes": 20 * MIB, "images": 9, "resident_processes": 2, "held_bytes": 8 * MIB},
     f"Resident: 20 MiB, 4 MiB above --fast 8M of each of 2 processes: {HELD}"),
    # At the budget, or above it by too little to matter.
    ({"resident_bytes": 8 * MIB, "unmanaged_bytes": 4 * MIB}, None),
    ({"resident_bytes": 8 * MIB + BUDGET // 25}, None),
    # The resident set, or its number of processes, is unknown.
    ({}, None),
    ({"resident_bytes": 20 * MIB, "images": 9}, None),
])  # fmt: skip
def test_memory_above_the_budget_is_explained(more: dict[str, Any], says: str | None) -> None:
    last = str(outcome(**more)).splitlines()[-1]
    assert last == says if says else not last.startswith("Resident")
