"""``nearfar explain``: terms that add up to the total time, and misses by region and code."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nearfar as package
from capturing import nearfar as capture
from capturing import needs_cc, needs_qemu
from conftest import DATA, Run, refused
from nearfar.errors import NearfarError
from nearfar.explain import explain
from nearfar.paging import paging


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "gzip.trace"
    shutil.copytree(DATA / "captures" / "gzip.trace", path)
    return path


def made(trace: Path, folder: Path, **options: Any) -> Path:
    usual: dict[str, Any] = {"page_sizes": "4K,16K", "memory": "30%,50%", "machine": "optane-ssd"}
    paging(trace, **{**usual, **options}).write(folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replacement": "lru", "tlb": "64x4"},
        {"replacement": "linux", "write_back": True},
        {"kinds": ["load", "store"], "memory": "200K,400K"},
        {"filter": "cache"},
    ],
)
def test_terms_add_up_to_the_row(trace: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    run = made(trace, tmp_path / "run", **options)
    memory = str(options.get("memory", "30%")).partition(",")[0]
    found = explain(run, page="16K", memory=memory, storage="optane-ssd")
    import pyarrow.parquet as pq

    rows = pq.read_table(run / "result.parquet").to_pylist()
    sizes = {"30%": lambda r: r["memory_fraction"] == 0.3}
    right = sizes.get(memory, lambda r: r["memory_bytes"] == 200 << 10)
    (row,) = [
        r for r in rows
        if r["page_bytes"] == 16384 and r["storage"] == "optane-ssd" and right(r)
    ]  # fmt: skip
    assert sum(term["ns"] for term in found.terms) == pytest.approx(row["total_ns"], rel=1e-12)
    for part, total in (("T_A", "translation_ns"), ("T_D", "data_ns")):
        own = sum(term["ns"] for term in found.terms if term["part"] == part)
        assert own == pytest.approx(row[total], rel=1e-12)
    by_code = [place for place in found.sites if place["share"] > 0]
    assert bool(found.sites) == (options.get("filter") is None)
    if found.sites:
        for ours, theirs in {"tlb_misses": "tlb_misses", "faults": "faults"}.items():
            assert sum(place[ours] for place in found.sites) == row[theirs]
        assert sum(place["share"] for place in by_code) == pytest.approx(1)
    counts = {"references": "references", "tlb_misses": "tlb_misses", "faults": "faults",
              "first_touches": "pages"}  # fmt: skip
    for places in (found.regions, found.ranges):
        for ours, theirs in counts.items():
            assert sum(place[ours] for place in places) == row[theirs]
        assert sum(place["share"] for place in places) == pytest.approx(1)


#: Maps, writes and unmaps 24 pages at one address ten times, and reads a file; a child writes once.
ROUNDS = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int fd = open(argv[1], O_RDONLY);
  volatile char *file = mmap(0, 40 * 4096, PROT_READ, MAP_PRIVATE, fd, 0);
  long sum = 0;
  for (int round = 0; round < 10; round++) {
    static char *where;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0);
    volatile char *p = where = mmap(where, 24 * 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    for (int i = 0; i < 24; i++) sum += p[i * 4096] += file[i * 4096];
    if (round == 4 && !fork()) { p[0] = 1; _exit(0); }
    while (round == 4 && wait(0) > 0) {}
    munmap((void *)p, 24 * 4096);
  }
  return sum == 3;
}
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory, build: Callable[..., Path]) -> Path:
    """A capture of a program that unmaps pages."""
    folder = tmp_path_factory.mktemp("ends")
    data = folder / "data"
    data.write_bytes(bytes(range(256)) * 16 * 40)
    done = capture("-o", folder / "ends.trace", build(ROUNDS), data)
    assert done.returncode == 0, done.stderr
    return folder / "ends.trace"


@needs_qemu
@needs_cc
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replacement": "lru", "page_cache": "warm"},
        {"replacement": "linux", "swappiness": 150, "write_back": True, "tlb": "8x2"},
        {"replacement": "linux", "statistics_every": 0},
        {"memory": "160K", "page_cache": "warm"},
    ],
)
def test_faults_of_a_program_that_unmaps_pages_are_explained_by_kind(
    ends: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    kinds = ("zero_fills", "file_reads", "swap_ins", "file_rereads")
    made(ends, tmp_path / "run", lifetimes="on", **options)
    run = made(ends, tmp_path / "endless", lifetimes="off")
    import pyarrow.parquet as pq

    endless = pq.read_table(run / "result.parquet").to_pylist()
    for page, bytes_ in {"4K": 4096, "16K": 16384}.items():
        memory = options.get("memory", "50%")
        found = explain(tmp_path / "run", page=page, memory=memory, storage="optane-ssd")
        rows = pq.read_table(tmp_path / "run" / "result.parquet").to_pylist()
        (row,) = [
            r for r in rows
            if r["page_bytes"] == bytes_ and r["storage"] == "optane-ssd"
            and (memory == "160K" or r["memory_fraction"] == 0.5)
        ]  # fmt: skip
        assert found.run["lifetimes"]
        assert sum(term["ns"] for term in found.terms) == pytest.approx(row["total_ns"], rel=1e-12)
        for places in (found.regions, found.ranges, found.sites):
            assert (
                sum(place["faults"] for place in places)
                == row["faults"]
                == sum(place[kind] for place in places for kind in kinds)
            )
            assert sum(place["first_touches"] for place in places) == row["pages"]
            assert sum(place["share"] for place in places) == pytest.approx(1)
            for kind in kinds:
                assert row[kind] in (None, sum(place[kind] for place in places))
        assert (found.total["mapped"] > 0) == (options.get("page_cache") == "warm")
        assert (found.total["file_reads"] > 0) == (options.get("page_cache") != "warm")
        assert any(term["term"] == "zero fills" for term in found.terms)
    # With lifetimes, the 24 pages of each round are new ones.
    (old,) = {r["pages"] for r in endless if r["page_bytes"] == 4096}
    at_4k = explain(tmp_path / "run", page="4K").total["first_touches"]
    assert at_4k > old + 8 * 24


def test_tlb_misses_by_region_are_those_of_a_plain_lru_loop(trace: Path, tmp_path: Path) -> None:
    run = made(trace, tmp_path / "run", tlb="8")
    found = explain(run, page="4K")
    opened = package.open(trace)
    columns = opened.table(["addr", "size"]).to_pydict()
    assert len(opened.info["threads"]) == 1
    held: OrderedDict[int, None] = OrderedDict()
    misses: dict[int, int] = {}
    for addr, size in zip(columns["addr"], columns["size"], strict=True):
        for number in range(addr >> 12, ((addr + max(size, 1) - 1) >> 12) + 1):
            if number in held:
                held.move_to_end(number)
                continue
            misses[number] = misses.get(number, 0) + 1
            held[number] = None
            if len(held) > 8:
                held.popitem(last=False)
    assert sum(misses.values()) == found.total["tlb_misses"]
    stack = [e for e in opened.regions.to_pylist() if e["name"] == "[stack]"][-1]
    inside = range(stack["addr"] >> 12, (stack["addr"] + stack["length"]) >> 12)
    (answer,) = [place for place in found.regions if place["name"] == "[stack]"]
    assert answer["tlb_misses"] == sum(n for page, n in misses.items() if page in inside)
    assert answer["tlb_misses"] > 0


@pytest.mark.parametrize("machine", ["optane-ssd", "zen4-vm"])
def test_the_kernel_s_share_is_that_of_a_plain_loop(
    tmp_path: Path, nearfar: Run, machine: str
) -> None:
    """It shares no page with programs, so its share of first touches is its share of pages."""
    lines = ["addr,kind"]
    for number in range(4000):
        # The programs use 30 pages, the kernel 10 others, for one reference in four.
        own = f"{4096 * (1000 + number % 10)},kernel-load"
        lines.append(own if number % 4 == 3 else f"{4096 * (number % 30)},store")
    (tmp_path / "vm.csv").write_text("\n".join(lines) + "\n")
    trace = tmp_path / "vm.trace"
    assert nearfar("import", tmp_path / "vm.csv", "-o", trace).returncode == 0
    run = made(trace, tmp_path / "plain", machine=machine, memory="100%")
    assert all(term["kernel_share"] is None for term in explain(run, page="16K").terms)
    info = json.loads((trace / "trace.json").read_text())
    info["source"]["vm_memory_bytes"] = 1 << 30
    (trace / "trace.json").write_text(json.dumps(info))
    run = made(trace, tmp_path / "run", machine=machine, memory="100%")
    found = explain(run, page="4K", memory="100%")
    pages = len({number % 30 for number in range(4000) if number % 4 != 3})
    own = len({number % 10 for number in range(4000) if number % 4 == 3})
    shares = {term["term"]: term["kernel_share"] for term in found.terms}
    faults = "faults" if machine == "zen4-vm" else "page faults"
    assert shares[faults] == pytest.approx(own / (own + pages))
    if machine == "optane-ssd":
        assert shares["TLB lookup"] == shares["memory access"] == 0.25
    assert "kernel" in nearfar("explain", run, "--page", "4K").stdout


def test_first_touches_by_code_are_those_of_a_plain_loop(trace: Path, tmp_path: Path) -> None:
    """The code of a reference is the block that was fetched last."""
    found = explain(made(trace, tmp_path / "run"), page="4K")
    columns = package.open(trace).table(["addr", "size", "kind"]).to_pydict()
    block, seen, touches = None, set(), {}
    for addr, size, kind in zip(*columns.values(), strict=True):
        block = addr if kind == "fetch" else block
        for number in range(addr >> 12, ((addr + max(size, 1) - 1) >> 12) + 1):
            if number not in seen:
                seen.add(number)
                touches[block] = touches.get(block, 0) + 1
    answer = {place["addr"]: place["first_touches"] for place in found.sites}
    assert len(touches) > 20
    assert all(answer.get(addr, 0) == n for addr, n in touches.items() if addr in answer)
    assert sum(answer.values()) == sum(touches.values()) == found.total["first_touches"]
    assert any(place["name"].endswith(".so.6") or "gzip" in place["name"] for place in found.sites)


@pytest.mark.parametrize(("machine", "answered"), [("zen4-vm", 1.0), ("optane-ssd", 0.5)])
def test_the_default_memory_is_that_of_the_studys_recommendation(
    trace: Path, tmp_path: Path, machine: str, answered: float
) -> None:
    run = made(trace, tmp_path / "run", machine=machine, memory="30%,50%,100%")
    assert explain(run, page="16K").run["memory_fraction"] == answered


def test_bad_options_are_an_error_of_one_line(trace: Path, tmp_path: Path, nearfar: Run) -> None:
    run = made(trace, tmp_path / "run")

    for folder, words, says in (
        (run, "--page 8K", "8 KiB is not in this run; it has 4 KiB, 16 KiB"),
        (run, "--page 4K --memory 70%", "it has 30 %, 50 %"),
        (run, "--page 4K --memory 30%,50%", "is not one size"),
        (run, "--page 4K --storage hdd", "it has optane"),
        (tmp_path, "--page 4K", "not a run folder"),
    ):
        refused(nearfar("explain", folder, *words.split()), says)


def test_another_trace_is_refused(trace: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.trace"
    shutil.copytree(trace, own)
    run = made(own, tmp_path / "run")
    info = json.loads((own / "trace.json").read_text(encoding="utf-8"))
    (own / "trace.json").write_text(json.dumps(info), encoding="utf-8")
    with pytest.raises(NearfarError, match="has changed since the run"):
        explain(run, page="4K")
    shutil.rmtree(own)
    with pytest.raises(NearfarError, match="is not there"):
        explain(run, page="4K")


def test_the_trace_is_found_from_any_folder(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path from the study's folder, above the run; or beside the run."""
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(trace, tmp_path / "work" / "out" / "own.trace")
    monkeypatch.chdir(tmp_path / "work")
    made(Path("out/own.trace"), Path("out/own.run"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = explain("../work/out/own.run", page="4K")
    assert there.run["trace"] == "out/own.trace" and there.total["references"] > 0
    shutil.copytree(tmp_path / "work" / "out", tmp_path / "moved")
    shutil.rmtree(tmp_path / "work")
    assert explain(tmp_path / "moved" / "own.run", page="4K").total == there.total


def test_counts_of_another_version_are_refused(trace: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run = made(trace, tmp_path / "run")
    table = pq.read_table(run / "result.parquet")
    place = table.column_names.index("faults")
    table = table.set_column(place, "faults", [[n + 1 for n in table["faults"].to_pylist()]])
    pq.write_table(table, run / "result.parquet")
    with pytest.raises(NearfarError, match="run the study again with this version"):
        explain(run, page="4K")


def test_a_run_of_another_study_is_refused(tmp_path: Path) -> None:
    from nearfar.numa import alloc

    alloc(["1G"]).write(tmp_path / "run")
    with pytest.raises(NearfarError, match="is a run of numa-alloc"):
        explain(tmp_path / "run", page="4K")
