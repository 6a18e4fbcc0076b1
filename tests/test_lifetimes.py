"""Page lifetimes (map to unmap) of real programs in ``nearfar paging``, against hand counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nearfar as package
from capturing import nearfar, needs_cc, needs_qemu
from nearfar.explain import explain

pytestmark = [needs_qemu, needs_cc]

#: Pages of each mapping in PROGRAM.
PAGES = 512

PROGRAM = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGE = 4096, PAGES = 512 };
static void write_all(volatile char *p, int pages) {
    for (int i = 0; i < pages; i++) p[i * PAGE] = 1;
}
static void read_all(volatile char *p, int pages) {
    for (int i = 0; i < pages; i++) (void)p[i * PAGE];
}
static char *map(int flags) {
    return mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
}
int main(int count, char **words) {
    int rounds = atoi(words[2]);
    char *kept = map(MAP_PRIVATE);
    if (*words[1] != 'r') write_all(kept, PAGES);
    for (int round = 0; round < rounds; round++) switch (*words[1]) {
    case 'b': write_all(sbrk(PAGES * PAGE), PAGES); sbrk(-PAGES * PAGE); break;
    case 'm': { char *p = map(MAP_PRIVATE); write_all(p, PAGES); munmap(p, PAGES * PAGE); break; }
    case 'd': madvise(kept, PAGES * PAGE, MADV_DONTNEED); write_all(kept, PAGES); break;
    case 'r': read_all(kept, PAGES); break;
    case 'w': write_all(kept, PAGES); break;
    case 's': { char *p = map(MAP_SHARED); write_all(p, PAGES); munmap(p, PAGES * PAGE); break; }
    case 'f':
        if (!fork()) { read_all(kept, PAGES); write_all(kept, 100); _exit(0); }
        wait(0);
        break;
    case 'g': {
        char *p = map(MAP_PRIVATE);
        write_all(p, PAGES);
        p = mremap(p, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE);
        write_all(p, PAGES);
        munmap(p, 2 * PAGES * PAGE);
        break;
    }
    }
    return 0;
}
"""

#: Pages that are zeroed or copied in a round of each mode of PROGRAM.
ROUND = {
    "brk": PAGES,
    "mmap": PAGES,
    "dontneed": PAGES,
    "read": 0,
    "write": 0,
    "shared": PAGES,
    "grow": PAGES,
}


@pytest.fixture(name="program", scope="module")
def _program(build: Callable[..., Path]) -> Path:
    return build(PROGRAM, "-O1", "-static")


def counts(
    program: Path, folder: Path, mode: str, rounds: int, memory: str = "100%"
) -> dict[str, Any]:
    """Capture a mode of the program; the only row of its paging study, and its peak in bytes."""
    trace = folder / f"{mode}-{rounds}.trace"
    if not trace.exists():
        done = nearfar("--follow-forks", "-o", trace, "--", program, mode, str(rounds))
        assert done.returncode == 0, done.stderr
    result = package.paging(trace, page_sizes="4K", memory=memory, storage=["nvm-1x"])
    assert result.run["pages_end"]
    (row,) = result.rows
    return {**row, "peak": result.run["peak_resident_bytes"]}


@pytest.mark.parametrize("mode", ROUND)
def test_zero_fills_of_a_round_equal_a_hand_count(program: Path, tmp_path: Path, mode: str) -> None:
    one, five = (counts(program, tmp_path, mode, rounds) for rounds in (1, 5))
    assert five["zero_fills"] - one["zero_fills"] == 4 * ROUND[mode]
    # Further rounds do not raise the peak, and at 100 % of memory nothing is swapped.
    assert five["peak"] == one["peak"]
    assert five["swap_ins"] == five["file_rereads"] == five["swap_outs"] == 0
    assert five["faults"] == five["zero_fills"] + five["file_reads"]


def test_a_fork_copies_what_is_written(program: Path, tmp_path: Path) -> None:
    one, five = (counts(program, tmp_path, "fork", rounds) for rounds in (1, 5))
    copied = (five["zero_fills"] - one["zero_fills"]) / 4
    # The child writes 100 pages; child and parent also write a few of their stacks and data.
    assert 100 <= copied <= 120
    # The copies are released when the child ends.
    assert one["peak"] <= five["peak"] <= one["peak"] + 8 * 4096


def test_released_memory_is_not_swapped_in(program: Path, tmp_path: Path) -> None:
    """A heap grows and shrinks by 2 MiB ten times, beside a mapping of 2 MiB; memory is 3 MiB."""
    row = counts(program, tmp_path, "brk", 10, memory="3M")
    # The unused mapping is swapped out once, heap pages perhaps in each round; none is read back.
    assert row["swap_ins"] <= 20
    assert row["swap_outs"] <= 10 * PAGES
    whole = counts(program, tmp_path, "brk", 10, memory="100%")
    assert whole["zero_fills"] == row["zero_fills"]


def test_without_lifetimes_each_page_faults_once(program: Path, tmp_path: Path) -> None:
    counts(program, tmp_path, "mmap", 5)
    trace = tmp_path / "mmap-5.trace"
    common = {"page_sizes": "4K", "memory": "100%", "storage": ["nvm-1x"]}
    result = package.paging(trace, lifetimes="off", **common)
    assert not result.run["pages_end"] and result.run["peak_resident_bytes"] is None
    (row,) = result.rows
    assert row["faults"] == row["zero_fills"] == row["pages"]
    assert row["memory_bytes"] == result.run["footprint_bytes"] == row["pages"] * 4096


def test_a_filter_counts_read_private_pages_in_the_peak(program: Path, tmp_path: Path) -> None:
    """The filter hides cached stores, so a private page that is only read may have been written."""
    counts(program, tmp_path, "mmap", 5)
    options: dict[str, Any] = {"page_sizes": "4K", "memory": "100%"}
    runs = [
        package.paging(tmp_path / "mmap-5.trace", filter=filter, **options).run
        for filter in ("none", "cache")
    ]
    assert all(run["pages_end"] for run in runs)
    whole, behind = (run["peak_resident_bytes"] for run in runs)
    assert 0 < behind < 1.1 * whole and behind < runs[1]["footprint_bytes"]


@pytest.mark.parametrize("page_cache", ["cold", "warm", "elsewhere"])
@pytest.mark.parametrize("view", ["none", "cache"])
def test_explain_reads_runs_with_lifetimes(
    program: Path, tmp_path: Path, page_cache: str, view: str
) -> None:
    counts(program, tmp_path, "dontneed", 2)
    trace = tmp_path / "dontneed-2.trace"
    options: dict[str, Any] = {"page_sizes": "4K,64K", "memory": "60%", "storage": ["nvm-1x"]}
    package.paging(trace, page_cache=page_cache, filter=view, **options).write(tmp_path / "run")
    found = explain(tmp_path / "run", page="64K")
    assert found.run["lifetimes"]
    assert found.total["faults"] > 0


def test_files_in_a_page_cache_elsewhere_take_no_memory(program: Path, tmp_path: Path) -> None:
    counted = counts(program, tmp_path, "write", 1)
    trace = tmp_path / "write-1.trace"
    common = {"page_sizes": "4K", "memory": "100%", "storage": ["nvm-1x"]}
    (warm,) = package.paging(trace, page_cache="warm", **common).rows
    (elsewhere,) = package.paging(trace, page_cache="elsewhere", **common).rows
    assert counted["file_reads"] > 0 == warm["file_reads"] == elsewhere["file_reads"]
    assert warm["faults"] == elsewhere["faults"] == counted["zero_fills"]
    assert elsewhere["memory_bytes"] < warm["memory_bytes"] == counted["memory_bytes"]
