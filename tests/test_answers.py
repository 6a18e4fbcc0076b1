"""The first lines of a paging study, which advise page size, memory and storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import report_fixture as fixture
from capturing import needs_cc, needs_qemu
from nearfar import paging_answers as answers
from nearfar.advise import advise
from nearfar.capture import capture
from nearfar.memory_curve import Memory
from nearfar.paging import PagingResult, paging
from nearfar.size import size

MIB = 1 << 20
#: Total nanoseconds with 10, 20, ... 100 MiB.
TIMES = (900.0, 300.0, 130.0, 250.0, 130.0, 106.0, 104.0, 103.0, 101.0, 100.0)


def study(times: tuple[float, ...] = TIMES, **run: Any) -> PagingResult:
    """A study of 4 KiB pages that takes ``times``, and of 64 KiB pages that take a tenth less."""
    (first, *_) = fixture.paging_result().rows
    own = {"storage": "disk", "cpu_ns": 1.0, "resident_bytes": 100 * MIB, "memory_fraction": None}
    rows = [
        {
            **first,
            **own,
            "page_bytes": page,
            "memory_bytes": 10 * (place + 1) * MIB,
            "total_ns": time * part,
            "resident_bytes": (100 + more) * MIB,
        }
        for page, part, more in ((4096, 1.0, 0), (65536, 0.9, 3))
        for place, time in enumerate(times)
    ]
    made: Any = {"peak_resident_bytes": 100 * MIB, "options": {}, **run}
    return PagingResult(made, rows, [])


def test_enough_memory_is_the_least_from_which_on_all_sizes_are_fast() -> None:
    """30 MiB is not enough, though it takes less time than 40 MiB."""
    (curve,) = answers.memory_curves(study())
    assert answers.curve_page(study()) == 4096 and curve.whole.bytes == 100 * MIB
    enough = {most: curve.enough(most).bytes // MIB for most in (0.0, 0.05, 0.06, 0.3, 1.5, 9.0)}
    assert enough == {0.0: 100, 0.05: 70, 0.06: 60, 0.3: 50, 1.5: 30, 9.0: 10}
    assert curve.thrashes_below == Memory(50 * MIB, None)


def test_a_program_that_never_takes_twice_as_long_does_not_thrash() -> None:
    (curve,) = answers.memory_curves(study((150.0, 100.0, 100.0), peak_resident_bytes=30 * MIB))
    assert curve.thrashes_below is None
    (_, memory) = answers.answers(study((150.0, 100.0, 100.0), peak_resident_bytes=30 * MIB))
    assert memory == (
        "Memory: with 20 MiB it is at most 5 % slower than with enough memory (30 MiB)."
    )


def test_no_memory_is_advised_unless_the_whole_resident_set_was_studied() -> None:
    assert answers.memory_curves(study(peak_resident_bytes=101 * MIB)) == []
    assert len(answers.answers(study(peak_resident_bytes=101 * MIB))) == 1


def test_the_answers_of_a_study() -> None:
    assert answers.answers(study()) == [
        "Page size: 64 KiB pages take 10 % (5 to 15 %) less time than 4 KiB pages, but 3 MiB more "
        "memory.",
        "Memory: with 70 MiB it is at most 5 % slower than with enough memory (100 MiB); below "
        "50 MiB it thrashes (takes more than twice as long).",
    ]


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (
            0.97,
            "stay with 4 KiB; 64 KiB pages take 3.0 % less time, which is within the error "
            "(5 points).",
        ),
        (1.2, "stay with 4 KiB; no other simulated size takes less time."),
    ],
)
def test_a_gain_within_the_error_advises_no_larger_page(part: float, sentence: str) -> None:
    found = study()
    for row in found.rows:
        row["total_ns"] *= part / 0.9 if row["page_bytes"] == 65536 else 1
    assert answers.answers(found)[0] == f"Page size: {sentence}"


def test_of_page_sizes_with_equal_gain_the_smallest_is_advised() -> None:
    found = study()
    found.rows.extend(
        [
            {**row, "page_bytes": 16384, "total_ns": row["total_ns"] * 0.93 / 0.9}
            for row in found.rows
            if row["page_bytes"] == 65536
        ]
    )
    assert answers.answers(found)[0] == (
        "Page size: 16 KiB pages take 7 % (2 to 12 %) less time than 4 KiB pages, but 3 MiB more "
        "memory; 64 KiB pages would gain 3.0 points more, which is within the error."
    )
    for row in found.rows:
        row["total_ns"] *= 1.025 if row["page_bytes"] == 16384 else 1
    assert answers.answers(found)[0].startswith("Page size: 64 KiB pages take 10 %")


@pytest.mark.parametrize(("slowdown", "mib"), [("30%", 50), (0.06, 60)])
def test_the_slowdown_option_sets_the_advised_memory(slowdown: str | float, mib: int) -> None:
    (_, memory) = answers.answers(study(options={"slowdown": slowdown}))
    assert memory.startswith(f"Memory: with {mib} MiB it is at most")


def test_storages_are_compared_at_the_memory_that_is_enough_on_the_fastest() -> None:
    found = study()
    found.rows.extend(
        [{**row, "storage": "zram", "total_ns": row["total_ns"] ** 0.5 * 10} for row in found.rows]
    )
    (_, memory, storage) = answers.answers(found)
    assert "with 70 MiB on disk, 60 MiB on zram it is at most 5 % slower" in memory
    assert "below 50 MiB on disk, 20 MiB on zram it thrashes" in memory
    assert storage == "Storage: with 60 MiB, zram is fastest; disk takes 1.03 times as long."


def test_equally_fast_storages_make_no_difference() -> None:
    found = study()
    found.rows.extend([{**row, "storage": "zram"} for row in found.rows])
    assert answers.answers(found)[-1] == "Storage: with 70 MiB or more it makes no difference."


def test_the_paper_view_compares_page_sizes_at_the_middle_memory() -> None:
    (page, memory, *_) = answers.answers(fixture.paging_result(["disk"]))
    assert page.startswith("Page size: at 50 % memory on disk the best page is ")
    assert memory.startswith("Memory: with ")


#: With an argument, reads 32 MiB first; then writes them, and reads them at random.
READ_FIRST = """
#include <sys/mman.h>
int main(int argc, char **argv) {
    long n = 32 << 20, large = 2 << 20;
    volatile char *m =
        mmap(0, n + large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m = (char *)(((long)m + large - 1) & -large);
    if (argc > 1)
        for (long at = 0; at < n; at += 4096) (void)m[at];
    for (long at = 0; at < n; at += 4096) m[at] = 1;
    for (unsigned i = 0, x = 1; i < 300000; i++) {
        x = x * 1664525 + 1013904223;
        (void)m[(x >> 4) % n];
    }
    return 0;
}
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("words", [[], ["read"]])
def test_2_mib_pages_of_memory_that_is_read_first_need_linux_6_13(
    build: Callable[..., Path], tmp_path: Path, words: list[str]
) -> None:
    trace = capture([build(READ_FIRST), *words], tmp_path / "t.trace")
    sizes = "4K,2M"
    study = answers.answers(paging(trace, machine="nvme", page_sizes=sizes))[0]
    advice = advise(trace, machine="nvme", nested="2M", page_sizes=sizes).rows[0]["why"]
    plan = size(trace, machine="nvme").rows[0]["page_why"]
    for text in (study, advice, plan):
        assert ("2 MiB pages take" in text) or text.startswith("2 MiB: ")
        needs = "needs Linux 6.13 or later: 100 % of the 2 MiB pages are read before they are"
        assert (needs in text) == bool(words), text
