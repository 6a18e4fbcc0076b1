"""`nearfar size`: its limits, with programs that run under them; the plan; the command."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from capturing import needs_cc, needs_qemu
from conftest import DATA, Run, fetched, refused
from nearfar import capture, emit
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node
from nearfar.size import size, swap
from nearfar.size.limits import high, maximum
from nearfar.size.one import choose, within
from nearfar.thp import thp
from test_emit_memory import V1, group  # noqa: F401 - a fixture

MIB = 1 << 20
GNUGO = DATA / "captures" / "gnugo.trace"


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build((Path(__file__).parent / "sizes.c").read_text(), "-static")


@pytest.fixture(scope="module")
def gnugo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(GNUGO, tmp_path_factory.mktemp("whole"))


def whole(trace: Path, folder: Path) -> Path:
    """A copy of a trace, marked as recorded from start to end; older traces lack the mark."""
    made = folder / trace.name
    shutil.copytree(trace, made)
    text = json.loads((made / "trace.json").read_text())
    text["source"]["unrecorded"] = []
    (made / "trace.json").write_text(json.dumps(text))
    return made


def sized(trace: Path, **options: Any) -> dict[str, Any]:
    return dict(size(trace, machine="nvme", **options).rows[0])


# --- memory that no reference touches


@needs_cc
@needs_qemu
@pytest.mark.parametrize(
    ("what", "resident", "locked"), [("lock", 18, 16), ("populate", 24, 0), ("fork", 32, 0)]
)
def test_a_limit_is_above_all_that_is_resident(
    program: Path,
    tmp_path: Path,
    what: str,
    resident: int,
    locked: int,
    group: tuple[str, Path],  # noqa: F811
) -> None:
    """The program succeeds under its emitted limits. Parameters are in MiB."""
    trace = tmp_path / f"{what}.trace"
    capture.capture([program, what], trace, follow_forks=True)
    row = sized(trace, swap="zram")
    assert resident * MIB <= row["peak_bytes"] <= (resident + 3) * MIB
    assert row["locked_bytes"] == locked * MIB <= row["memory_bytes"]
    assert row["max_bytes"] >= row["peak_bytes"] * 1.25
    assert row["high_bytes"] is None or locked * MIB < row["high_bytes"] < row["max_bytes"]

    name, folder = group
    done = subprocess.run(
        ["sh", "-c", emit.emit("cgroup", row), "sh", name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "write +memory" in done.stderr:
        pytest.skip("the control group of this process does not hand on the memory controller")
    assert done.returncode == 0, done.stderr
    own = f"echo $$ > {folder}/cgroup.procs && exec {program} {what}"
    assert subprocess.run(["sh", "-c", own], check=False).returncode == 0
    events = "memory.oom_control" if folder.is_relative_to(V1[0]) else "memory.events"
    assert "oom_kill 0" in (folder / events).read_text()


@needs_cc
@needs_qemu
@pytest.mark.long("a guest under TCG")
def test_programs_run_under_their_limits_in_version_2(program: Path, tmp_path: Path) -> None:
    """In a guest with swap on zram, programs succeed; cold memory is swapped out."""
    fetched("x86_64")
    files = {"work/sizes": program.read_bytes()}
    lines = ["cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control"]
    high = {}
    for what in ("lock", "populate", "fork", "phases", "cold"):
        trace = tmp_path / f"{what}.trace"
        capture.capture([program, what], trace, follow_forks=True)
        row = sized(trace, swap="zram")
        high[what] = row["high_bytes"]
        files[f"work/{what}.sh"] = emit.emit("cgroup", cast("emit.Row", row)).encode()
        place = f"/sys/fs/cgroup/{what}"
        lines += [
            f"sh /work/{what}.sh {what}",
            f"sh -c 'echo 0 > {place}/cgroup.procs && exec /work/sizes {what}'; "
            f"echo {what} $? $(grep '^oom_kill ' {place}/memory.events) "
            f"$(cat {place}/memory.peak)",
        ]
    assert high["cold"] < 40 * MIB and high["phases"] is None
    lines.append("grep pswpout /proc/vmstat")
    hardware = Hardware((Node(memory=256 * MIB, cpus=1),))
    done = Guest("x86_64", hardware=hardware, zram=128 * MIB).run(
        ["sh", "-c", "\n".join(lines)], files=files
    )
    assert done.exit_code == 0, done.error
    said = [line.split() for line in done.output.decode().splitlines()]
    assert [line[:4] for line in said[:-1]] == [[what, "0", "oom_kill", "0"] for what in high]
    assert int(said[-1][1]) > 24 * MIB // 4096


@needs_cc
@needs_qemu
def test_memory_from_before_a_late_start_is_counted(program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "late.trace"
    capture.capture([program, "late", "6"], trace, start_after="2s")
    row = sized(trace, swap="none")
    assert 20 * MIB <= row["peak_bytes"] <= 23 * MIB
    assert row["max_bytes"] is None and "its start" in row["no_limit"]
    with pytest.raises(NearfarError, match="no limit is advised: not recorded: its start"):
        emit.emit("systemd-memory", row)
    capture.capture([program, "late", "6"], trace, start_after="2s", resident=False, force=True)
    row = sized(trace, swap="none")
    assert row["peak_bytes"] < 20 * MIB
    assert "memory resident before recording" in str(row["no_limit"])


@needs_cc
@needs_qemu
@pytest.mark.parametrize("what", ["no such thing", "lock"])
def test_a_run_that_fails_gets_no_limit(program: Path, tmp_path: Path, what: str) -> None:
    trace = tmp_path / "failed.trace"
    words = ["sh", "-c", f"{program} '{what}'; exit $(($? ? 3 : 0))"]
    capture.capture(words, trace, follow_forks=True)
    failed = what != "lock"
    says = "not recorded: a successful run (exit status 3)" if failed else None
    assert sized(trace)["no_limit"] == says


@needs_qemu
def test_the_trace_of_a_run_that_fails_is_kept_only_if_asked_for(
    nearfar: Run, tmp_path: Path
) -> None:
    there = f"import os; os.chdir({str(tmp_path)!r})"
    done = nearfar("size", "--machine", "nvme", "--", "false", first=there)
    assert done.returncode == 1 and "none is advised" in done.stdout
    assert "false.trace was removed, as the run failed" in done.stderr
    assert list(tmp_path.iterdir()) == []
    nearfar("size", "--machine", "nvme", "--record", "kept.trace", "--", "false", first=there)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.trace"]


@needs_cc
@needs_qemu
def test_children_that_were_not_recorded_are_named(program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "fork.trace"
    capture.capture([program, "fork"], trace)
    assert sized(trace)["no_limit"] == "not recorded: 4 child processes"


@needs_cc
@needs_qemu
def test_phases_are_named(program: Path, tmp_path: Path) -> None:
    trace = tmp_path / "phases.trace"
    capture.capture([program, "phases"], trace)
    row = sized(trace)
    assert row["risk"].startswith("the working set shifts: ")
    assert re.search(r"2\.\d+ MiB until 9\d % of the run, then 3", row["risk"])


# --- the plan


def test_the_plan_is_consistent(gnugo: Path) -> None:
    row = sized(gnugo, swap="zram")
    assert row["memory_bytes"] <= row["peak_bytes"] <= row["max_bytes"]
    assert row["swapped_bytes"] <= row["peak_bytes"] - row["memory_bytes"]
    assert row["zram_bytes"] == round(row["swapped_bytes"] / 2)
    assert row["slowdown"] <= 0.05
    assert row == sized(gnugo, swap="zram")
    without = sized(gnugo, swap="none")
    assert without["memory_bytes"] >= row["memory_bytes"]
    assert (without["high_bytes"], without["storage"], without["zram_bytes"]) == (None, None, None)


def test_a_setting_of_huge_pages_is_named_if_asked_for(gnugo: Path) -> None:
    assert sized(gnugo, swap="zram")["thp_why"] is None
    why = sized(gnugo, swap="zram", thp=True)["thp_why"]
    assert why == thp(gnugo, machine="nvme").sentence
    assert why.split(";")[0] in ("never", "madvise", "always", "64K=always")


def test_an_older_trace_does_not_say_whether_it_is_whole() -> None:
    row = sized(GNUGO)
    assert row["max_bytes"] is None and row["no_limit"].startswith("an older nearfar recorded")


def test_ram_is_shared_with_zram() -> None:
    """Of 300 MiB, x stay uncompressed: x + (300 - x) / 3 = 200 MiB gives x = 150 MiB."""

    def shared(ram: int, swap: str = "zram") -> float:
        return (
            within(ram * MIB, 400 * MIB, 300 * MIB, swap, 3 if swap == "zram" else math.inf) / MIB
        )

    assert [shared(ram) for ram in (200, 300, 350, 500)] == [150, 300, 350, 400]
    assert [shared(ram, "nvme") for ram in (200, 350)] == [200, 350]
    with pytest.raises(NearfarError, match="cannot hold 300 MiB of private memory even compressed"):
        shared(90)
    with pytest.raises(NearfarError, match="cannot hold 300 MiB of private memory without swap"):
        shared(299, "none")
    row = sized(GNUGO, swap="zram", ram="2M", zram_ratio=3)
    assert row["memory_bytes"] + row["zram_bytes"] == pytest.approx(2 * MIB, abs=2)
    half = sized(GNUGO, swap="zram", ram="50%", zram_ratio=3)
    assert half["memory_bytes"] + half["zram_bytes"] == pytest.approx(row["peak_bytes"] / 2, abs=2)
    text = emit.emit("zram-generator", row)
    assert f"zram-size = {-(-row['swapped_bytes'] // MIB)}\n" in text


def test_limits() -> None:
    assert maximum(100 * MIB) == 133 * MIB
    assert high(50 * MIB, 100 * MIB, 0) == 63 * MIB
    assert high(90 * MIB, 100 * MIB, 0) is None
    assert high(60 * MIB, 100 * MIB, 70 * MIB) == 84 * MIB


def test_a_page_size_that_costs_too_much_memory_is_not_advised() -> None:
    def row(page: int, total: float, resident: int, start: float = 0.0) -> Any:
        return {"page_bytes": page, "total_ns": total + start, "resident_bytes": resident,
                "cpu_ns": 1.0, "start_ns": start}  # fmt: skip

    rows = [row(4096, 10, 100, 10), row(65536, 8, 105, 2), row(2 << 20, 7, 200, 1)]
    found = choose(rows, whole=False, arch="x86-64")
    assert found.chosen["page_bytes"] == 65536 and found.gain == pytest.approx(0.2)
    rows = [row(4096, 10, 100), row(2 << 20, 8, 200)]
    found = choose(rows, whole=False, arch="x86-64")
    assert found.chosen["page_bytes"] == 4096
    assert found.why == (
        "4 KiB: 2 MiB pages would save 20 % of the time once memory is filled, but take 2 times "
        "the memory"
    )
    # Only filling memory is faster, which counts with `whole`.
    rows = [row(4096, 10, 100, 10), row(65536, 10, 100, 1)]
    assert choose(rows, whole=False, arch="x86-64").chosen["page_bytes"] == 4096
    assert choose(rows, whole=True, arch="x86-64").chosen["page_bytes"] == 65536


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("", "none"),
        ("/dev/zram0 partition 100 0 100\n/dev/sda2 partition 100 0 -2\n", "zram"),
        ("/dev/nvme0n1p3 partition 100 0 -2\n", "nvme"),
        ("/dev/sda2 partition 100 0 -2\n", "hdd"),
        ("/dev/md0 partition 100 0 -2\n", "hdd"),
        ("/swapfile file 100 0 -2\n", "nvme"),
    ],
)
def test_swap_of_this_machine(tmp_path: Path, table: str, found: str) -> None:
    (tmp_path / "swaps").write_text(f"Filename Type Size Used Priority\n{table}")
    for disk, rotates in (("sda", 1), ("md0", 1), ("nvme0n1", 0)):
        (tmp_path / disk / "queue").mkdir(parents=True)
        (tmp_path / disk / "queue" / "rotational").write_text(f"{rotates}\n")
    assert swap.usual(tmp_path / "swaps", tmp_path) == found


# --- the command


@needs_qemu
def test_a_command_is_recorded_and_sized(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = nearfar("size", "--swap", "zram", "--", "seq", "20000")
    assert done.returncode == 0, done.stderr
    heads = [line.split("  ")[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == ["memory", "page size", "swap", "limits", "based on", "risk"]
    assert (tmp_path / "seq.trace" / "trace.json").is_file()
    again = nearfar("size", "seq.trace", "--swap", "zram", "--format", "json")
    (row,) = json.loads(again.stdout)["rows"]
    assert row["no_limit"] is None and row["max_bytes"] > row["peak_bytes"]


@needs_cc
@needs_qemu
def test_a_sample_is_recorded_and_sized(nearfar: Run, program: Path, tmp_path: Path) -> None:
    """The peak is exact, the advised memory an upper bound."""
    trace = tmp_path / "t.trace"
    recording = ["--sample", "40%", "--record", str(trace)]
    done = nearfar("size", *recording, "--swap", "zram", "--", str(program), "phases")
    assert done.returncode == 0, done.stderr
    assert json.loads((trace / "trace.json").read_text())["source"]["sample"]["rate"] == 0.4
    assert "an upper bound, from a sample of 40 % of the pages" in " ".join(done.stdout.split())
    capture.capture([program, "phases"], tmp_path / "whole.trace", follow_forks=True)
    exact, row = sized(tmp_path / "whole.trace", swap="zram"), sized(trace, swap="zram")
    assert row["peak_bytes"] == exact["peak_bytes"] - exact["bloat_bytes"]
    assert exact["memory_bytes"] - exact["bloat_bytes"] <= row["memory_bytes"] <= row["peak_bytes"]


@needs_qemu
def test_output_of_the_program_does_not_mix_with_the_result(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = nearfar("size", "--show-output", "--format", "json", "--", "echo", "hello")
    assert json.loads(done.stdout)["rows"][0]["vm"] == "echo" and "hello\n" in done.stderr


def test_emit_needs_only_a_stored_result(nearfar: Run, gnugo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "go.size"
    done = nearfar("size", str(gnugo), "--machine", "nvme", "--swap", "zram", "-o", str(folder))
    assert done.returncode == 0, done.stderr
    shutil.move(gnugo, tmp_path / "elsewhere")
    try:
        assert nearfar("size", str(folder)).stdout == done.stdout
        text = nearfar("size", str(folder), "--emit", "docker").stdout
        assert "mem_limit" in text
        other = nearfar("size", str(folder), "--swap", "nvme")
        assert "--swap: " in other.stderr and "is a result; give the trace" in other.stderr
    finally:
        shutil.move(tmp_path / "elsewhere", gnugo)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a.trace", "--", "true"], "give traces, or a program after `--`, not both"),
        (["--emit", "qemo", "--", "true"], "has no emitter 'qemo'"),
        (["--swap", "tape", "--", "true"], "tape"),
        (["--slowdown", "x", "--", "true"], "--slowdown: 'x' is not"),
        (["--zram-ratio", "0.5", "--", "true"], "--zram-ratio: '0.5' is not a number from 1"),
        (["--ram", "x", "--", "true"], "--ram: 'x' is not a size"),
        (["--machine", "nvmee", "--", "true"], "did you mean"),
        (["--record", "x", str(GNUGO)], "--record and --show-output need a program"),
        (["--record", ".", "--", "true"], "name a file or folder with --record"),
        (["sh", "x"], "put `--` before it: nearfar size -- sh x"),
        ([], "give traces, or a program after `--`"),
        (["--memory", "1G", str(GNUGO)], "--memory: is for recording; give --vm, or a program"),
        (["--memory", "1G", "--", "true"], "--memory: is for virtual machines"),
        (["--vm", "no.qcow2"], "no.qcow2: cannot read"),
        (["--vm", "no.qcow2", "--", "true"], "no COMMAND is possible"),
    ],
)
def test_bad_options_are_refused_before_recording(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(nearfar("size", *words), says)
    assert not list(tmp_path.iterdir())


@pytest.mark.long("one more guest under TCG")
def test_a_virtual_machine_is_recorded_and_sized(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak includes the guest's kernel, and is below the VM's memory."""
    fetched("x86_64")
    monkeypatch.chdir(tmp_path)
    words = ("--machine", "nvme", "--swap", "none", "--format", "json", "--", "seq", "20000")
    (alone,) = json.loads(nearfar("size", *words).stdout)["rows"]
    (whole,) = json.loads(nearfar("size", "--vm-image", "debian", "--force", *words).stdout)["rows"]
    assert alone["peak_bytes"] < 16 * MIB < whole["peak_bytes"] < 512 * MIB


def test_a_fleet_has_a_row_for_each_vm(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        f'storage = "zram"\n[vm.go]\ntrace = "{GNUGO}"\n[vm.zip]\n'
        f'trace = "{DATA / "captures" / "gzip.trace"}"\nstorage = "nvme"\n'
    )
    result = size(fleet, machine="nvme")
    assert [(row["vm"], row["storage"]) for row in result.rows] == [("go", "zram"), ("zip", "nvme")]


def test_a_host_has_one_swap_file_and_vms_have_the_memory_given(nearfar: Run, gnugo: Path) -> None:
    fleet = gnugo.parent / "fleet.toml"
    vm = f'trace = "{gnugo}"\nmemory = "2MiB"\n'
    fleet.write_text(f'machine = "nvme"\nstorage = "zram"\n[vm.a]\n{vm}[vm.b]\n{vm}')
    first, second = size(fleet).rows
    assert first["memory_bytes"] + (first["zram_bytes"] or 0) == pytest.approx(2 * MIB, abs=2)
    text = nearfar("size", str(fleet), "--emit", "zram-generator").stdout
    swapped = first["swapped_bytes"] + second["swapped_bytes"]
    assert f"zram-size = {-(-swapped // MIB)}\n" in text


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
def test_limits_of_containers(kind: str) -> None:
    import yaml

    row = {"vm": "web", "storage": "zram", "memory_bytes": 90 * MIB, "peak_bytes": 200 * MIB,
           "high_bytes": 100 * MIB, "max_bytes": 258 * MIB, "no_limit": None}  # fmt: skip
    found = yaml.safe_load(emit.emit(kind, row))
    if kind == "docker":
        assert found == {"services": {"web": {"mem_limit": "258m", "mem_reservation": "100m"}}}
    else:
        (container,) = found["spec"]["template"]["spec"]["containers"]
        assert container["resources"] == {
            "requests": {"memory": "100Mi"}, "limits": {"memory": "258Mi"}
        }  # fmt: skip


@needs_cc
@needs_qemu
def test_code_has_the_permissions_of_its_program_header(program: Path, tmp_path: Path) -> None:
    """QEMU maps code without execute permission, so that it would count as data."""
    import pyarrow.parquet

    capture.capture([program, "populate"], tmp_path / "a.trace")
    events = pyarrow.parquet.read_table(tmp_path / "a.trace" / "regions.parquet").to_pylist()
    maps = [one for one in events if one["event"] == "map" and one["name"] == str(program)]
    assert [one["prot"] for one in maps if one["prot"] != "rw-p"].count("r-xp") == 1
    header = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True)
    (code,) = re.findall(r"LOAD +(0x\w+) .* R E ", header.stdout)
    assert [one["offset"] for one in maps if one["prot"] == "r-xp"] == [int(code, 16)]
