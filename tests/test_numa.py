"""Placement on DRAM, persistent memory and CXL: the API, the command, machine descriptions."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

import browser
from conftest import DATA, Run, refused
from nearfar import machine, numa
from nearfar.errors import NearfarError
from nearfar.numa import paper
from nearfar.reproduce import reproduce

STATEMENTS = Path(__file__).resolve().parents[1] / "papers/004/statements.toml"
STATED = tomllib.loads(STATEMENTS.read_text())["statement"]


def test_every_result_of_the_paper_is_measured() -> None:
    """Each is within its tolerance, parsed here without the package."""
    found = paper.measures()
    assert {one["key"] for one in STATED} == found.keys()
    for one in STATED:
        ours, note = found[one["key"]]
        assert note
        if near := re.fullmatch(r"within (\d+)%", one["tolerance"]):
            assert abs(ours / one["published"] - 1) <= int(near[1]) / 100, (one["key"], ours)
        elif least := re.fullmatch(r">= ([\d.]+)", one["tolerance"]):
            assert ours >= float(least[1]), (one["key"], ours)
        elif most := re.fullmatch(r"<= ([\d.]+)", one["tolerance"]):
            assert ours <= float(most[1]), (one["key"], ours)
        else:
            low, high = one["tolerance"].split(" to ")
            assert float(low) <= ours <= float(high), (one["key"], ours)


def test_reproduce_has_a_row_for_each_statement() -> None:
    found = reproduce("numa")
    assert [row["paper"] for row in found.rows] == ["004"] * len(STATED)
    assert [row["input"] for row in found.rows] == [one.get("input", "") for one in STATED]
    usual, all_modules = found.sensitivity
    assert usual["holds"] == found.holding == found.counted > 0
    # A core that fills all modules at once is faster than published.
    assert len(all_modules["fewer"]) == 8 and not all_modules["more"]


def test_the_cells_of_table_two_are_the_papers() -> None:
    printed = {one["key"]: one["published"] for one in STATED if one["place"] == "table 2"}
    assert {f"{m}-{s}": v for (m, s), v in paper.TABLE_2.items()} == {
        key: value for key, value in printed.items() if value != "stated"
    }


@pytest.mark.parametrize("name", ["optane-4node", "cxl-2socket", "laptop"])
def test_a_possible_allocation_lands_completely(name: str) -> None:
    for allocator in ("vmalloc", "user"):
        for row in numa.alloc(["1G", "100G"], machine=name, allocator=allocator).rows:
            landed = sum(node["bytes"] for node in row["landed"])
            tables = sum(node["tables_bytes"] for node in row["landed"])
            assert row["possible"] == (landed == row["size_bytes"])
            assert row["capacity_bytes"] >= landed + tables or allocator == "user"


def test_modes_that_a_machine_cannot_be_in_are_left_out_unless_named() -> None:
    found = {row["mode"] for row in numa.alloc(["1G"], machine="laptop").rows}
    assert found == set(numa.modes()) - {"memory-mode"}
    with pytest.raises(NearfarError, match="cannot be in memory mode"):
        numa.alloc(["1G"], machine="laptop", mode=["memory-mode"])


def test_far_memory_is_chosen_by_node() -> None:
    row = numa.alloc(["10G"], mode=["kmem-dax"], allocator="user", nodes=[6]).rows[0]
    assert row["remote_far_bytes"] == 10 << 30
    kernels = numa.alloc(["10G"], mode=["kmem-dax"], nodes=[6]).rows[0]
    assert not kernels["possible"] and "movable memory" in kernels["why_not"]
    options: dict[str, Any] = {"mode": ["weighted-interleave"], "nodes": [0, 4], "weights": [16, 3]}
    weighted = numa.alloc(["19M"], allocator="user", **options).rows[0]
    assert [e["bytes"] >> 20 for e in weighted["landed"] if e["bytes"]] == [16, 3]
    assert weighted["note"] is None
    left_out = numa.alloc(["19M"], **options)
    assert "none of it is on pmem4: vmalloc" in (left_out.rows[0]["note"] or "")
    assert "none of it is on pmem4: vmalloc" in repr(left_out)


def test_a_trace_runs_under_every_mode(mixed: Path) -> None:
    rows = numa.run(mixed, threads=2).rows
    assert [row["mode"] for row in rows] == list(numa.modes())
    places = ("local_dram_share", "remote_dram_share", "local_far_share", "remote_far_share")
    for row in rows:
        assert row["possible"] and row["accesses"] == rows[0]["accesses"] > 0
        assert sum(row[place] for place in places) == pytest.approx(1)
        assert row["footprint_bytes"] == rows[0]["footprint_bytes"]
        assert row["gb_per_second"] > 0 and 80 < row["latency_ns"] < 400
    by_mode = {row["mode"]: row for row in rows}
    assert by_mode["local"]["latency_ns"] < by_mode["interleave"]["latency_ns"]
    # Clearing at first touch brings each page into the DRAM cache, where all fit.
    assert by_mode["memory-mode"]["cache_hit_rate"] == 1
    shuffled = numa.run(mixed, mode=["memory-mode"], shuffle=True).rows[0]
    assert 0.99 < shuffled["cache_hit_rate"] <= 1


def test_a_stream_that_does_not_fit_the_cache_misses() -> None:
    # 192 GiB is twice the cache. A hit takes 101 ns; a miss adds 305 ns.
    row = numa.run("192G", mode=["memory-mode"]).rows[0]
    assert row["cache_hit_rate"] == pytest.approx(0.5, abs=0.001)
    assert row["latency_ns"] == pytest.approx(101 + 0.5 * 305, rel=0.01)
    # With pages at random places, the hit rate is (1 - exp(-2)) / 2.
    shuffled = numa.run("192G", mode=["memory-mode"], shuffle=True).rows[0]
    assert shuffled["cache_hit_rate"] == pytest.approx(0.432, abs=0.001)
    assert numa.run("9000G", mode=["alius"]).rows[0]["possible"] is False


SLIT = {0: [10, 21, 17, 28], 1: [21, 10, 28, 17], 2: [17, 28, 10, 28], 3: [28, 17, 28, 10]}


def sysfs(root: Path) -> Path:
    """A fake /sys of two nodes with cores and two without."""
    folder = root / "devices" / "system" / "node"
    for number, row in SLIT.items():
        node = folder / f"node{number}"
        # A device is nearer to node 2 than any processor.
        device = node / "access0" / "initiators"
        best = node / "access1" / "initiators" if number == 2 else device
        for initiators in {device, best}:
            initiators.mkdir(parents=True)
            (initiators / "read_latency").write_text("90\n")
        (node / "meminfo").write_text(f"Node {number} MemTotal:  {(number + 1) << 20} kB\n")
        (node / "cpulist").write_text({0: "0-1\n", 1: "2,3\n"}.get(number, "\n"))
        (node / "distance").write_text(" ".join(map(str, row)) + "\n")
        (best / "read_latency").write_text("101\n" if number < 2 else "305\n")
        (best / "read_bandwidth").write_text("45000\n")
        (best / "write_bandwidth").write_text("0\n")
    for cpu in range(4):
        package = root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        package.mkdir(parents=True)
        (package / "physical_package_id").write_text(f"{cpu // 2}\n")
    device = root / "bus" / "dax" / "devices" / "dax0.0"
    device.mkdir(parents=True)
    (device / "target_node").write_text("2\n")
    return folder


def test_sysfs_is_read(tmp_path: Path) -> None:
    found = numa.describe([sysfs(tmp_path)])
    assert [node.size >> 30 for node in found] == [1, 2, 3, 4]
    assert [node.cpus for node in found] == [2, 2, 0, 0]
    assert [node.socket for node in found] == [0, 1, 0, 1]
    assert [node.kind for node in found] == ["dram", "dram", "pmem", "cxl"]
    assert found[2].read_latency == 305 and found[2].write_bandwidth is None
    assert found[0].read_bandwidth == 45_000_000_000
    text, assumed = numa.to_machine(found)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    one = machine.load(str(path)).to_dict()
    assert one["topology"]["distances"]["value"] == list(SLIT.values())
    assert any("write_bandwidth" in line for line in assumed)
    assert one["node"]["node2"]["local"]["write_bandwidth"]["source"].startswith("assumption")
    assert one["node"]["node2"]["local"]["read_latency"]["source"] == str(found[2].source)
    # Without node2, node3 is renumbered.
    shutil.rmtree(tmp_path / "devices" / "system" / "node" / "node2")
    text, assumed = numa.to_machine(numa.describe([tmp_path / "devices" / "system" / "node"]))
    assert any("renumbered" in line for line in assumed)
    assert len(tomllib.loads(text)["topology"]["nodes"]) == 3
    row = numa.run("5G", machine=str(path), mode=["kmem-dax"]).rows[0]
    assert row["possible"] and row["local_far_share"] > 0


def test_a_file_of_unknown_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given"
    path.write_text("available: 1 nodes (0)\n")
    with pytest.raises(NearfarError, match="unknown format; known are acpi, sysfs"):
        numa.describe([path])


def test_commands_print_and_import(nearfar: Run, tmp_path: Path, mixed: Path) -> None:
    found = nearfar("numa", "alloc", "--size", "80G,3000G", "--mode", "memory-mode,alius",
                    "--format", "json")  # fmt: skip
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["rows"]
    assert [row["possible"] for row in rows] == [True, False, True, True]
    csv = nearfar("numa", "pair", "48G", "24G", "--overlap", "1", "--format", "csv")
    assert csv.stdout.splitlines()[0].count(",") == 11 and len(csv.stdout.splitlines()) == 3
    shown = nearfar("numa", "run", mixed, "--mode", "local,interleave")
    assert "local " in shown.stdout and shown.stderr == ""
    made = nearfar("numa", "import", "-o", tmp_path / "here.toml")
    assert made.returncode == 0 and "note: assumed" in made.stderr
    assert machine.load(str(tmp_path / "here.toml")).to_dict()["topology"]["nodes"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["alloc", "--size", "80X"], "--size: '80X' is not a size"),
        (["alloc", "--size", "1G", "--mode", "memroy"], "--mode: no mode"),
        (["alloc", "--size", "1G", "--from", "4"], "--from: node 4 has no cores"),
        (["alloc", "--size", "1G", "--nodes", "x"], "--nodes: x is out of range"),
        (["alloc", "--size", "1G", "--allocator", "brk"], "--allocator: no allocator 'brk'"),
        (["alloc", "--size", "1G", "--machine", "nvme"], "machine nvme: has no node.dram.local."),
        (["run", "nosuch"], "nosuch: is not a trace folder, a workload"),
        (["run", "1G", "--pattern", "odd"], "--pattern: no pattern 'odd'"),
        (["run", "1G", "--writes", "2"], "--writes: '2' is not a share"),
        (["pair", "48G", "48G", "--overlap", "1,x"], "--overlap"),
        (["pair", "48G", "48G", "--overlap", "2"], "--overlap: '2' is not a share"),
        (["alloc", "--size", "1G", "--weights", "0"], "--weights: 0 is out of range"),
        (["alloc", "--size", "1G", "--threads", "0"], "--threads: 0 is out of range"),
        (["pair", "48G", "48G", "--machine", "laptop"], "cannot be in memory mode"),
        (["pair", "4000G", "48G"], "larger than a node's memory"),
        (["import", "/nonexistent"], "/nonexistent: cannot open: No such file"),
        (["alloc", "--size", "1G", "--format", "xml"], "'--format': 'xml'"),
    ],
)
def test_mistakes_get_one_line(nearfar: Run, words: list[str], part: str) -> None:
    refused(nearfar("numa", *words), part)


def test_the_page_fits_a_telephone(nearfar: Run, tmp_path: Path) -> None:
    out = tmp_path / "numa.html"
    words = ["numa", "alloc", "--mode", "memory-mode,alius", "--size", "80G,700G,3000G"]
    assert nearfar(*words, "--html", out).returncode == 0
    for width in (360, 1280):
        with browser.opened(out, width=width, ready="figure svg") as (page, problems):
            assert page.evaluate("document.documentElement.scrollWidth") == width
            # Figures have labels in words, and the table can be focused by keyboard.
            label = page.get_attribute("figure svg[aria-label*=pmem4]", "aria-label")
            assert (
                "pmem4, 757 GiB: 10.6 % filled" in label and "dram0, 96 GiB: not available" in label
            )
            reached = []
            for _ in range(2):
                page.keyboard.press("Tab")
                reached.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
            assert reached[1:] == ["Allocations"]
        assert problems == []


def test_the_name_of_a_workload_means_its_bundled_capture(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = DATA / "captures" / "gunzip.trace"
    monkeypatch.chdir(tmp_path)
    by_name = numa.run("gunzip", mode=["alius"], threads=4).rows
    assert by_name == numa.run(small, mode=["alius"], threads=4).rows
    pairs = numa.pair("gunzip", "redis", overlap=[1.0], cache="256K").rows
    assert pairs == numa.pair(small, DATA / "captures" / "redis.trace", overlap=[1.0],
                              cache="256K").rows  # fmt: skip
    # A whole capture in the current folder comes first.
    shutil.copytree(DATA / "captures" / "sqlite.trace", tmp_path / "gunzip.trace")
    sqlite = numa.run(DATA / "captures" / "sqlite.trace", mode=["alius"]).rows
    assert numa.run("gunzip", mode=["alius"]).rows == sqlite
    refused(nearfar("numa", "run", "gunzipp"), "is not a trace folder, a workload")


def test_bandwidth_is_shared_by_threads() -> None:
    def speed(threads: int) -> tuple[float, str]:
        row = numa.run("gunzip", mode=["local"], threads=threads).rows[0]
        return row["gb_per_second"], row["bound_by"]

    one, few, many = speed(1), speed(2), speed(256)
    assert one[1] == "cores" and few[0] == pytest.approx(2 * one[0])
    # 256 threads saturate the memory, so that 512 gain nothing.
    assert many[1] == "dram0" and few[0] < many[0] < 256 * one[0] and speed(512) == many


def test_the_page_draws_the_machine(nearfar: Run, tmp_path: Path) -> None:
    out = tmp_path / "numa.html"
    words = ["numa", "alloc", "--mode", "memory-mode,alius", "--size", "80G,1000G,3000G"]
    found = nearfar(*words, "--html", out)
    assert found.returncode == 0, found.stderr
    text = out.read_text()
    assert len(text.encode()) < 3_000_000 and "Content-Security-Policy" in text
    main = text[text.index("<main") : text.index("</main>")]
    # Each of six allocations has a figure with the whole machine; five are possible and charted.
    assert main.count("<figcaption>") == 6 and main.count(">socket 1<") == 6
    assert main.count("<title>pmem6, 757 GiB") == 6
    assert text.count('"source":"computed"') == 5 and text.count('"source":"published"') == 9
    assert "impossible" in main
    # 1000 GiB of aliusM: what DRAM cannot hold is split evenly.
    assert "<title>pmem4, 757 GiB: 44.7 % filled</title>" in main
    assert "<title>pmem5, 757 GiB: 44.7 % filled</title>" in main
    nearfar(*words, "--html", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == out.read_bytes()
