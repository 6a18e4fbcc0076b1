"""``nearfar thp``: settings for huge pages, on programs with known answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from conftest import DATA, Run, refused
from nearfar import machine as machines
from nearfar.capture import capture
from nearfar.declared import thp as declared
from nearfar.errors import NearfarError
from nearfar.paging import paging
from nearfar.result import Result
from nearfar.thp import ThpResult, settings, thp
from nearfar.trace import open as open_trace

MEMCACHED = DATA / "captures" / "memcached.trace"
MIB = 1 << 20
#: Four areas of 16 MiB: the second has MADV_HUGEPAGE, the third and fourth MADV_NOHUGEPAGE. In each
#: 2 MiB, the first three touch one page, the fourth all but one; then it gets MADV_HUGEPAGE.
PROGRAM = """
#include <string.h>
#include <sys/mman.h>
#define MIB (1L << 20)
int main(void)
{
    char *all = mmap((void *)0x200000000000, 64 * MIB, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    madvise(all + 16 * MIB, 16 * MIB, MADV_HUGEPAGE);
    madvise(all + 32 * MIB, 32 * MIB, MADV_NOHUGEPAGE);
    for (long at = 0; at < 48 * MIB; at += 2 * MIB)
        all[at] = 1;
    for (long at = 48 * MIB; at < 64 * MIB; at += 4096)
        if (at % (2 * MIB))
            all[at] = 1;
    madvise(all + 48 * MIB, 16 * MIB, MADV_HUGEPAGE);
    for (int i = 0; i < 300000; i++)
        all[48 * MIB + i % 400 * 4096 + 4096] += i;
    return 0;
}
"""

#: Fills 8 MiB with small pages, allows huge ones there, sleeps for a second, fills 16 MiB, unmaps
#: all, and sleeps again.
SLEEPER = """
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define MIB (1L << 20)
int main(void)
{
    char *all = mmap((void *)0x200000000000, 24 * MIB, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    madvise(all, 24 * MIB, MADV_NOHUGEPAGE);
    for (long at = 0; at < 8 * MIB; at += 4096)
        all[at] = 1;
    madvise(all, 8 * MIB, MADV_HUGEPAGE);
    sleep(1);
    for (long at = 8 * MIB; at < 24 * MIB; at += 4096)
        all[at] = 1;
    munmap(all, 24 * MIB);
    sleep(1);
    return 0;
}
"""

#: Touches one page in each 2 MiB of 16 MiB, half of it with MADV_HUGEPAGE. With an argument, flags
#: of PR_SET_THP_DISABLE, it first disables huge pages and executes itself again.
DISABLED = """
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#define MIB (1L << 20)
int main(int count, char **words)
{
    if (count > 1) {
        prctl(PR_SET_THP_DISABLE, 1, atoi(words[1]), 0, 0);
        execl(words[0], words[0], NULL);
    }
    char *all = mmap((void *)0x200000000000, 16 * MIB, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    madvise(all, 8 * MIB, MADV_HUGEPAGE);
    for (long at = 0; at < 16 * MIB; at += 2 * MIB)
        all[at] = 1;
    return 0;
}
"""

#: Cases from public bug reports, by argument: sparse, heap or save.
PUBLIC = """
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define MIB (1L << 20)
static void fill(char *all, long bytes)
{
    for (long at = 0; at < bytes; at += 4096)
        all[at] = 1;
}
int main(int count, char **words)
{
    long bytes = (words[1][1] == 'p' ? 2048 : 64) * MIB;
    char *all = mmap((void *)0x200000000000, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    if (!strcmp(words[1], "sparse")) {
        /* One page in each 2 MiB of 2 GiB; the second GiB may have huge pages only after that. */
        madvise(all + bytes / 2, bytes / 2, MADV_NOHUGEPAGE);
        for (long at = 0; at < bytes; at += 2 * MIB)
            all[at] = 1;
        madvise(all + bytes / 2, bytes / 2, MADV_HUGEPAGE);
        sleep(1);
    } else if (!strcmp(words[1], "heap")) {
        /* A collector releases three quarters of each 2 MiB. */
        fill(all, bytes);
        for (long at = 0; at < bytes; at += 2 * MIB)
            madvise(all + at + MIB / 2, 3 * MIB / 2, MADV_DONTNEED);
        sleep(1);
    } else {
        /* A child shares the memory while its parent writes to it. */
        fill(all, bytes);
        pid_t child = fork();
        while (child == 0)
            pause();
        for (long at = 0; at < bytes; at += 2 * MIB)
            all[at] = 2;
        kill(child, SIGKILL);
        waitpid(child, 0, 0);
    }
    return 0;
}
"""

#: Counts of Linux 6.18 for PROGRAM, linked statically, in a control group: classic LRU lists, swap
#: on zram without read-ahead, khugepaged asleep. By policy, limit and max_ptes_none: pswpin,
#: pswpout and thp_underused_split_page of /proc/vmstat.
KERNEL = {
    ("never", "12M", 511): (406, 1526, 0),
    ("madvise", "24M", 511): (6, 2579, 0),
    ("madvise", "24M", 510): (6, 2578, 0),
    ("madvise", "12M", 511): (406, 5683, 0),
    ("madvise", "30M", 510): (6, 1042, 0),
    ("madvise", "31M", 510): (6, 531, 7),
    ("defer", "24M", 511): (6, 4106, 0),
    ("defer", "12M", 511): (407, 4142, 0),
    ("always", "12M", 511): (407, 8195, 0),
}


def record(folder: Path, program: str, *options: str, words: Sequence[str] = ()) -> Path:
    """A capture of a program with these arguments, compiled with these options."""
    (folder / "program.c").write_text(program)
    made = ["gcc", "-O1", *options, "-o", folder / "program", folder / "program.c"]
    subprocess.run(made, check=True)
    capture([str(folder / "program"), *words], folder / "trace", follow_forks=True)
    return folder / "trace"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of PROGRAM."""
    return record(tmp_path_factory.mktemp("thp"), PROGRAM)


@pytest.fixture(scope="module")
def recorded_static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of PROGRAM, linked statically, which has few private pages of libraries."""
    return record(tmp_path_factory.mktemp("thp-static"), PROGRAM, "-static")


def huge_faults(result: ThpResult) -> dict[str, int]:
    """Faults that gave 2 MiB, by policy."""
    return {row["policy"]: row["huge_faults"] for row in result.rows}


def test_advice_of_the_program_counts(recorded: Path) -> None:
    result = thp(recorded, machine="nvme", policy="never,madvise,always", pages_to_scan=0)
    # Eight ranges in each area; libc and stack have no range of 2 MiB.
    assert huge_faults(result) == {"never": 0, "madvise": 8, "always": 16}
    never, madvise, always = result.rows
    for row, ranges in ((madvise, 8), (always, 16)):
        assert row["peak_bytes"] - never["peak_bytes"] == ranges * (2 * MIB - 4096)
        assert row["stalls"] == ranges and row["longest_ns"] > 100e3
    # The program fills its memory in the first part of its time.
    assert never["mean_bytes"] < never["peak_bytes"]


def test_a_process_can_switch_huge_pages_off(tmp_path: Path) -> None:
    """Neither the process nor the program that it executes gets huge pages."""
    usual = thp(record(tmp_path, DISABLED, "-static"), machine="nvme", policy="madvise,always")
    assert huge_faults(usual)["madvise"] == 4
    assert not usual.notes
    (folder := tmp_path / "off").mkdir()
    off = thp(record(folder, DISABLED, "-static", words=["0"]), machine="nvme", policy="always")
    # The stack of the first program may have a huge page.
    assert huge_faults(off)["always"] == huge_faults(usual)["always"] - 8 <= 1
    assert ["switches huge pages off for itself" in note for note in off.notes] == [True]


def test_older_kernels_split_the_huge_zero_page(tmp_path: Path) -> None:
    """Memory that is read before it is written keeps pages of 4 KiB."""
    program = DISABLED.replace("all[at] = 1", "all[at] = *(volatile char *)(all + at) + 1")
    trace = record(tmp_path, program, "-static")
    newer, older = (
        thp(trace, machine="nvme", policy="madvise", linux=linux).rows[0]
        for linux in ("6.13", "6.12")
    )
    assert (newer["huge_faults"], newer["splits"]) == (4, 0)
    assert (older["huge_faults"], older["splits"]) == (0, 4)
    assert newer["peak_bytes"] - older["peak_bytes"] == 4 * (2 * MIB - 4096)


def test_khugepaged_collapses_nearly_full_ranges(recorded: Path) -> None:
    fast = {"machine": "nvme", "policy": "madvise", "scan_sleep": "10us", "pages_to_scan": 1 << 20}
    (full,) = thp(recorded, **fast, max_ptes_none=0).rows
    (nearly,) = thp(recorded, **fast, max_ptes_none=1).rows
    assert (full["merges"], nearly["merges"]) == (0, 8)
    # Faults give huge pages to the first two areas, khugepaged to the fourth.
    (row,) = thp(recorded, **{**fast, "policy": "always"}, max_ptes_none=511).rows
    assert (row["huge_faults"], row["merges"]) == (16, 8)


def test_without_free_blocks_only_advised_faults_compact(recorded: Path) -> None:
    options = {"machine": "nvme", "pages_to_scan": 0, "free_huge": "4M"}
    always, defer = thp(recorded, policy="always,defer", **options).rows
    # The first area gets the two free blocks; the second, advised, compacts under `always`.
    assert (always["huge_faults"], always["fallbacks"], always["compactions"]) == (10, 6, 8)
    assert (defer["huge_faults"], defer["fallbacks"], defer["compactions"]) == (2, 14, 0)


def test_page_sizes_are_set_separately(recorded: Path) -> None:
    (row,) = thp(recorded, machine="nvme", policy="64K=always+2M=madvise", pages_to_scan=0).rows
    assert row["huge_faults"] == 8
    never = thp(recorded, machine="nvme", policy="never", pages_to_scan=0).rows[0]
    grown = row["peak_bytes"] - never["peak_bytes"]
    # 64 KiB for each touched page of the first area, and for a few pages of libraries.
    assert 0 <= grown - 8 * (2 * MIB - 4096) - 8 * (60 << 10) <= 30 * (60 << 10)


def test_at_the_limit_huge_pages_are_swapped_whole_or_split(recorded: Path) -> None:
    # 16 MiB of small pages, and under `madvise` eight huge pages with one touched page each.
    options = {"machine": "nvme", "policy": "never,madvise", "pages_to_scan": 0}
    never, whole = thp(recorded, **options, memory="24M").rows
    assert never["swap_outs"] == never["shrunk"] == whole["shrunk"] == 0
    # More than 8 MiB are evicted; after pages of the libc, the huge pages are the oldest.
    assert whole["splits"] == 5 and 5 * 512 <= whole["swap_outs"] < 6 * 512
    assert whole["peak_bytes"] <= 24 * MIB and whole["memory_bytes"] == 24 * MIB
    # While reclaim finds old pages, it does not call the shrinker. With 31 MiB it does, as half of
    # them are referenced small pages; one huge page may be swapped out before.
    _, few = thp(recorded, **options, memory="24M", max_ptes_none=510).rows
    assert (few["shrunk"], few["swap_outs"]) == (0, whole["swap_outs"])
    _, split = thp(recorded, **options, memory="31M", max_ptes_none=510).rows
    assert split["shrunk"] >= 7 and split["shrunk"] + split["swap_outs"] // 512 == 8


def test_khugepaged_works_while_the_program_sleeps(tmp_path: Path) -> None:
    trace = record(tmp_path, SLEEPER, "-static")
    # In `idle` events, `to` is a time in nanoseconds.
    regions = open_trace(trace).regions.to_pylist()
    idle = (region["to"] for region in regions if region["event"] == "idle")
    mapped, unmapped = (ns for ns in idle if ns >= 1e9)
    # Each scan covers one range of 2 MiB; the first comes after half of `scan_sleep`.
    daemon = {"scan_sleep": "360ms", "pages_to_scan": 512, "max_ptes_none": 0}
    result = thp(trace, machine="nvme", policy="madvise", **daemon)
    (row,) = result.rows
    own = row["total_ns"] * row["references"]
    assert own < 180e6
    assert row["merges"] == min(4, 1 + (own + mapped - 180e6) // 360e6)
    # Points are in the middle of each hundredth of the run.
    whole = own + mapped + unmapped
    assert result.points[-1]["ns"] == pytest.approx(whole * 0.995, rel=0.01)
    # 8 MiB are mapped in the first sleep, and little in the second.
    for idle, least in ((mapped, 8 * MIB), (unmapped, 0)):
        sizes = (point["mapped_bytes"] for point in result.points)
        asleep = sum(least <= size < least + MIB for size in sizes)
        assert asleep == pytest.approx(100 * idle / whole, abs=3)


#: khugepaged visits all memory many times in a second.
OFTEN = {
    "machine": "nvme",
    "policy": "never,always",
    "scan_sleep": "10ms",
    "pages_to_scan": 1 << 20,
}


def test_huge_pages_fill_a_sparse_gigabyte(tmp_path: Path) -> None:
    trace = record(tmp_path, PUBLIC, words=["sparse"])
    for max_none, merges in ((511, 512), (0, 0)):
        never, always = thp(trace, **OFTEN, max_ptes_none=max_none).rows
        # Faults fill the first GiB whatever khugepaged may do.
        assert (always["huge_faults"], always["merges"]) == (512, merges)
        grown = (512 + merges) * (2 * MIB - 4096)
        assert always["peak_bytes"] == never["peak_bytes"] + grown
        assert always["start_ns"] > never["start_ns"] > 0


def test_khugepaged_refills_a_released_heap(tmp_path: Path) -> None:
    """golang/go#64332: it collapses mostly released ranges, unless max_ptes_none is 0."""
    trace = record(tmp_path, PUBLIC, words=["heap"])
    for max_none, merges, mib in ((511, 32, 64), (0, 0, 16)):
        result = thp(trace, **OFTEN, max_ptes_none=max_none)
        never, always = result.rows
        assert (always["splits"], always["merges"]) == (32, merges)
        last = {point["policy"]: point["mapped_bytes"] for point in result.points}
        assert last["always"] - last["never"] == (mib - 16) * MIB
        assert never["peak_bytes"] == always["peak_bytes"]


def test_the_gain_of_a_short_program_depends_on_free_memory(tmp_path: Path) -> None:
    """microsoft/mimalloc#1373, and copies after a fork, as when Redis saves."""
    trace = record(tmp_path, PUBLIC, words=["save"])
    asleep = {"machine": "nvme", "policy": "never,always", "pages_to_scan": 0}
    never, free = thp(trace, **asleep).rows
    _, full = thp(trace, **asleep, free_huge="4K").rows
    # All memory is used, so huge pages save faults.
    assert free["total_ns"] < 0.9 * never["total_ns"]
    assert (full["huge_faults"], full["fallbacks"]) == (0, 32)
    assert full["total_ns"] == pytest.approx(never["total_ns"])
    # A write after the fork splits the page and copies 4 KiB of it.
    assert (free["huge_faults"], free["splits"]) == (32, 32)
    assert never["faults"] - free["faults"] == 32 * 512 - 32


@pytest.mark.parametrize(("policy", "memory", "max_ptes_none"), KERNEL)
def test_swap_counts_are_near_those_of_a_kernel(
    recorded_static: Path, policy: str, memory: str, max_ptes_none: int
) -> None:
    options = {"policy": policy, "memory": memory, "max_ptes_none": max_ptes_none}
    (row,) = thp(recorded_static, machine="nvme", pages_to_scan=0, **options).rows
    swap_ins, swap_outs, shrunk = KERNEL[policy, memory, max_ptes_none]
    assert row["swap_ins"] == pytest.approx(swap_ins, abs=8)
    assert row["swap_outs"] == pytest.approx(swap_outs, rel=0.07)
    assert row["shrunk"] == shrunk


def test_at_the_limit_only_advised_faults_reclaim_for_huge_pages(recorded: Path) -> None:
    options = {"machine": "nvme", "policy": "always,defer", "pages_to_scan": 0, "memory": "12M"}
    always, defer = thp(recorded, **options).rows
    # Five huge pages of the first area fit beside the libc; `always` makes room for the second.
    assert (always["huge_faults"], always["fallbacks"]) == (5 + 8, 3)
    assert (defer["huge_faults"], defer["fallbacks"]) == (5, 3 + 8)


@pytest.mark.parametrize("name", ["office", "photo", "sqlite"])
def test_small_pages_swap_as_in_the_study_of_page_sizes(name: str) -> None:
    trace = DATA / "captures" / f"{name}.trace"
    (row,) = thp(trace, machine="nvme", policy="never", memory="60%").rows
    options = {"page_sizes": "4K", "memory": "60%", "replacement": "clock"}
    (other,) = paging(trace, machine="nvme", page_cache="elsewhere", **options).rows
    assert row["memory_bytes"] == other["memory_bytes"]
    assert row["swap_ins"] == pytest.approx(other["swap_ins"], rel=0.1) and row["swap_ins"] > 100
    # A swap-in takes the machine's time to read 4 KiB.
    (read_ns,) = machines.paging_machine("nvme").io_ns("nvme", [4096])
    assert row["io_ns"] == pytest.approx(row["swap_ins"] / row["references"] * read_ns)


@pytest.mark.parametrize("memory", [None, "24M"])
def test_areas_add_up(recorded: Path, memory: str | None) -> None:
    options = {"scan_sleep": "1ms", "memory": memory}
    result = thp(
        recorded, machine="nvme", policy="never,madvise,64K=always", **options, by_area=True
    )
    steady = {}
    for row in result.rows:
        areas = [area for area in result.areas if area["policy"] == row["policy"]]
        assert len({area["area"] for area in areas}) == len(areas)
        waits = row["tlb_ns"] + row["walk_ns"] + row["cache_ns"] + row["dram_ns"]
        faults = row["fault_ns"] + row["start_ns"] + row["io_ns"]

        def total(name: str, areas: list[declared.AreasRow] = areas) -> float:
            return sum(cast("dict[str, float]", area)[name] for area in areas)

        near = {"rel": 1e-5}
        assert total("wait_ns") == pytest.approx(waits, **near)
        assert total("fault_ns") == pytest.approx(faults, **near)
        assert total("start_ns") == pytest.approx(row["start_ns"], **near)
        assert total("mean_bytes") == pytest.approx(row["mean_bytes"], **near)
        steady[row["policy"]] = row["total_ns"] - row["start_ns"]
        assert total("saved_ns") == pytest.approx(steady["never"] - steady[row["policy"]], abs=1e-6)
    without = thp(recorded, machine="nvme", policy="never,madvise,64K=always", **options)
    assert without.rows == result.rows and not without.areas


def test_an_area_that_only_grows_is_advised_against(recorded: Path, nearfar: Run) -> None:
    words = ("--machine", "nvme", "--policy", "never,always", "--pages-to-scan", "0", "--by-area")
    done = nearfar("thp", str(recorded), *words, "--format", "json")
    areas = json.loads(done.stdout)["areas"]
    (own,) = (
        area
        for area in areas
        if area["policy"] == "always" and area["area"] == "(anonymous) 0x200000000000"
    )
    # One page of 4 KiB became one of 2 MiB sixteen times, for most of the run.
    assert 8 * 2 * MIB < own["added_bytes"] < 16 * 2 * MIB
    assert own["large_bytes"] > own["added_bytes"] and own["advice"] == "MADV_NOHUGEPAGE"
    shown = nearfar("thp", str(recorded), *words)
    assert "prctl(PR_SET_THP_DISABLE)" in shown.stdout, shown.stdout


def test_a_result_is_kept_and_shown(nearfar: Run, tmp_path: Path) -> None:
    words = ("--machine", "nvme", "--by-area", "-o", str(tmp_path / "run"))
    done = nearfar("thp", str(MEMCACHED), *words)
    assert done.returncode == 0, done.stderr
    assert "Policy: never; always takes" in done.stdout
    kept = nearfar("diff", str(tmp_path / "run"), str(tmp_path / "run"))
    shown = nearfar("report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html"))
    assert shown.returncode == 0, shown.stderr
    text = (tmp_path / "page.html").read_text()
    assert "no other" not in text and "always takes" in text and "Memory over time" in text
    assert "MADV_NOHUGEPAGE" in text
    assert "0 better, 0 worse, 4 unchanged" in kept.stdout, kept.stdout
    found = json.loads(
        nearfar("thp", str(MEMCACHED), "--machine", "nvme", "--format", "json").stdout
    )
    assert found["run"]["command"].endswith("--machine nvme")
    assert len(found["points"]) == 100 * len(found["rows"])
    result = thp(MEMCACHED, machine="nvme", points=3)
    assert isinstance(result, Result)
    assert result.plot().to_dict()["mark"]["type"] == "line"
    assert result.best["policy"] == "never"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "sometimes"), "is no policy"),
        (("--policy", "8K=always"), "is no policy"),
        (("--policy", "never,never"), "given twice"),
        (("--max-ptes-none", "512"), "511"),
        (("--scan-sleep", "soon"), "scan-sleep"),
        (("--machine", "cxl"), "machine cxl"),
        (("--memory", "100K"), "--memory"),
        (("--memory", "10%,20%"), "one size"),
        (("--storage", "nvme"), "add --memory"),
        (("--memory", "50%", "--storage", "tape"), "no storage named `tape`"),
    ],
)
def test_bad_options_are_one_line(nearfar: Run, words: tuple[str, str], said: str) -> None:
    refused(nearfar("thp", str(MEMCACHED), *words), said)


def test_a_trace_that_does_not_say_what_was_mapped_has_a_note() -> None:
    result = thp(DATA / "captures" / "gnugo.trace", machine="nvme", policy="never,always")
    assert any("has no mapping events" in note for note in result.notes)
    assert huge_faults(result)["always"] > 0
    assert not any(row["merges"] for row in result.rows)


def test_a_policy_is_translated_to_kernel_settings() -> None:
    assert settings("never") == {"enabled": "never"}
    assert settings("defer") == {"enabled": "always", "defrag": "defer"}
    assert settings("64K=always+2M=madvise") == {
        "hugepages-2048kB/enabled": "madvise",
        "hugepages-64kB/enabled": "always",
    }
    for wrong in ("64K=always=madvise", "64K=always+16K", "3K=always", "64K=perhaps"):
        with pytest.raises(NearfarError, match="is no policy"):
            settings(wrong)
    assert settings("16K=madvise")["hugepages-2048kB/enabled"] == "never"
