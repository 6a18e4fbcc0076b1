"""Settings for huge pages: a program with a known answer, the command, and its result."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from conftest import DATA, Run
from nearfar.capture import capture
from nearfar.errors import NearfarError
from nearfar.result import Result
from nearfar.thp import ThpResult, settings, thp

MEMCACHED = DATA / "captures" / "memcached.trace"
MIB = 1 << 20
#: Four areas of 16 MiB. One page in each 2 MiB of three of them: of the first without advice, the
#: second with, the third against. Of the fourth, all but one page in each 2 MiB; it may have huge
#: pages only when it has small ones already.
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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of the program."""
    folder = tmp_path_factory.mktemp("thp")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["gcc", "-O1", "-o", folder / "program", folder / "program.c"], check=True)
    capture([str(folder / "program")], folder / "trace")
    return folder / "trace"


def huge_faults(result: ThpResult) -> dict[str, int]:
    """Faults that gave 2 MiB, by policy."""
    return {row["policy"]: row["huge_faults"] for row in result.rows}


def test_advice_of_the_program_counts(recorded: Path) -> None:
    result = thp(recorded, machine="nvme", policy="never,madvise,always", pages_to_scan=0)
    # Eight ranges in each area; the libc and the stack have none of 2 MiB.
    assert huge_faults(result) == {"never": 0, "madvise": 8, "always": 16}
    never, madvise, always = result.rows
    for row, ranges in ((madvise, 8), (always, 16)):
        assert row["peak_bytes"] - never["peak_bytes"] == ranges * (2 * MIB - 4096)
        assert row["stalls"] == ranges and row["longest_ns"] > 100e3
    # The program fills its memory in the first part of its time.
    assert never["mean_bytes"] < never["peak_bytes"]


def test_khugepaged_fills_what_is_nearly_full(recorded: Path) -> None:
    fast = {"machine": "nvme", "policy": "madvise", "scan_sleep": "10us", "pages_to_scan": 1 << 20}
    (full,) = thp(recorded, **fast, max_ptes_none=0).rows
    (nearly,) = thp(recorded, **fast, max_ptes_none=1).rows
    assert (full["merges"], nearly["merges"]) == (0, 8)
    # The first area was never advised, and the third against.
    (any_,) = thp(recorded, **{**fast, "policy": "always"}, max_ptes_none=511).rows
    assert (any_["huge_faults"], any_["merges"]) == (16, 8)


def test_without_free_blocks_only_advice_makes_some(recorded: Path) -> None:
    options = {"machine": "nvme", "pages_to_scan": 0, "free_huge": "4M"}
    always, defer = thp(recorded, policy="always,defer", **options).rows
    # Two of the first area are given, the others fall back; then the second area asks.
    assert (always["huge_faults"], always["fallbacks"], always["compactions"]) == (10, 6, 8)
    assert (defer["huge_faults"], defer["fallbacks"], defer["compactions"]) == (2, 14, 0)


def test_sizes_are_set_one_by_one(recorded: Path) -> None:
    (row,) = thp(recorded, machine="nvme", policy="64K=always+2M=madvise", pages_to_scan=0).rows
    assert row["huge_faults"] == 8
    never = thp(recorded, machine="nvme", policy="never", pages_to_scan=0).rows[0]
    grown = row["peak_bytes"] - never["peak_bytes"]
    # 64 KiB for each touched page of the first area, and for a few of the libraries'.
    assert 0 <= grown - 8 * (2 * MIB - 4096) - 8 * (60 << 10) <= 30 * (60 << 10)


def test_a_result_is_kept_and_shown(nearfar: Run, tmp_path: Path) -> None:
    done = nearfar("thp", str(MEMCACHED), "--machine", "nvme", "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "Policy: never; always takes" in done.stdout
    kept = nearfar("diff", str(tmp_path / "run"), str(tmp_path / "run"))
    shown = nearfar("report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html"))
    assert shown.returncode == 0, shown.stderr
    text = (tmp_path / "page.html").read_text()
    assert "no other" not in text and "always takes" in text and "Memory over time" in text
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
    ],
)
def test_bad_options_are_one_line(nearfar: Run, words: tuple[str, str], said: str) -> None:
    done = nearfar("thp", str(MEMCACHED), *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_trace_that_does_not_say_what_was_mapped_has_a_note() -> None:
    result = thp(DATA / "captures" / "gnugo.trace", machine="nvme", policy="never,always")
    assert any("does not say what was mapped" in note for note in result.notes)
    assert huge_faults(result)["always"] > 0
    assert not any(row["merges"] for row in result.rows)


def test_a_policy_as_the_kernel_has_it() -> None:
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
