"""Phases of a run: where the size of its working set shifts."""

from __future__ import annotations

from typing import Any

from nearfar.phases import phases, sentence

MIB = 1 << 20


def rows(sizes: list[int]) -> list[Any]:
    return [
        {"record": 100 * at, "bytes": size, "footprint_bytes": size, "resident_bytes": 2 * size}
        for at, size in enumerate(sizes, 1)
    ]


def test_a_shift_is_named_with_its_time_and_memory() -> None:
    found = phases(rows([95 * MIB] * 64 + [10 * MIB] * 192))
    assert [(phase.begin, phase.end) for phase in found] == [(0, 0.25), (0.25, 1)]
    assert [phase.working_bytes for phase in found] == [95 * MIB, 10 * MIB]
    assert [phase.resident_bytes for phase in found] == [190 * MIB, 20 * MIB]
    assert sentence(found) == ("the working set shifts: 95 MiB until 25 % of the run, then 10 MiB")


def test_a_steady_run_and_a_short_peak_are_one_phase() -> None:
    steady = [10 * MIB + at % 7 * MIB for at in range(256)]
    assert len(phases(rows(steady))) == 1
    assert len(phases(rows([*steady[:100], 95 * MIB, *steady[101:]]))) == 1
    assert sentence(phases(rows(steady))) == ""
    assert phases([]) == [] and len(phases(rows([MIB]))) == 1


def test_steady_growth_is_summarised_instead_of_listed() -> None:
    found = phases(rows([MIB * 1.2**at for at in range(64)]))  # type: ignore[list-item]
    assert len(found) > 8
    assert sentence(found).startswith("the working set keeps changing, between 1")
