"""``nearfar doctor`` says which tools are installed, which are not, and how to get them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from conftest import Run
from nearfar import doctor


def fake_program(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_every_finding_has_a_reason_and_a_missing_one_a_fix() -> None:
    found = doctor.examine()
    assert len({one.name for one in found}) == len(found) >= 10
    for one in found:
        assert one.why and one.used_for
        assert one.available != bool(one.fix), one


def test_an_absent_tool_is_missed_and_a_present_one_found(tmp_path: Path, nearfar: Run) -> None:
    fake_program(tmp_path, "valgrind", 'echo "valgrind-9.9"')
    done = nearfar("doctor", "--format", "json", PATH=str(tmp_path))
    assert done.returncode == 0
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["valgrind"]["available"] and found["valgrind"]["why"] == "valgrind-9.9"
    assert not found["pigz"]["available"]
    assert found["pigz"]["fix"] == "sudo apt-get install pigz"


def test_a_tool_that_does_not_work_is_not_available(tmp_path: Path, nearfar: Run) -> None:
    fake_program(tmp_path, "valgrind", 'test "$1" = --version || { echo no lackey >&2; exit 1; }')
    done = nearfar("doctor", "--format", "json", PATH=str(tmp_path))
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert not found["valgrind"]["available"]
    assert "no lackey" in found["valgrind"]["why"]


def test_require_decides_the_exit_code(tmp_path: Path, nearfar: Run) -> None:
    fake_program(tmp_path, "pigz", "exit 0")
    assert nearfar("doctor", "--require", "pigz", PATH=str(tmp_path)).returncode == 0
    done = nearfar("doctor", "--require", "pigz", "--require", "perf", PATH=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.startswith("nearfar: error: perf: not in PATH; sudo apt-get install")
    assert "pigz" in done.stdout
    unknown = nearfar("doctor", "--require", "qemu", PATH=str(tmp_path))
    assert unknown.returncode == 2 and "no such tool" in unknown.stderr


def test_a_full_disk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = doctor.MIN_FREE_BYTES - 1

    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage)
    (found,) = doctor.disk()
    assert not found.available and "-o" in found.fix


def test_a_probe_that_fails_does_not_end_the_diagnosis() -> None:
    def broken() -> Iterable[doctor.Finding]:
        raise RuntimeError("boom")

    found = doctor.examine([broken, doctor.disk])
    assert [one.name for one in found] == ["broken", "disk space"]
    assert not found[0].available and "boom" in found[0].why


def test_page_sizes_are_those_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nearfar.apply import setting

    monkeypatch.setattr(setting, "switches", lambda: {65536: "a", 2 << 20: "b"})
    monkeypatch.setattr(setting, "SYSFS", tmp_path)
    (found,) = doctor.page_sizes()
    assert not found.available and "64K, 2M" in found.why and "sudo" in found.fix
    (tmp_path / "enabled").touch()
    (found,) = doctor.page_sizes()
    assert found.available and not found.fix
    monkeypatch.undo()
    monkeypatch.setattr(setting.switches, "__defaults__", (tmp_path / "none",))
    (found,) = doctor.page_sizes()
    assert not found.available and "CONFIG_TRANSPARENT_HUGEPAGE" in found.fix
