"""``nearfar numa plan``, and its scripts and units, checked with real tools or a fake /sys."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

import emitted
from conftest import Run, refused, tool
from nearfar import emit
from nearfar.errors import NearfarError
from nearfar.numa.plan import plan
from nearfar.report import numa as report

PLACEMENT = emit.names("nodes")


def row(mode: str, nodes: list[int], weights: list[int] | None = None, **more: Any) -> Any:
    return {
        "vm": "db",
        "mode": mode,
        "from": 0,
        "nodes": nodes,
        "weights": weights or [],
        "dram_nodes": [0, 1, 2, 3],
        "far_nodes": [4, 5, 6, 7],
        **more,
    }


def test_a_plan_by_latency_chooses_local_allocation() -> None:
    best = next(row for row in plan("40G").rows if row["chosen"])
    assert best["mode"] == "local" and best["enough"] and best["latency_gain"] == 0


def test_the_table_notes_a_single_memory_tier() -> None:
    rows = plan("40G").rows

    def printed(**nodes: Any) -> str:
        console = Console(width=200, file=io.StringIO(), record=True)
        console.print(report.plan([cast("Any", {**row, **nodes}) for row in rows]))
        return console.export_text()

    assert "one memory tier" in printed(dram_nodes=[0, 1], far_nodes=[])
    assert "memory tier" not in printed(dram_nodes=[0, 1], far_nodes=[2])


def test_a_plan_by_capacity_chooses_the_least_latency_that_fits() -> None:
    rows = plan("2T", working_set="60G").rows
    fits = {row["mode"] for row in rows if row["possible"]}
    assert "local" not in fits and {"alius", "memory-mode", "kmem-dax"} <= fits
    best = next(row for row in rows if row["chosen"])
    assert best["latency_ns"] == min(row["latency_ns"] for row in rows if row["possible"])
    assert all(row["why_not"] for row in rows if not row["possible"])
    with pytest.raises(NearfarError, match="can allocate at most"):
        plan("9T")


def test_a_plan_by_bandwidth_interleaves() -> None:
    options: dict[str, Any] = {"machine": "cxl-2socket", "threads": 64, "pattern": "sequential"}
    rows = plan("100G", bandwidth=230, **options).rows
    best = next(row for row in rows if row["chosen"])
    assert best["mode"] == "weighted-interleave" and best["nodes"] == [0, 2]
    assert best["weights"] == [9, 1] and best["gb_per_second"] == pytest.approx(240)
    assert best["bandwidth_gain"] == pytest.approx(240 / 218 - 1)
    short = next(row for row in plan("100G", bandwidth=999, **options).rows if row["chosen"])
    assert not short["enough"]


def test_every_emitter_serves_a_plan_or_refuses() -> None:
    cases = [row("local", []), row("kmem-dax", [4]), row("alius", []),
             row("interleave", [0, 4]), row("weighted-interleave", [0, 4], [2, 1]),
             row("preferred-many", [0, 1])]  # fmt: skip
    for name in PLACEMENT:
        served = 0
        for case in cases:
            try:
                text = emit.emit(name, case)
            except NearfarError as error:
                assert "use --emit numactl instead" in str(error)
                continue
            assert text.endswith("\n") and text == emit.emit(name, case)
            served += 1
        assert served
        hostile = "a'; touch x\n%h $(id)"
        text = emit.emit(name, row("weighted-interleave", [0, 4], [2, 1], vm=hostile))
        assert "touch x" not in text and "$(id)" not in text and "%h" not in text
    for name in ("daxctl", "numa-systemd", "numactl"):
        with pytest.raises(NearfarError, match="ipmctl create -goal MemoryMode=100"):
            emit.emit(name, row("memory-mode", []))


@pytest.mark.parametrize("mode", ["local", "kmem-dax", "interleave", "preferred-many", "alius"])
def test_numactl_accepts_the_options(tmp_path: Path, mode: str) -> None:
    tool("numactl", "numactl")
    path = tmp_path / "run.sh"
    path.write_text(emit.emit("numactl", row(mode, [0], dram_nodes=[0])))
    if subprocess.run(["numactl", "--membind=0", "true"], capture_output=True).returncode:
        pytest.skip("this kernel or container forbids memory policies")
    done = subprocess.run(["sh", str(path), "echo", "it ran"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "it ran\n", done.stderr
    path.write_text(path.read_text().replace("--cpunodebind=0", "--cpunodebind=99"))
    assert subprocess.run(["sh", str(path), "true"], capture_output=True).returncode != 0


def sys_folder(root: Path) -> None:
    """Devices of nodes 4 and 6, folders of settings, and a daxctl that logs its arguments."""
    for device, node in (("dax0.0", 4), ("dax1.0", 6)):
        folder = root / "sys" / "bus" / "dax" / "devices" / device
        folder.mkdir(parents=True)
        (folder / "target_node").write_text(f"{node}\n")
    (root / "sys" / "devices" / "system" / "memory").mkdir(parents=True)
    (root / "sys" / "kernel" / "mm" / "mempolicy" / "weighted_interleave").mkdir(parents=True)
    stub = root / "daxctl"
    stub.write_text(f'#!/bin/sh\necho "$@" >> {root}/called\n')
    stub.chmod(0o755)


def played(root: Path, script: str) -> str:
    """Run a script with ``root`` in place of /sys; return the arguments of each daxctl call."""
    done = emitted.played(root, script)
    assert done.returncode == 0, done.stderr
    called = root / "called"
    return called.read_text() if called.exists() else ""


def test_scripts_call_daxctl_and_write_settings(tmp_path: Path) -> None:
    sys_folder(tmp_path)
    unmovable = "reconfigure-device --mode=system-ram --no-movable"
    calls = played(tmp_path, emit.emit("daxctl", row("alius", [])))
    assert calls.splitlines() == [f"{unmovable} dax0.0", f"{unmovable} dax1.0"]
    online = tmp_path / "sys/devices/system/memory/auto_online_blocks"
    assert online.read_text() == "offline\n"
    (tmp_path / "called").unlink()
    calls = played(tmp_path, emit.emit("daxctl", row("kmem-dax", [4])))
    assert calls == "reconfigure-device --mode=system-ram dax0.0\n"
    weights = row("weighted-interleave", [0, 6], [16, 3])
    played(tmp_path, emit.emit("weighted-interleave", weights))
    folder = tmp_path / "sys/kernel/mm/mempolicy/weighted_interleave"
    assert {f.name: f.read_text() for f in folder.iterdir()} == {"node0": "16\n", "node6": "3\n"}


def test_the_unit_is_valid_and_runs_the_same_commands(tmp_path: Path) -> None:
    sys_folder(tmp_path)
    text = emit.emit("numa-systemd", row("weighted-interleave", [0, 6], [16, 3]))
    played_lines = emitted.command_of(text, "ExecStart")
    assert played(tmp_path, played_lines) == "reconfigure-device --mode=system-ram dax1.0\n"
    folder = tmp_path / "sys/kernel/mm/mempolicy/weighted_interleave"
    assert (folder / "node6").read_text() == "3\n"
    command = tool("systemd-analyze", "systemd")
    path = tmp_path / "numa.service"
    for mode in ("alius", "kmem-dax", "weighted-interleave"):
        weights = [1] * 4 if mode == "weighted-interleave" else []
        nodes = [0, 1, 4, 5] if weights else []
        path.write_text(emit.emit("numa-systemd", row(mode, nodes, weights)))
        done = subprocess.run([command, "verify", path], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
    path.write_text(path.read_text().replace("Type=oneshot", "Type=onceshot"))
    done = subprocess.run([command, "verify", path], capture_output=True, text=True)
    assert done.returncode != 0 or done.stderr


def test_the_command_plans_and_emits(nearfar: Run) -> None:
    words = ["numa", "plan", "--capacity", "100G", "--machine", "cxl-2socket", "--threads", "64",
             "--pattern", "sequential", "--bandwidth", "230"]  # fmt: skip
    shown = nearfar(*words)
    assert shown.returncode == 0 and "weighted-interleave: against local" in shown.stdout
    assert "echo 9 > /sys" in nearfar(*words, "--emit", "weighted-interleave").stdout
    assert "--weighted-interleave=0,2" in nearfar(*words, "--emit", "numactl").stdout
    missed = nearfar(*words[:-1], "999", "--format", "json")
    assert missed.returncode == 1
    assert sum(row["chosen"] for row in json.loads(missed.stdout)["rows"]) == 1
    csv = nearfar(*words, "--format", "csv").stdout.splitlines()
    assert len(csv) > 5 and any('"0,2"' in line for line in csv)
    refused(nearfar("numa", "plan", "--capacity", "9T"))
    refused(nearfar("numa", "plan", "--capacity", "1G", "--working-set", "2G"), "--working-set")
