"""The paging study: against libCacheSim, its options, bad input, the shape of its output."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from conftest import DATA, Run, refused
from nearfar.declared import names
from nearfar.paging import paging

CAPTURE = DATA / "captures" / "gnugo.trace"


def page_references(trace: Path, page_bytes: int) -> list[int]:
    """Each page that a record of the trace overlaps, in order."""
    parts = json.loads((trace / "trace.json").read_text())["parts"]
    pages: list[int] = []
    for part in parts:
        table = pyarrow.parquet.read_table(trace / part["file"], columns=["addr", "size"])
        columns = (table.column("addr").to_pylist(), table.column("size").to_pylist())
        for addr, size in zip(*columns, strict=True):
            last = min(addr + max(size, 1) - 1, 2**64 - 1)
            pages.extend(range(addr // page_bytes, last // page_bytes + 1))
    return pages


def peer_misses(cache: Any, pages: list[int]) -> int:
    """Misses of a libCacheSim cache over page references."""
    import libcachesim

    request = libcachesim.Request()
    request.obj_size = 1
    misses = 0
    for page in pages:
        request.obj_id = page
        misses += not cache.get(request)
    return misses


def test_equals_libcachesim_on_a_capture() -> None:
    check_against_libcachesim(CAPTURE, "4K", "10%,50%")


def test_equals_libcachesim_on_generated(mixed: Path) -> None:
    """Pages below and above 4 KiB; memory below and at the footprint."""
    check_against_libcachesim(mixed, "512,64K", "10%,70%,100%")


def check_against_libcachesim(trace: Path, page_sizes: str, memory: str) -> None:
    import libcachesim

    conventions = {
        "lru": lambda frames: libcachesim.LRU(frames),
        # Pages start as accessed: hardware sets the bit when it retries the faulting reference.
        "clock": lambda frames: libcachesim.Clock(frames, init_freq=1),
    }
    pages: dict[int, list[int]] = {}
    known: dict[tuple[str, int, int], int] = {}
    for policy, make in conventions.items():
        result = paging(
            trace,
            page_sizes=page_sizes,
            memory=memory,
            replacement=policy,
            storage=["nvm-1x"],
            view="paper",
        )
        assert result.rows
        for row in result.rows:
            size, frames = row["page_bytes"], row["frames"]
            if size not in pages:
                pages[size] = page_references(trace, size)
            refs = pages[size]
            assert row["references"] == len(refs)
            key = (policy, size, frames)
            if key not in known:
                known[key] = peer_misses(make(frames), refs)
            assert row["faults"] == known[key], key
            assert row["faults"] >= row["pages"] == len(set(refs))
        tlb = {row["page_bytes"]: row["tlb_misses"] for row in result.rows}
        if policy == "lru":
            # The default TLB has 64 entries.
            for size, misses in tlb.items():
                assert misses == peer_misses(libcachesim.LRU(64), pages[size])


def test_access_time_is_the_equation_of_paper_000(mixed: Path) -> None:
    from nearfar import machine

    described = machine.load("optane-ssd")
    times = described.access_times()
    result = paging(mixed, machine="optane-ssd", page_sizes="4K,64K", write_back=True)
    for row in result.rows:
        e, d = row["tlb_misses"] / row["references"], row["faults"] / row["references"]
        t_io = described.io_ns(row["storage"], [row["page_bytes"]])[0]
        t_write = described.write_ns(row["storage"], [row["page_bytes"]])[0]
        t_a = (1 - e) * times.tlb_ns + e * (times.tlb_ns + times.dram_ns)
        t_d = (1 - d) * times.dram_ns + d * (times.dram_ns + t_io)
        t_d += row["dirty_evictions"] / row["references"] * t_write
        assert math.isclose(row["translation_ns"], t_a, rel_tol=1e-12)
        assert math.isclose(row["data_ns"], t_d, rel_tol=1e-12)
        assert math.isclose(row["total_ns"], t_a + t_d, rel_tol=1e-12)


def test_same_input_same_bytes(mixed: Path, tmp_path: Path) -> None:
    one, two = paging(mixed, threads=1), paging(mixed, threads=2)
    assert one.to_json() == two.to_json()
    for name, result in (("a", one), ("b", two)):
        result.write(tmp_path / name)
    assert (tmp_path / "a/result.parquet").read_bytes() == (
        tmp_path / "b/result.parquet"
    ).read_bytes()


def test_json_has_the_documented_keys(nearfar: Run, mixed: Path) -> None:
    done = nearfar("paging", mixed, "--machine", "desktop-nvm", "--format", "json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert set(found) == {"run", "rows", "fits", "chosen"}
    # 13 page sizes and 10 memory sizes; a fit for each memory size and one for all.
    cells = len(found["rows"]) / len({row["storage"] for row in found["rows"]})
    assert cells + len(found["run"]["too_few_frames"]) == 13 * 10
    documented = """page_bytes memory_bytes memory_fraction frames references tlb_misses
        tlb_miss_rate faults fault_rate dirty_evictions storage translation_ns data_ns
        total_ns""".split()  # noqa: SIM905
    assert all(key in row for row in found["rows"] for key in documented)
    assert len(found["fits"]) == 11
    for fit in found["fits"]:
        assert fit["verdict"] in ("good", "fair", "bad", "none")
        rows = [r for r in found["rows"] if fit["memory_bytes"] in (None, r["memory_bytes"])]
        assert len(fit["points"]) == len({row["page_bytes"] for row in rows})


def test_memories_of_fewer_than_8_pages_are_left_out(nearfar: Run, tmp_path: Path) -> None:
    """A note and the result list them. It is an error if all are left out."""
    html = tmp_path / "page.html"
    words = ["paging", CAPTURE, "--storage", "nvme", "--page-sizes", "4K,64K"]
    memory = f"{8 * 65536 - 1},{8 * 65536},32K"
    done = nearfar(*words, "--memory", memory, "--format", "json", "--html", html)
    found = json.loads(done.stdout)
    cells = {(row["page_bytes"], row["memory_bytes"]): row["frames"] for row in found["rows"]}
    assert cells == {
        (4096, 32768): 8, (4096, 524287): 127, (4096, 524288): 128, (65536, 524288): 8,
    }  # fmt: skip
    assert found["run"]["too_few_frames"] == [
        {"page_bytes": 65536, "memory_bytes": memory, "memory_fraction": None}
        for memory in (524287, 32768)
    ]
    note = "left out, as memory holds fewer than 8 pages, which thrash in any program: "
    assert f"nearfar: note: {note}64 KiB pages with 512 KiB and less\n" in done.stderr
    assert f"L{note[1:]}" in html.read_text()
    whole = nearfar(*words, "--memory", "1M")
    assert "left out" not in whole.stderr
    refused(
        nearfar(*words, "--memory", "32767,4K"),
        "--memory: no size holds 8 pages of 4096 bytes; with fewer pages, every program thrashes; "
        "give 32768 bytes or more, or smaller --page-sizes\n",
    )


@pytest.mark.parametrize("form", ["table", "csv", "parquet"])
def test_table_csv_and_parquet(nearfar: Run, mixed: Path, tmp_path: Path, form: str) -> None:
    words = ["paging", mixed, "--page-sizes", "4K,64K", "--memory", "50%,1M"]
    if form == "parquet":
        done = nearfar(*words, "-o", tmp_path / "run")
        table = pyarrow.parquet.read_table(tmp_path / "run/result.parquet")
        assert done.returncode == 0 and table.num_rows % 4 == 0
        assert "wall_seconds" in json.loads((tmp_path / "run/run.json").read_text())
    else:
        done = nearfar(*words, "--format", form)
        assert done.returncode == 0 and "\x1b" not in done.stdout
        assert "page_bytes" in done.stdout if form == "csv" else "Best page" in done.stdout


BAD = {
    "page size 0": (["--page-sizes", "0"], "--page-sizes"),
    "not a power of two": (["--page-sizes", "3000"], "powers of two"),
    "NaN page size": (["--page-sizes", "nan"], "--page-sizes"),
    "huge page size": (["--page-sizes", "8192T"], "--page-sizes"),
    "dangling dots": (["--page-sizes", "...,4K"], "both sides"),
    "memory 0": (["--memory", "0"], "--memory"),
    "memory 0 %": (["--memory", "0%"], "--memory"),
    "memory NaN": (["--memory", "nan%"], "--memory"),
    "negative memory": (["--memory", "-5%"], "--memory"),
    "tlb 0": (["--tlb", "0"], "--tlb"),
    "odd ways": (["--tlb", "64x5"], "64x5"),
    "unknown policy": (["--replacement", "lfu"], ", ".join(dict(names.REPLACEMENT))),
    "swappiness of clock": (["--swappiness", "100"], "--swappiness"),
    "swappiness over 200": (["--replacement", "linux", "--swappiness", "201"], "--swappiness"),
    "statistics of clock": (["--statistics-every", "0"], "--statistics-every"),
    "unknown kind": (["--kinds", "write"], "kernel-store"),
    "kind that is not there": (["--kinds", "fetch"], "no fetch records"),
    "unknown storage": (["--storage", "floppy"], "floppy"),
    "unknown machine": (["--machine", "pdp-11"], "pdp-11"),
    "unknown format": (["--format", "xml"], "--format"),
    "unknown flag": (["--pages", "4K"], "--pages"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_get_one_clear_line(nearfar: Run, mixed: Path, case: str) -> None:
    words, says = BAD[case]
    refused(nearfar("paging", mixed, *words), says)


def test_damaged_and_missing_traces_get_one_line(nearfar: Run, mixed: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.trace"
    shutil.copytree(mixed, broken)
    part = broken / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1000])
    for trace, says in ((broken, "truncated or damaged"), (tmp_path / "no.trace", "no such trace")):
        refused(nearfar("paging", trace), says)


def test_an_empty_trace_is_refused(nearfar: Run, mixed: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.trace"
    empty.mkdir()
    info = json.loads((mixed / "trace.json").read_text())
    info.update(records=0, parts=[], records_by_kind={}, pages_by_kinds={}, instructions=0)
    info.update(threads=[], regions=None)
    (empty / "trace.json").write_text(json.dumps(info))
    refused(nearfar("paging", empty), "holds no")
