"""``nearfar ssd``: sums, predictions, command, errors, page. Rust tests check exact values."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import browser
from conftest import DATA, Run, refused
from nearfar import machine
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.generate import generate
from nearfar.ssd import SsdResult, ssd, warnings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four threads, skewed references to 2,000 pages, a third of them writes."""
    path = tmp_path_factory.mktemp("server") / "server.trace"
    generate("zipf", path, refs=120_000, pages=2000, seed=3, threads=4, write_ratio=0.3)
    return path


@pytest.fixture(scope="module")
def result(server: Path) -> SsdResult:
    return ssd(server, dram=["2M", 6 << 20])


def test_a_row_for_every_size_and_policy(result: SsdResult) -> None:
    found = [(row["dram_bytes"] >> 20, row["epf"]) for row in result.rows]
    assert found == [(size, epf) for size in (2, 6) for epf in ("none", "all", "smart:50us")]
    named = """epf dram_bytes seconds accesses tlb_misses embedded_faults embedded_fault_rate
        passed_to_kernel passed_share page_faults cpu_busy cpu_idle cpu_switch predicted_us_mean
        actual_us_mean flash_reads flash_programs gc_collections gc_moved write_amplification"""
    for row in result.rows:
        assert set(named.split()) <= set(row)


def test_rows_add_up(result: SsdResult) -> None:
    for row, detail in zip(result.rows, result.details, strict=True):
        cpu = row["cpu_busy"] + row["cpu_stall"] + row["cpu_switch"] + row["cpu_idle"]
        assert cpu == pytest.approx(row["seconds"], abs=1e-9)
        assert row["references"] == 120_000
        assert row["flash_programs"] == row["dirty_evictions"] + row["gc_moved"]
        programs = row["flash_programs"] / row["dirty_evictions"]
        assert row["write_amplification"] == pytest.approx(programs)
        assert sum(part["actual"] for part in detail["service"]) == row["services"]
        assert sum(part["predicted"] for part in detail["service"]) == row["services"]
        assert detail["conditioned"]["collecting"]
        share = row["passed_to_kernel"] / row["embedded_faults"]
        assert row["passed_share"] == pytest.approx(share)
        assert row["passed_share"] == {"none": 0, "all": 1}.get(row["epf"], share)
        stalls = sum(part[1] for thread in detail["timeline"]["threads"] for part in thread)
        assert stalls / 1e9 == pytest.approx(row["cpu_stall"], abs=1e-9)


def test_sleeping_is_faster_if_other_threads_can_run(result: SsdResult) -> None:
    for size in (2 << 20, 6 << 20):
        none, every, smart = (row["seconds"] for row in result.rows if row["dram_bytes"] == size)
        assert every < none
        assert smart < none
    assert result.best(dram_bytes=2 << 20)["epf"] != "none"


def test_a_clean_miss_is_predicted_to_take_a_read(tmp_path: Path) -> None:
    """A read takes 25 us, the program of a dirty victim 200 us, a DRAM access 50 ns."""
    trace = tmp_path / "one.trace"
    generate("uniform", trace, refs=20_000, pages=1000, seed=1, write_ratio=0.1)
    found = ssd(trace, dram=["2M"], epf=["none"], precondition=(0.0, 0.0))
    low = [part for part in found.details[0]["service"] if part["low_ns"] <= 25_050]
    # A first touch with a clean victim takes a DRAM access only.
    assert all(
        part["low_ns"] <= at < part["high_ns"] for part, at in zip(low, (50, 25_050), strict=True)
    )
    row = found.rows[0]
    # Pages enter by a first touch (dirty, so programmed when they leave) or by a read.
    clean = row["evictions"] - row["dirty_evictions"]
    assert clean > 1000
    # Each service evicts a page and writes the new one to its frame.
    assert row["services"] == row["evictions"]
    total = row["flash_reads"] * 25 + row["flash_programs"] * 200.05 + row["evictions"] * 0.05
    assert row["predicted_us_mean"] * row["services"] == pytest.approx(total)
    assert row["prediction_error_us_max"] == 0
    assert "not full enough" in "".join(warnings(found))


def test_the_result_does_not_depend_on_threads(server: Path, result: SsdResult) -> None:
    again = ssd(server, dram=["2M", 6 << 20], threads=1)
    assert again == result
    assert again.to_json() == result.to_json()


def test_the_command_prints_what_python_answers(
    server: Path, result: SsdResult, nearfar: Run, tmp_path: Path
) -> None:
    words = ("ssd", server, "--dram", "2M,6M")
    shown = nearfar(*words, "--format", "json", "-o", tmp_path / "out")
    assert shown.returncode == 0, shown.stderr
    printed = json.loads(shown.stdout)
    assert printed["rows"] == result.rows
    assert printed["details"] == result.details
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["details"] == result.details
    rows = list(csv.DictReader(io.StringIO(nearfar(*words, "--format", "csv").stdout)))
    assert [float(row["seconds"]) for row in rows] == [row["seconds"] for row in result.rows]


def test_the_table_names_the_fastest(result: SsdResult, server: Path, nearfar: Run) -> None:
    shown = nearfar("ssd", server, "--dram", "2M", "--epf", "none,smart:0ns")
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    shown_rows = [line[2] for line in lines if line[:2] == ["2", "MiB"]]
    assert shown_rows == ["none", "smart:0ns"] * 3
    rows = [line for line in shown.stdout.splitlines() if line.split()[:2] == ["2", "MiB"]]
    assert max(map(len, rows)) <= 80
    assert "Flash at the start" in shown.stdout
    assert "M references" not in shown.stderr


def test_help_names_every_policy(nearfar: Run) -> None:
    shown = nearfar("ssd", "--help").stdout
    assert "Example: nearfar ssd" in " ".join(shown.split())
    policies = ", ".join(name for name, _ in names.EPF)
    assert f"(`smart:50us`). One of: {policies}." in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--epf", "some"), "--epf: no policy"),
        (("--epf", "smart"), "write smart:50us"),
        (("--dram", "0"), "--dram: '0' is not a size"),
        (("--dram", "16K"), "too few for 4 threads"),
        (("--dram", "4G"), "--dram: 4294967296 bytes must be between one page"),
        (("--precondition", "60%"), "--precondition: 1 shares, not 2"),
        (("--precondition", "60%,150%"), "not a share from 0 to 100 %"),
        (("--overwrite", "twice"), "'twice'; choose one of once, drawn"),
        (("--atomic", "some"), '--atomic: no kind of reference is called "some"'),
        (("--first-touch", "old"), "'old'; choose one of new, stored"),
        (("--l2p", "far"), "'far'; choose one of cached, device"),
        (("--sleep-granularity", "50"), "--sleep-granularity: '50' is not a time"),
        (("--machine", "nvme"), "the ssd study supports only TLBs of one level"),
        (("--machine", "cxl"), "has no [cpu], which the ssd study needs"),
        (("--disk", "tape"), "no storage named `tape`; did you mean `hdd`?"),
        (("--format", "xml"), "'--format': 'xml' is not one of"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], part: str, server: Path, nearfar: Run
) -> None:
    refused(nearfar("ssd", server, *words), part)


def test_a_trace_larger_than_the_device_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "large.trace"
    generate("strided", trace, refs=600_000, pages=600_000, stride=4096, seed=1)
    with pytest.raises(NearfarError, match="touches more than the 523962 pages"):
        ssd(trace, dram=["100M"], epf=["none"])


def test_a_coarser_sleep_granularity_takes_longer(server: Path) -> None:
    def seconds(granularity: int) -> float:
        found = ssd(server, dram=["2M"], epf=["all"], sleep_granularity=granularity)
        return float(found.rows[0]["seconds"])

    assert seconds(0) < seconds(1_000_000)


def test_the_machine_of_paper_002_has_its_values() -> None:
    described = machine.load("umd").to_dict()
    flash = described["flash"]
    published = {"read": "25us", "program": "200us", "page_size": "4KiB"}
    assert {key: flash[key]["value"] for key in published} == published
    tlb = [described["tlb"][side]["entries"]["value"] for side in ("first", "instruction")]
    assert tlb == [32, 32]
    assert described["cpu"]["cores"]["value"] == 1
    assert described["node"]["dram"]["local"]["read_latency"]["value"] == "50ns"
    pages = flash["channels"]["value"] * flash["dies_per_channel"]["value"]
    pages *= flash["blocks_per_plane"]["value"] * flash["pages_per_block"]["value"]
    user = pages / (1 + flash["over_provisioning"]["value"]) * 4096
    assert user == pytest.approx(2 << 30, rel=0.001)


PIGZ = DATA / "captures" / "pigz-45-pages.trace"


def test_pigz_gains_only_if_page_cache_copies_may_sleep() -> None:
    def gain(atomic: str) -> float:
        found = ssd(PIGZ, dram=["40M"], epf=["none", "all"], atomic=atomic, first_touch="stored")
        none, every = (float(row["seconds"]) for row in found.rows)
        return 1 - every / none

    assert gain("kernel") < 0.01
    assert gain("none") > 0.03


def test_the_page_works_in_a_browser(result: SsdResult, tmp_path: Path) -> None:
    path = tmp_path / "ssd.html"
    text = result.html()
    assert text == result.html()
    path.write_text(text, encoding="utf-8")
    assert path.stat().st_size < 3 << 20
    with browser.opened(path) as (page, problems):
        assert page.locator(".ssd-bar").count() == len(result.rows)
        page.select_option("#which", "2")
        # The threshold of smart:50us.
        page.wait_for_selector('line[stroke-dasharray="4,4"]', state="attached")
        assert page.locator(".mark-rect path").count() > 5
    assert problems == []


def test_too_many_rows_for_a_page_are_refused(result: SsdResult) -> None:
    many = SsdResult(result.run, result.rows * 40, result.details * 40)
    with pytest.raises(NearfarError, match="more than one page holds"):
        many.html()
