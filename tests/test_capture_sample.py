"""``nearfar capture --sample`` against a filtered whole capture, and the studies of a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capturing import (
    FETCH,
    LOAD,
    STORE,
    columns,
    info,
    nearfar,
    needs_cc,
    needs_qemu,
    regions,
)
from conftest import refused
from nearfar import capture
from nearfar import size as sizes
from nearfar.advise import advise
from nearfar.devices import devices
from nearfar.errors import NearfarError
from nearfar.paging import paging, warnings
from nearfar.paging_answers import answers, gain_interval
from nearfar.tiering import tiering

pytestmark = [needs_qemu, needs_cc]

# Touches, discards, unmaps and maps again, moves, reads from a file, and repeats instructions.
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 4000 };

int main(int argc, char **argv) {
  unsigned long x = 88172645463325252ul, sum = 0, n = PAGE * (unsigned long)PAGES;
  int turns = atoi(argv[1]);
  unsigned char *p = mmap(0, n, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int turn = 0; turn < 3; turn++) {
    for (int i = 0; i < turns; i++) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      unsigned long at = x % (n - 16);
      sum += p[at];
      if (x & 4) *(unsigned long *)(p + at) += x;
    }
    madvise(p + PAGE * 50, PAGE * 1000, MADV_DONTNEED);
    memset(p + PAGE * 10 * turn, turn, PAGE * 4);
    memcpy(p + 5000, p + PAGE * 200 + 17, 9000);
  }
  char *h = malloc(1 << 19);
  int f = open("/proc/self/exe", O_RDONLY);
  sum += read(f, h, 10000);
  close(f);
  h = realloc(h, 3 << 19);
  for (int i = 0; i < 3 << 19; i += 512) sum += h[i]++;
  sbrk(64 << 10);
  sbrk(-(32 << 10));
  munmap(p, n);
  p = mmap(p, n, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  p[0]++, p[8191] += p[12];
  free(h);
  if (argc > 2 && fork() == 0) p[1]++, p[PAGE]++, _exit(0);
  if (argc > 2) p[2]++, wait(0);
  return sum == 42;
}
"""
MASK = (1 << 64) - 1
#: In blocks: distance of bursts at a rate of 1; length of a burst, with and without fetches.
DISTANCE, BURST = 8000, {True: 5000, False: 8000}


def mix(value: int) -> int:
    """The finaliser of SplitMix64."""
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def distance(rate: float) -> int:
    """Mean distance in blocks from one burst to the next; above a rate of 1/16, as at 1/16."""
    return max(DISTANCE * 2**64 // int(rate * 2**64), 16 * DISTANCE)


def bursts(rate: float, seed: int, length: int) -> Iterator[int]:
    """Blocks at which the first thread's bursts of ``length`` blocks begin."""
    each, number = distance(rate), 0
    while True:
        yield number * each + mix(mix(seed) ^ MASK - (number << 32)) % (each - length + 1)
        number += 1


def kept(
    trace: Path, rate: float, seed: int, length: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Numbers of a whole capture's records that a sample keeps, and bursts as ranges of these."""
    events = regions(trace)
    seen: set[tuple[str, int]] = set()
    heap = 0

    def forget(addr: int, length: int) -> None:
        pages = range(addr >> 12, addr + length + 4095 >> 12)
        seen.difference_update([one for one in seen if one[1] in pages])

    def happen(event: dict[str, Any]) -> None:
        nonlocal heap
        addr, length = event["addr"], event["length"]
        if event["event"] == "brk":
            end = addr + length
            forget(min(heap or end, end), abs((heap or end) - end))
            heap = end
        elif event["event"] in {"map", "dontneed", "free", "remove", "move"}:
            forget(addr, length)
            if event["event"] == "move":
                forget(event["to"], length)

    chosen, found = [], []
    starts = bursts(rate, seed, length)
    boundary, began, blocks, at = next(starts), -1, 0, 0
    for number, (addr, kind, size, *_) in enumerate(columns(trace)):
        while at < len(events) and events[at]["at"] <= number:
            happen(events[at])
            at += 1
        if kind == FETCH and blocks >= boundary:
            if began < 0:
                began, boundary = len(chosen), boundary + length
            else:
                found.append((began, len(chosen)))
                began, boundary = -1, next(starts)
        keep = began >= 0 or kind not in {LOAD, STORE, FETCH}
        for page in range(addr >> 12, (addr + size - 1 >> 12) + 1):
            if kind in {LOAD, STORE, FETCH} and (kind, page) not in seen:
                keep = True
                if mix(page ^ mix(seed)) >= int(rate * 2**64):
                    seen.add((kind, page))
        blocks += kind == FETCH
        if keep:
            chosen.append(number)
    return chosen, found


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build(PROGRAM, "-O1", "-static")


@pytest.fixture(scope="module")
def both(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A whole capture of the program, and a sample."""
    folder, command = tmp_path_factory.mktemp("both"), [program, "1000000"]
    whole = capture.run(command, folder / "whole.trace").path
    return whole, capture.run(command, folder / "sample.trace", sample=0.4).path


# From a rate of 1/16 on, every block has a word in the ring, even without fetches.
@pytest.mark.parametrize(("fetch", "rate"), [(True, 0.1), (False, 0.1), (False, 0.05)])
def test_a_sample_equals_a_filtered_whole_capture(
    program: Path, tmp_path: Path, fetch: bool, rate: float
) -> None:
    seed, command = 7, [program, "9000" if rate == 0.1 else "40000"]
    whole = capture.run(command, tmp_path / "whole.trace").path
    taken = capture.run(
        command, tmp_path / "sample.trace", sample=rate, sample_seed=seed, fetch=fetch
    ).path
    rows, (chosen, found) = columns(whole), kept(whole, rate, seed, BURST[fetch])
    sample = info(taken)["source"]["sample"]
    assert (sample["rate"], sample["seed"]) == (rate, seed)
    assert len(found) >= 2
    # A record that is left out adds to the gap of the next.
    expected, start, gap = [], {}, 0
    wanted = set(chosen)
    for number, (addr, kind, size, thread, instr) in enumerate(rows):
        start[number] = len(expected)
        gap += instr
        if number in wanted and (fetch or kind != FETCH):
            expected.append((addr, kind, size, thread, gap))
            gap = 0
    start[len(rows)] = len(expected)
    assert columns(taken) == expected
    places = [
        start[chosen[at]] if at < len(chosen) else len(expected) for pair in found for at in pair
    ]
    assert sample["bursts"] == [
        [0, *pair, distance(rate)] for pair in zip(places[::2], places[1::2], strict=True)
    ]
    events = [{**event, "at": start[event["at"]]} for event in regions(whole)]
    assert regions(taken) == events
    has, had = info(taken), info(whole)
    assert has["instructions"] == had["instructions"]
    kinds = [LOAD, STORE, FETCH] if fetch else [LOAD, STORE]
    assert sample["references"] == {kind: had["records_by_kind"][kind] for kind in kinds}
    if fetch:
        assert has["pages_by_kinds"] == had["pages_by_kinds"]
    # Twice the larger rate.
    assert has["records"] < had["records"] / 5


def test_intervals_hold_the_rates_of_the_whole_capture(both: tuple[Path, Path]) -> None:
    whole, taken = both
    for policy in ("clock", "linux"):
        options: dict[str, Any] = {"replacement": policy, "memory": "20%,80%"}
        of = paging(whole, page_sizes="4K", view="paper", **options)
        got = paging(taken, **options)
        assert got.run["peak_resident_bytes"] == of.run["peak_resident_bytes"]
        left = {size["page_bytes"]: size["least_memory"] for size in got.run["left_out"]}
        assert left[1024] is None and 4096 not in left and left[65536]
        assert len(got.rows) == len(of.rows) > 0
        for row, exact in zip(got.rows, of.rows, strict=True):
            assert row["memory_bytes"] == exact["memory_bytes"]
            # A sample holds the first touch of every page.
            assert (row["pages"], row["zero_fills"]) == (exact["pages"], exact["zero_fills"])
            for rate in ("fault_rate", "tlb_miss_rate", "total_ns"):
                low, high = row[f"{rate}_low"], row[f"{rate}_high"]  # type: ignore[literal-required]
                assert low < exact[rate] < high, (rate, row, exact)  # type: ignore[literal-required]
                # Wide, because this program has few misses.
                assert high - low < 0.6 * exact[rate], (rate, row, exact)  # type: ignore[literal-required]


def test_a_sample_compares_page_sizes(both: tuple[Path, Path]) -> None:
    """With memory for all pages, faults are exact and times have intervals."""
    whole, taken = both
    options: dict[str, Any] = {"page_sizes": "4K,64K,2M", "view": "paper", "memory": "50%,1G"}
    options["storage"] = ["nvme"]
    exact, got = paging(whole, **options), paging(taken, **options)
    assert got.run["left_out"] == []
    cells = {(row["page_bytes"], row["memory_bytes"]): row for row in exact.rows}
    large = [row for row in got.rows if row["memory_bytes"] == 1 << 30]
    assert [row["page_bytes"] for row in large] == [4096, 65536, 2 << 20]
    assert len(got.rows) == 4
    for row in large:
        same = cells[row["page_bytes"], row["memory_bytes"]]
        assert (row["faults"], row["pages"]) == (same["faults"], same["pages"])
        assert row["total_ns_low"] is not None and row["total_ns_high"] is not None
        assert row["total_ns_low"] < same["total_ns"] < row["total_ns_high"]
    usual, best = large[0], large[-1]
    low, gain, high = gain_interval(usual, best)
    true = 1 - cells[2 << 20, 1 << 30]["total_ns"] / cells[4096, 1 << 30]["total_ns"]
    assert low < true < high and low < gain < high
    assert answers(got)[0].startswith("Page size: at 1 GiB of memory, 2 MiB pages take ")
    assert "95 % interval" in answers(got)[0]

    # In the machine view, times of larger pages would be lower bounds.
    options |= {"view": "machine", "machine": "nvme"}
    got = paging(taken, **options)
    assert {row["page_bytes"] for row in got.rows} == {4096}
    assert answers(got)[0] == "Page size: 4 KiB; no larger one was simulated."


def test_a_sample_gives_a_programs_memory_size(program: Path, tmp_path: Path) -> None:
    """Processor time is exact, waiting times are lower bounds, and memory is an upper bound."""
    command = [program, "50000"]
    whole = capture.run(command, tmp_path / "whole.trace").path
    taken = capture.run(command, tmp_path / "sample.trace", sample=0.4).path
    settings: Any = {"page_sizes": "4K", "view": "machine", "memory": "60%", "machine": "nvme"}
    settings |= {"storage": ["zram"], "replacement": "linux"}
    of, got = paging(whole, **settings).rows[0], paging(taken, **settings)
    row = got.rows[0]
    same = ("references", "pages", "resident_bytes", "memory_bytes")
    assert [row[key] for key in same] == [of[key] for key in same]  # type: ignore[literal-required]
    assert (row["cpu_ns"], row["start_ns"]) == pytest.approx(
        (of["cpu_ns"], of["start_ns"]), rel=1e-5
    )
    # A hit in a nearer level is counted there, so only sums over levels are bounds.
    for waits in (("tlb_ns", "walk_ns"), ("cache_ns", "dram_ns")):
        least, whole_ns = (sum(one[wait] or 0 for wait in waits) for one in (row, of))  # type: ignore[literal-required]
        assert 0 < least < whole_ns
    low, high = row["fault_rate_low"], row["fault_rate_high"]
    assert low is not None and high is not None and low <= of["fault_rate"] <= high
    assert sum("times are lower bounds" in line for line in warnings(got)) == 1

    given: Any = {"machine": "nvme", "swap": "zram"}
    full, row = (sizes.size(one, **given).rows[0] for one in (whole, taken))
    # Only the whole capture is advised large pages, which add bloat.
    bloat = full["bloat_bytes"]
    assert full["peak_bytes"] - bloat == row["peak_bytes"]
    assert full["memory_bytes"] - bloat <= row["memory_bytes"] <= row["peak_bytes"]
    assert row["advised_page_bytes"] == 4096
    assert "a sample of 4 KiB pages does not show" in row["page_why"]
    assert "an upper bound, from a sample of 40 % of the pages" in row["risk"]
    with pytest.raises(NearfarError, match="--thp: .* a sample of the pages"):
        sizes.size(taken, **given, thp=True)


def test_auto_lowers_the_rate_for_many_pages(build: Callable[..., Path], tmp_path: Path) -> None:
    text = """
    #include <stdlib.h>
    int main(void) {
      volatile char *p = malloc(40000 * 4096l);
      for (long turn = 0; turn < 2; turn++)
        for (long i = 0; i < 40000; i++) p[i * 4096]++;
    }
    """
    program = build(text, "-static")
    taken = capture.run([program], tmp_path / "t.trace", sample="auto", fetch=False).path
    sample = info(taken)["source"]["sample"]
    # 40,000 pages reach the limit of 8,192 sampled pages at rates of 1, 1/2 and 1/4.
    assert sample["rate"] == 1 / 8
    assert sum(info(taken)["pages_by_kinds"].values()) > 40_000


@pytest.mark.parametrize("fetch", [True, False])
def test_a_small_program_is_recorded_whole(tmp_path: Path, fetch: bool) -> None:
    """With ``--sample auto``, its trace equals one without ``--sample``."""
    whole = capture.run(["/bin/true"], tmp_path / "whole.trace", fetch=fetch).path
    taken = capture.run(["/bin/true"], tmp_path / "auto.trace", sample="auto", fetch=fetch).path
    assert info(taken)["source"].get("sample") is None
    assert columns(taken) == columns(whole) and regions(taken) == regions(whole)


def test_every_thread_is_sampled(build: Callable[..., Path], program: Path, tmp_path: Path) -> None:
    text = r"""
    #include <pthread.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    static void *run(void *at) {
      char *p = at;
      for (int turn = 0; turn < 40; turn++)
        for (int i = 0; i < 500; i++) p[i * 4096]++;
      return 0;
    }
    int main(void) {
      pthread_t threads[3];
      // A shared mapping makes QEMU translate for threads now, not again at the first thread.
      mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      for (int i = 0; i < 3; i++) run(malloc(500 * 4096));
      for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, run, malloc(500 * 4096));
      for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    }
    """
    parallel = build(text, "-O1", "-static", "-pthread")
    taken = capture.run([parallel], tmp_path / "t.trace", sample=0.2).path
    made = info(taken)["source"]["sample"]["references"]
    # Threads that wait for each other make a few more references.
    whole = info(capture.run([parallel], tmp_path / "whole.trace").path)["records_by_kind"]
    assert made == {kind: pytest.approx(whole[kind], rel=0.01) for kind in made}
    assert made["store"] >= 120_000
    assert len(info(taken)["threads"]) == 4
    assert info(taken)["records_by_kind"]["store"] < made["store"] / 2

    def peak(**sample: Any) -> int | None:
        path = tmp_path / f"{len(sample)}.trace"
        command = [program, "100000", "fork"]
        capture.run(command, path, follow_forks=True, **sample)
        settings: Any = {"page_sizes": "4K", "view": "paper", "memory": "50%"}
        return paging(path, **settings).run["peak_resident_bytes"]

    assert peak(sample=0.3) == peak()


def test_studies_that_need_every_reference_refuse(program: Path, tmp_path: Path) -> None:
    taken = capture.run([program, "9000"], tmp_path / "t.trace", sample=0.4).path
    needs = "holds 40 % of the pages, but this command needs every reference; capture without --"
    with pytest.raises(NearfarError, match=needs):
        tiering(taken)
    with pytest.raises(NearfarError, match="a sample of the pages, but this command needs every"):
        devices(taken, machine="nvme")
    with pytest.raises(NearfarError, match="40 % of the 4 KiB pages, and advice compares page"):
        advise(taken, view="paper", machine="nvme", storage=["zram"])
    with pytest.raises(NearfarError, match="--page-sizes: the trace holds 40 % of the 4 KiB pages"):
        paging(taken, page_sizes="64K")
    short = paging(taken, memory="50%")
    (row,) = {row["memory_bytes"]: row for row in short.rows}.values()
    high = row["fault_rate_high"]
    assert high is not None and high < 1 == row["tlb_miss_rate_high"]
    assert sum("fewer than 50 bursts" in line for line in warnings(short)) == 1
    few = capture.run([program, "9000"], tmp_path / "few.trace", sample=0.01).path
    with pytest.raises(NearfarError, match="too few; capture with --sample 0[.]2"):
        paging(few)


def test_a_bad_sample_rate_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = nearfar("--sample", "2", "-o", tmp_path / "t.trace", "--", "true")
    refused(done, "'2' is not a share of pages; write for example 0.01, 1% or auto")
