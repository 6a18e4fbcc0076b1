"""Machine descriptions from Python and from the command line."""

from __future__ import annotations

import json
import pickle
import re
import shlex
from pathlib import Path

import pytest

from conftest import Run, refused
from nearfar import machine
from nearfar.errors import NearfarError
from nearfar.paging import paging

ROOT = Path(__file__).parents[1]
GNUGO = ROOT / "tests/data/captures/gnugo.trace"


def test_required_machines_are_built_in() -> None:
    required = {"desktop-hdd", "desktop-nvm", "optane-ssd", "nvme", "cxl"}
    assert required <= set(machine.names())


def test_the_schema_describes_the_built_in_machines() -> None:
    import jsonschema

    validator = jsonschema.Draft202012Validator(machine.schema())
    for name in machine.names():
        described = machine.load(name).to_dict()
        assert list(validator.iter_errors(described)) == []
        assert list(validator.iter_errors({**described, "cpus": {}}))


def test_list_show_check_schema(tmp_path: Path, nearfar: Run) -> None:
    listed = json.loads(nearfar("machine", "list", "--format", "json").stdout)
    assert [row["name"] for row in listed["machines"]] == machine.names()
    assert "desktop-nvm" in nearfar("machine", "list").stdout
    shown = json.loads(nearfar("machine", "show", "nvme", "--format", "json").stdout)
    assert shown["storage"]["nvme"]["nvme"]["read_latency"]["value"] == "58.8us"
    at_4k = [row for row in shown["io"] if row["page_bytes"] == 4096]
    assert at_4k[0]["read_ns"] == pytest.approx(58_800)
    table = nearfar("machine", "show", "nvme").stdout
    assert "58.8us" in table and "\x1b" not in table
    assert json.loads(nearfar("machine", "schema").stdout) == machine.schema()

    text = Path(__file__).parents[1].joinpath("machines/nvme.toml").read_text()
    (tmp_path / "machines").mkdir()
    mine = tmp_path / "machines" / "mine.toml"
    mine.write_text(text)
    assert nearfar("machine", "check", str(mine)).stdout.endswith("good\n")
    # A name is first looked up in machines/ of the current folder.
    assert nearfar("machine", "show", "mine", cwd=tmp_path).returncode == 0

    mine.write_text(text.replace("read_latency", "read_latecy", 1))
    done = nearfar("machine", "check", str(mine))
    refused(done, "did you mean `read_latency`?", "mine.toml line")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nvm"), "did you mean `nvme`?"),
        (("show",), "Missing argument"),
        (("check", "absent.toml"), "absent.toml"),
        (("list", "nvme"), "argument(s) (nvme)"),
        (("shwo", "nvme"), "shwo"),
    ],
)
def test_bad_usage_is_one_line(arguments: tuple[str, ...], said: str, nearfar: Run) -> None:
    refused(nearfar("machine", *arguments), said)


@pytest.mark.parametrize("name", machine.names())
def test_show_toml_prints_a_file_to_start_from(name: str, tmp_path: Path, nearfar: Run) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(nearfar("machine", "show", name, "--format", "toml").stdout)
    assert mine.read_text() == (ROOT / "machines" / f"{name}.toml").read_text()
    assert machine.load(mine).to_dict() == machine.load(name).to_dict()


def test_set_changes_one_value_and_keeps_the_comments(tmp_path: Path, nearfar: Run) -> None:
    value = "node.slow.read_latency=200ns"
    shown = nearfar("machine", "show", "cxl-a", "--set", value, "--format", "toml").stdout
    before = (ROOT / "machines/cxl-a.toml").read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, shown.splitlines(), strict=True) if a != b]
    ((was, now),) = changed
    assert was.startswith("read_latency = ") and '"200ns"' in now and "given with --set" in now
    mine = tmp_path / "mine.toml"
    mine.write_text(shown)
    assert nearfar("machine", "check", str(mine)).returncode == 0
    changed_machine = machine.load("cxl-a", set={"node.slow.read_latency": "200ns"})
    assert machine.load(mine).to_dict() == changed_machine.to_dict()
    timing = changed_machine.to_dict()["node"]["slow"]["local"]["read_latency"]
    assert timing == {"value": "200ns", "source": "given with --set"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("node.slow.read_latecy=1ns", "did you mean `read_latency`?"),
        ("node.slwo.read_latency=1ns", "did you mean `slow`?"),
        ("node.slow.read_latency=1", "1 is a number without a unit"),
        ("node.slow.read_latency", "write KEY=VALUE"),
        ("node.slow=1ns", "is a section"),
    ],
)
def test_a_bad_set_is_one_line(value: str, said: str, nearfar: Run) -> None:
    done = nearfar("tiering", "nomad-medium", "--machine", "cxl-a", "--set", value)
    refused(done, f"--set {value}", said)


def test_a_set_value_is_used_and_recorded(nearfar: Run) -> None:
    usual = paging(GNUGO, memory="50%", page_sizes="4K", storage=["nvm-1x"])
    slow = {"node.dram.read_latency": "100ns"}
    changed = paging(
        GNUGO, memory="50%", page_sizes="4K", storage=["nvm-1x"],
        machine=machine.load("desktop-nvm", set=slow),
    )  # fmt: skip
    assert changed.rows[0]["data_ns"] > 1.9 * usual.rows[0]["data_ns"]
    dram = changed.run["machine_description"]["node"]["dram"]["local"]["read_latency"]
    assert dram["value"] == "100ns" and changed.run["machine"] == "desktop-nvm"
    words = shlex.split(changed.run["command"])
    assert words[words.index("--set") + 1] == "node.dram.read_latency=100ns"
    again = json.loads(nearfar(*words[1:], "--format", "json").stdout)
    assert again == json.loads(json.dumps(changed.to_dict()))


def test_a_machine_can_be_pickled_compared_and_passed_to_studies(tmp_path: Path) -> None:
    one = machine.load("desktop-nvm")
    assert machine.load(one) is one
    for same in (pickle.loads(pickle.dumps(one)), machine.load("desktop-nvm")):
        assert same == one and hash(same) == hash(one) and same.to_toml() == one.to_toml()
    set_ = machine.load(one, set={"tlb.first.entries": 32})
    again = pickle.loads(pickle.dumps(set_))
    assert again == set_ != one and again.flags == set_.flags
    file = tmp_path / "desktop-nvm.toml"
    file.write_text(one.to_toml())
    options = {"memory": "50%", "page_sizes": "4K", "storage": ["nvm-1x"]}
    found = [paging(GNUGO, machine=each, **options).rows for each in ("desktop-nvm", file, one)]
    assert found[0] == found[1] == found[2]


def test_errors_reach_python() -> None:
    with pytest.raises(NearfarError, match="a number without a unit"):
        machine.parse("x.toml", 'description = "d"\ncpu.clock = {value = 2.4, source = "s"}')
    with pytest.raises(NearfarError, match="did you mean `nvm-1x`"):
        machine.load("desktop-nvm").io_ns("nvm", [4096])


# --- the default machine of a study, and storages of other machines


def test_the_measured_machine_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert machine.usual() == "nvme"
    with pytest.raises(NearfarError, match="run `nearfar machine measure`"):
        machine.load("here")
    kept = machine.measured_file()
    assert kept == tmp_path / "nearfar" / "here.toml"
    kept.parent.mkdir()
    kept.write_text(machine.load("zen4-vm").to_toml())
    assert machine.usual() == "here"
    assert machine.load("here").flags == ["--machine", "here"]
    result = paging(GNUGO, memory="100%", page_sizes="4K,64K")
    assert (result.run["machine"], result.run["options"]["view"]) == ("here", "machine")
    assert "--machine here" in result.run["command"]
    assert {row["storage"] for row in result.rows} == set(machine.load("zen4-vm").storages)


def test_a_default_machine_measured_without_storage_borrows_that_of_nvme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    kept = machine.measured_file()
    kept.parent.mkdir()
    text = machine.load("zen4-vm").to_toml()
    kept.write_text(text[: text.index("[storage")])
    assert list(machine.paging_machine(None).storages) == ["nvme"]
    assert list(machine.paging_machine(None, ["hdd"]).storages) == ["hdd"]
    assert list(machine.paging_machine("here").storages) == []


def test_storages_of_other_machines_are_compared_on_one_machine(tmp_path: Path) -> None:
    result = paging(GNUGO, storage="nvme, optane-ssd,hdd", memory="20%,100%", page_sizes="4K,16K")
    own = {
        (row["storage"], row["memory_fraction"], row["page_bytes"]): row["cpu_ns"]
        for row in result.rows
    }
    # 3 storages, 2 memory sizes, 2 page sizes.
    assert len(own) == 3 * 2 * 2 and len(set(own.values())) == 1
    io = {row["storage"]: row["io_ns"] or 0 for row in result.rows if row["memory_fraction"] == 0.2}
    assert io["optane-ssd"] < io["nvme"] < io["hdd"]
    with pytest.raises(NearfarError, match="did you mean optane-ssd"):
        paging(GNUGO, storage="optane-sdd")


@pytest.mark.parametrize(
    ("options", "view"),
    [
        ({}, "machine"),
        ({"page_sizes": "4K,2M"}, "machine"),
        ({"page_sizes": "512,4K"}, "paper"),
        ({"tlb": "128"}, "paper"),
        ({"filter": "cache"}, "paper"),
        ({"machine": "desktop-nvm"}, "paper"),
        ({"machine": "zen4-vm"}, "machine"),
        ({"machine": "zen4-vm", "view": "paper"}, "paper"),
    ],
)
def test_the_default_view_depends_on_machine_and_options(
    options: dict[str, str], view: str
) -> None:
    found = paging(GNUGO, **{"memory": "100%", **options})  # type: ignore[arg-type]
    assert found.run["options"]["view"] == view


def test_a_note_says_that_a_users_machine_lacks_a_processor(tmp_path: Path, nearfar: Run) -> None:
    own = tmp_path / "own.toml"
    own.write_text(machine.load("desktop-nvm").to_toml())
    done = nearfar("paging", str(GNUGO), "--machine", str(own), "--memory", "100%")
    assert done.returncode == 0
    said = "note: times are those of the papers' model: .* has no .*tlb.walk"
    assert re.search(said, done.stderr)


def test_a_note_says_that_a_file_was_measured_elsewhere(tmp_path: Path, nearfar: Run) -> None:
    own = tmp_path / "own.toml"
    text = machine.load("zen4-vm").to_toml()
    own.write_text(text.replace("Measured on AMD EPYC", "Measured on an abacus", 1))
    command = ("paging", str(GNUGO), "--memory", "100%", "--page-sizes", "4K", "--machine")
    assert (
        "machine own was measured on another machine than this"
        in nearfar(*command, str(own)).stderr
    )
    assert nearfar(*command, "zen4-vm").stderr == ""


def test_the_cxl_machine_serves_paging_tiering_and_placement() -> None:
    from nearfar import numa
    from nearfar.tiering import tiering

    assert {row["storage"] for row in paging(GNUGO, machine="cxl", memory="50%").rows} == {"cxl"}
    moved = tiering(policy="nomad", machine="cxl", scale="1/512", rounds=1, points=4)
    assert {row["policy"] for row in moved.rows} == {"nomad"}
    assert any(row["possible"] for row in numa.alloc("8G", machine="cxl").rows)


def test_a_built_in_machine_is_changed_as_its_error_says(tmp_path: Path, nearfar: Run) -> None:
    words = ["ssd", str(GNUGO), "--dram", "1M"]
    error = nearfar(*words, "--machine", "nvme", cwd=tmp_path).stderr
    show, own = re.search(r"`nearfar (machine show \S+ --format toml) > (\S+)`", error).groups()
    assert "use --machine umd; or " in error and error.endswith(f"use --machine {own}\n")
    text = nearfar(*show.split(), cwd=tmp_path).stdout
    (tmp_path / own).write_text(text)
    assert "or take it out in its file" in nearfar(*words, "--machine", own, cwd=tmp_path).stderr
    parts = re.split(r"^(?=\[)", text, flags=re.M)
    (tmp_path / own).write_text("".join(p for p in parts if not p.startswith("[tlb.second]")))
    assert "key tlb.second" not in nearfar(*words, "--machine", own, cwd=tmp_path).stderr


def test_with_zram_files_are_read_from_the_machines_disk() -> None:
    trace = ROOT / "tests/data/captures/memcached.trace"
    rows = paging(
        trace,
        storage="zram,nvme",
        memory="30%",
        page_sizes="4K",
        replacement="linux",
        machine="nvme",
    ).rows
    by_storage = {row["storage"]: row for row in rows}
    zram, nvme = by_storage["zram"], by_storage["nvme"]
    assert zram["file_rereads"] > 0 and zram["swap_ins"] > 0
    assert zram["start_ns"] == nvme["start_ns"] != 0
    host = machine.with_storages(machine.load("nvme"), ["zram"])
    (disk,), (page,) = host.file_ns("zram", [4096]), host.io_ns("zram", [4096])
    assert disk == host.io_ns("nvme", [4096])[0]
    waited = zram["swap_ins"] * page + zram["file_rereads"] * disk
    assert zram["io_ns"] == pytest.approx(waited / zram["references"])
