"""``nearfar advise --view machine``: page sizes by simulated time on a machine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, Run, refused
from nearfar import gain_error as errors
from nearfar import machine as machines
from nearfar.advise import advise, by_machine
from nearfar.advise.architectures import transparent
from nearfar.advise.fleet import Vm
from nearfar.advise.regret import evaluate
from nearfar.errors import NearfarError
from nearfar.generate import generate
from nearfar.paging import paging

GNUGO = DATA / "captures" / "gnugo.trace"
#: Page sizes that x86-64 can set, without hugetlbfs's 1 GiB, which the view does not simulate.
SETTABLE = [4096, *(4096 << power for power in range(2, 10))]
#: Columns that only the paper view's model fills.
OF_MODELS = (
    "model_regret",
    "judged_page_bytes",
    "confidence",
    "left_out_error",
    "largest_error",
)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random references to 156 MiB, which gain by large pages."""
    trace = tmp_path_factory.mktemp("view") / "walk.trace"
    generate("uniform", trace, refs=200_000, pages=40_000, seed=1)
    return trace


def advice(trace: Path, **options: Any) -> dict[str, Any]:
    (row,) = advise(trace, view="machine", machine="zen4-vm", **options).rows
    return dict(row)


def test_a_trace_of_a_virtual_machine_has_no_nested_pages(
    walk: Path, tmp_path: Path, nearfar: Run
) -> None:
    """A page of such a trace is a host page, so no nested page size limits TLB entries."""
    trace = tmp_path / "vm.trace"
    shutil.copytree(walk, trace)
    info = json.loads((trace / "trace.json").read_text())
    info["source"]["vm_memory_bytes"] = 1 << 30
    (trace / "trace.json").write_text(json.dumps(info))
    of_vm, of_program = (advise(one, machine="nvme", whole=True) for one in (trace, walk))
    assert (of_vm.run["options"]["nested"], of_program.run["options"]["nested"]) == (None, 4096)
    assert of_vm.rows[0]["gain"] > of_program.rows[0]["gain"]
    for command in ("paging", "advise", "thp"):
        done = nearfar(command, trace, "--machine", "nvme", "--nested", "4K")
        refused(done, "--nested: the trace is of a virtual machine")


def test_advice_is_the_size_of_least_time_in_the_paging_study(walk: Path) -> None:
    row = advice(walk, nested="2M", whole=True)
    study = paging(
        walk, view="machine", machine="zen4-vm", nested="2M", memory="100%", page_cache="cold"
    ).rows
    times = {
        r["page_bytes"]: r["total_ns"] * r["references"] / study[0]["references"]
        for r in study
        if r["page_bytes"] in SETTABLE
    }
    assert {p["page_bytes"]: p["predicted_ns"] for p in row["curve"]} == pytest.approx(times)
    assert row["fitted_page_bytes"] == SETTABLE
    fastest = min(times, key=lambda size: times[size])
    assert row["model_page_bytes"] == fastest and row["model"] == "machine"
    # The smallest size whose gain is within 5 points of the fastest size's.
    best = min(s for s, time in times.items() if (time - times[fastest]) / times[4096] <= 0.05)
    assert row["advised_page_bytes"] == row["settable_page_bytes"] == best > 4096
    assert row["predicted_ns"] == row["simulated_ns"] == pytest.approx(times[best])
    assert row["gain"] == pytest.approx(1 - times[best] / times[4096])
    assert row["model_gain"] == pytest.approx(1 - times[fastest] / times[4096])
    assert row["gain_error"] == errors.gain_error(row["gain"]) < row["gain"]
    assert row["regret"] == pytest.approx(times[best] / times[fastest] - 1)
    assert row["memory_fraction"] == 1.0
    assert [row[name] for name in OF_MODELS] == [None] * len(OF_MODELS)
    resident = {r["page_bytes"]: r["resident_bytes"] or 0 for r in study}
    assert row["bloat_bytes"] == resident[best] - resident[4096]
    assert f"{errors.saving(row['gain'])} less than with 4 KiB" in row["why"]


@pytest.mark.parametrize(
    ("gains", "advised", "more"),
    [
        ({16384: 0.27, 65536: 0.29, 262144: 0.31}, 16384, "256 KiB would gain 4.0 points"),
        ({16384: 0.25, 65536: 0.29, 262144: 0.31}, 65536, "256 KiB would gain 2.0 points"),
        ({16384: 0.20, 65536: 0.25, 262144: 0.31}, 262144, ""),
        # Equal gains, but 4 % is within the error and so counts as none.
        ({16384: 0.04, 65536: 0.07}, 65536, ""),
    ],
)
def test_of_sizes_with_equal_gain_the_smallest_is_advised(
    rows: list[dict[str, Any]], gains: dict[int, float], advised: int, more: str
) -> None:
    changed: list[Any] = gaining(rows, 0)
    for row in changed:
        if row["page_bytes"] in gains:
            row["data_ns"] = row["total_ns"] = 100 * (1 - gains[row["page_bytes"]])
    row = by_machine.advice(vm(), changed)
    assert row["advised_page_bytes"] == advised
    assert row["gain"] == pytest.approx(gains[advised])
    assert row["model_gain"] == pytest.approx(max(gains.values()))
    assert more in row["why"] and ("within the error" in row["why"]) == bool(more)


def test_the_host_has_pages_of_4_kib_unless_the_machine_or_an_option_says(tmp_path: Path) -> None:
    trace = tmp_path / "walk.trace"
    generate("uniform", trace, refs=100_000, pages=20_000, seed=1)

    def times(**options: Any) -> list[float]:
        (row,) = advise(trace, machine="nvme", **options).rows
        return [point["simulated_ns"] for point in row["curve"]]

    usual = times()
    assert usual == times(nested="4K") > times(nested="1G")
    alone = paging(trace, machine="nvme", memory="100%").rows
    assert usual[0] > alone[0]["total_ns"] - (alone[0]["start_ns"] or 0)
    # This machine states that its host has pages of 4 KiB.
    (row,) = advise(trace, machine="zen4-vm").rows
    assert row == advise(trace, machine="zen4-vm", nested="4K").rows[0]


def test_every_page_size_has_the_same_references(rows: list[dict[str, Any]]) -> None:
    """A reference that crosses a page border counts once, so larger pages save no instructions."""
    assert len(rows) > 2 and len({(row["references"], row["cpu_ns"]) for row in rows}) == 1


def vm(min_gain: float = 0.05, arch: str = "x86-64") -> Vm:
    return Vm("vm", GNUGO, "gnugo", "100%", "zen4-vm", "disk", arch, min_gain)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    found = paging(GNUGO, view="machine", machine="zen4-vm", memory="100%", storage=["disk"])
    return [dict(row) for row in found.rows]


def gaining(rows: list[dict[str, Any]], gain: float) -> list[Any]:
    """The rows with times by which 64 KiB gains the share ``gain``, and other sizes nothing."""
    times = {4096: 100.0, 65536: 100.0 * (1 - gain)}
    return [
        {
            **row,
            "references": 1000,
            "translation_ns": 0.0,
            "data_ns": times.get(row["page_bytes"], 101.0),
            "total_ns": times.get(row["page_bytes"], 101.0),
            "start_ns": 0.0,
            "resident_bytes": 1 << 20,
        }
        for row in rows
    ]


@pytest.mark.parametrize(
    ("gain", "min_gain", "advised", "message"),
    [
        (0.031, 0.0, 4096, "Stay at 4 KiB (100 ns per reference once memory is filled): 64 KiB is "
         "predicted to gain 3.1 %, which is within the error (5 points)."),
        (0.049, 0.0, 4096, "which is within the error (5 points)"),
        (0.06, 0.05, 65536, "64 KiB: 94 ns per reference predicted once memory is filled, "
         "6 % (1 to 11 %) less than with 4 KiB."),
        (0.3, 0.05, 65536, "30 % (20 to 40 %) less"),
        (0.3, 0.4, 4096, "64 KiB is predicted to be fastest, but to gain less than 40 %"),
        (-0.1, 0.0, 4096, "4 KiB is predicted to be best: 100 ns per reference once memory is "
         "filled."),
    ],
)  # fmt: skip
def test_a_size_whose_gain_is_within_the_error_is_not_advised(
    rows: list[dict[str, Any]], gain: float, min_gain: float, advised: int, message: str
) -> None:
    row = by_machine.advice(vm(min_gain), gaining(rows, gain))
    assert row["advised_page_bytes"] == row["settable_page_bytes"] == advised
    assert message in row["why"], row["why"]
    assert row["gain"] == pytest.approx(gain if advised == 65536 else 0)
    assert row["model_gain"] == pytest.approx(max(gain, 0))


def test_limit_names_the_largest_part_of_the_time(rows: list[dict[str, Any]]) -> None:
    parts = dict.fromkeys(("cpu_ns", "tlb_ns", "cache_ns", "fault_ns", "io_ns", "dram_ns"), 2.0)
    for longest, limit in {"walk_ns": "translation", "cpu_ns": "processor", "io_ns": "storage",
                           "fault_ns": "faults", "dram_ns": "memory"}.items():  # fmt: skip
        spent = [{**row, **parts, "walk_ns": 0.5, longest: 7.0} for row in rows]
        assert by_machine.advice(vm(), spent)["limit"] == limit  # type: ignore[arg-type]


def test_only_sizes_of_transparent_huge_pages_are_advised(rows: list[dict[str, Any]]) -> None:
    for arch in ("x86-64", "aarch64"):
        assert [one.page_bytes for one in transparent(arch)] == SETTABLE
    row = by_machine.advice(vm(arch="aarch64"), gaining(rows, 0.3))
    assert (row["settable_page_bytes"], row["mechanism"]) == (65536, "mthp"), "no granule"


def test_sizes_that_cannot_be_set_are_not_tried() -> None:
    row = advice(GNUGO, page_sizes="1K,8K,64K")
    assert [point["page_bytes"] for point in row["curve"]] == [4096, 65536]


def test_only_rows_with_too_little_memory_wait_for_storage(walk: Path) -> None:
    shown = {"view": "machine", "machine": "zen4-vm", "memory": "50%,100%"}
    half, whole = advise(walk, **shown).rows
    assert half["memory_bytes"] < whole["memory_bytes"]
    assert half["predicted_ns"] > whole["predicted_ns"], "pages are read back"
    slow = machines.load("zen4-vm", set={"storage.disk.read_latency": "5ms"})
    later, same = advise(walk, view="machine", machine=[slow], memory="50%,100%").rows
    assert later["predicted_ns"] > half["predicted_ns"]
    assert same["predicted_ns"] == whole["predicted_ns"]


def test_each_machine_has_its_own_times(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(machines.load("zen4-vm", set={"cpu.ipc": "1"}).to_toml(), encoding="utf-8")
    both = advise(GNUGO, view="machine", machine=["zen4-vm", str(other)]).rows
    (alone,) = advise(GNUGO, view="machine", machine=[str(other)]).rows
    assert both[1]["curve"] == alone["curve"] != both[0]["curve"]


def test_the_command_of_a_run_gives_its_rows_again(nearfar: Run) -> None:
    first = advise(GNUGO, view="machine", machine="zen4-vm", nested="2M", page_cache="warm",
                   page_sizes="4K,16K,2M", storage="disk")  # fmt: skip
    again = nearfar(*shlex.split(first.run["command"])[1:], "--format", "json")
    assert json.loads(again.stdout)["rows"] == first.rows, again.stderr
    assert "--view machine" in first.run["command"]


def test_the_table_and_the_page_show_the_error_of_the_gain(nearfar: Run, tmp_path: Path) -> None:
    words = ("advise", GNUGO, "--view", "machine", "--machine", "zen4-vm")
    done = nearfar(*words, "-o", tmp_path / "run", "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    (row,) = advise(GNUGO, view="machine", machine="zen4-vm").rows
    assert "gain error" in done.stdout and errors.points(row["gain_error"] or 0) in done.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'class="verdict unknown">' in page and "points" in page
    from nearfar.run_folder import open_run

    assert open_run(tmp_path / "run").result.rows == [row]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--machine", "desktop-nvm"), ("cpu.reorder_window", "--view paper")),
        (("--sizes", "4"), ("--sizes: does not apply to --view machine", "or use --view paper")),
        (("--model", "bridge"), ("--model: does not apply to --view machine",)),
        (("--evaluate",), ("--evaluate", "--view paper")),
        (("--tlb", "32"), ("--tlb", "--view machine")),
        (("--filter", "cache"), ("--filter", "--view machine")),
        (("--arch", "sparc"), ("--arch: no architecture",)),
        (("--storage", "floppy"), ("floppy",)),
        (("--view", "paper", "--nested", "2M"), ("--nested", "--view machine")),
        (
            ("--view", "paper", "--page-cache", "warm"),
            ("--page-cache: does not apply", "or use --view machine"),
        ),
        (("--view", "mine"), ("--view", "paper, machine")),
    ],
)
def test_bad_options_are_an_error(nearfar: Run, options: tuple[str, ...], words: list[str]) -> None:
    done = nearfar("advise", GNUGO, "--machine", "zen4-vm", "--view", "machine", *options)
    refused(done, *words)


def test_evaluation_needs_the_paper_views_model() -> None:
    rows = advise(GNUGO, view="machine", machine="zen4-vm").rows
    with pytest.raises(NearfarError, match="--view paper"):
        evaluate(rows)


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        ({"whole": True}, r"16 KiB saves \d+ % of the time with 4 KiB\."),
        ({}, r"4 KiB, as no other page size gains enough\."),
        ({"storage": ["nvme", "zram"], "whole": True}, r"2 of 2 cases should use larger pages .*"),
    ],
)
def test_the_page_is_titled_by_its_only_trace(options: dict[str, Any], finding: str) -> None:
    text = advise([GNUGO], **{"machine": ["nvme"], "storage": ["nvme"], **options}).html()
    assert "<h1>How big should the pages of <code>gnugo.trace</code> be?</h1>" in text
    assert "irtual machine" not in text
    assert ("Choose a row" in text) is ("storage" in options)
    (line,) = re.findall(r'id="finding"[^>]*>(.*?)</p>', text)
    assert re.fullmatch(finding, line.replace("\u00a0", " "))
