"""Several machines in one paging study, each with its own storages and memory latency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import browser
from conftest import DATA, Run
from nearfar import machine as machines
from nearfar import paging_answers as answers
from nearfar import paging_findings as findings
from nearfar.diff import diff
from nearfar.errors import NearfarError
from nearfar.paging import PagingResult, paging, warnings
from nearfar.run_folder import open_run

GNUGO = DATA / "captures" / "gnugo.trace"
OPTIONS: dict[str, Any] = {"memory": "25%,50%,100%", "page_sizes": "4K,64K"}


@pytest.fixture(scope="module")
def both() -> PagingResult:
    return paging(GNUGO, machine="nvme,zen4-vm", **OPTIONS)


@pytest.fixture(scope="module")
def optane() -> PagingResult:
    return paging(GNUGO, machine=["optane-ssd", "desktop-hdd"], **OPTIONS)


@pytest.mark.parametrize("names", ["nvme,zen4-vm", "optane-ssd,desktop-hdd"])
def test_rows_are_those_of_each_machine_alone(names: str) -> None:
    found = paging(GNUGO, machine=names, **OPTIONS)
    alone = [
        row for name in names.split(",") for row in paging(GNUGO, machine=name, **OPTIONS).rows
    ]
    assert found.rows == alone
    assert [row["machine"] for row in found.rows] == [
        name for name in names.split(",") for row in alone if row["machine"] == name
    ]


def test_a_list_is_the_same_as_commas(both: PagingResult) -> None:
    assert paging(GNUGO, machine=["nvme", machines.load("zen4-vm")], **OPTIONS) == both
    assert paging(GNUGO, machine=["nvme"], **OPTIONS) == paging(GNUGO, machine="nvme", **OPTIONS)


def test_all_machines_have_one_view() -> None:
    """If one machine's file lacks a processor, both have times of the papers' model."""
    found = paging(GNUGO, machine="nvme,zram", **OPTIONS)
    assert found.run["options"]["view"] == "paper"
    (note,) = (line for line in warnings(found) if "papers' model" in line)
    assert "machine zram" in note
    papers = paging(GNUGO, machine="optane-ssd,desktop-hdd", **OPTIONS)
    assert not any("papers' model" in line for line in warnings(papers))


def test_the_record_has_every_machine_and_repeats_the_run(
    both: PagingResult, nearfar: Run, tmp_path: Path
) -> None:
    run = both.run
    assert run["machine"] == "nvme,zen4-vm" and list(run["machines"]) == ["nvme", "zen4-vm"]
    assert "machine_description" not in run
    times = {name: machines.load(name).access_times().dram_ns for name in run["machines"]}
    assert run["dram_ns"] == times
    words = run["command"].split()[1:]
    again = nearfar(*words, "--format", "json")
    assert json.loads(again.stdout)["rows"] == both.rows
    both.write(tmp_path / "both.run")
    read = open_run(tmp_path / "both.run").result
    assert isinstance(read, PagingResult) and read.rows == both.rows and read.run == run
    paging(GNUGO, machine="zen4-vm", **OPTIONS).write(tmp_path / "one.run")
    compared = diff(tmp_path / "both.run", tmp_path / "one.run")
    assert compared.rows and all(row["difference"] == 0 for row in compared.rows)
    explained = nearfar("explain", tmp_path / "both.run")
    assert explained.returncode == 2
    assert "compares nvme, zen4-vm; run nearfar paging with one machine" in explained.stderr


def test_set_changes_every_machine(nearfar: Run) -> None:
    words = ("paging", GNUGO, "--memory", "50%", "--page-sizes", "4K", "--format", "json")
    value = ("--set", "node.dram.local.read_latency=300ns")
    several = json.loads(nearfar(*words, "--machine", "nvme,zen4-vm", *value).stdout)
    assert set(several["run"]["dram_ns"].values()) == {300.0}
    assert several["run"]["command"].count("--set") == 1
    # Without --machine, it changes the default machine.
    usual = nearfar(*words, *value)
    assert usual.returncode == 0, usual.stderr


def test_the_answers_name_the_latency_of_each_machine(both: PagingResult) -> None:
    lines = answers.answers(findings.with_machine_names(both))
    assert [line.partition(":")[0] for line in lines] == [
        "Page size on nvme", "Page size on zen4-vm", "Memory", "Machine", "Latency of memory",
    ]  # fmt: skip
    each = [f"{name} {ns:.3g} ns" for name, ns in both.run["dram_ns"].items()]
    assert lines[-1] == f"Latency of memory: {', '.join(each)}."
    part = paging(GNUGO, machine="nvme,zen4-vm", memory="50%", page_sizes="4K")
    assert answers.answers(findings.with_machine_names(part))[-1] == lines[-1]
    assert findings.of_first_machine(part) == " (nvme)"
    model = paging(GNUGO, machine="nvme,zen4-vm", view="paper", memory="50%", page_sizes="4K")
    assert findings.of_first_machine(model) == ""
    one = paging(GNUGO, machine="nvme", **OPTIONS)
    assert not any("Latency" in line for line in answers.answers(one))


def test_places_are_named_by_machine_alone_if_each_has_one_storage(
    both: PagingResult, optane: PagingResult
) -> None:
    assert findings.storages(findings.with_machine_names(both)) == ["nvme", "zen4-vm"]
    assert findings.storages(findings.with_machine_names(optane)) == [
        "optane-ssd/optane-pmem", "optane-ssd/optane-ssd", "desktop-hdd/hdd",
    ]  # fmt: skip
    assert {row["storage"] for row in optane.rows} == {"optane-pmem", "optane-ssd", "hdd"}
    best = optane.best(machine="desktop-hdd", memory_fraction=1.0)
    assert (best["machine"], best["storage"]) == ("desktop-hdd", "hdd")
    assert both.plot().to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machine": "nvme,nvme"}, "--machine: 'nvme' is given twice"),
        ({"machine": []}, "--machine: none is given"),
        (
            {"machine": "nvme,zram", "filter": "cache"},
            "--filter cache: 2 machines have different caches",
        ),
        (
            {"machine": "nvme,zram", "storage": "zram"},
            "--storage: machine nvme has no zram; several machines",
        ),
        ({"machine": "nvme,laptop"}, "machine laptop: has no storage device to swap to"),
    ],
)
def test_incomparable_machines_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NearfarError, match=message):
        paging(GNUGO, **options)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_names_the_storages(optane: PagingResult, tmp_path: Path, width: int) -> None:
    file = tmp_path / "machines.html"
    file.write_text(optane.html(), encoding="utf-8")
    with browser.opened(file, width=width) as (page, problems):
        browser.settled(page)
        assert browser.untidy(page) == []
        said = page.text_content("header").replace("\u00a0", " ")
        assert answers.answers(findings.with_machine_names(optane))[-1] in said
        assert page.locator("#storage option").all_text_contents() == [
            "optane-ssd/optane-pmem", "optane-ssd/optane-ssd", "desktop-hdd/hdd",
        ]  # fmt: skip
    assert problems == []
