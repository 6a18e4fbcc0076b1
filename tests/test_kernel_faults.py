"""The bench case ``kernel-faults``; run whole only as root with zram."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernel
import pytest
import undo
from cases import kernel_faults
from programs import PROGRAMS
from table import recorded

BENCH = Path(__file__).parent.parent / "bench"

#: Programs that are captured anew: quick, and nearly independent of compilers and libraries.
REPLAYED = ("graph",)


def test_the_memory_controller_is_found(tmp_path: Path) -> None:
    v1 = "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n"
    v2 = f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    assert kernel.controller(v1 + v2) == kernel.Controller(Path("/c/memory"), 1)
    with pytest.raises(kernel.Unavailable, match="no memory control group"):
        kernel.controller(v2)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    found = kernel.controller(v2)
    assert found == kernel.Controller(tmp_path, 2) and found.limit == "memory.max"
    assert found.kernel_bytes(tmp_path, {"kernel": 9}) == 9
    assert found.kernel_bytes(tmp_path, {"slab": 1, "pagetables": 4}) == 5
    with pytest.raises(kernel.Unavailable, match="cannot be read"):
        kernel.controller("cgroup2 /no/such cgroup2 rw 0 0\n")


def test_a_machine_without_zram_or_root_is_skipped_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inputs: Any = SimpleNamespace(remarks=[], can_capture=True, scratch=tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(kernel.Unavailable, match="needs root"), kernel.swapping(1 << 20):
        pass

    def none(*_: object) -> None:
        raise kernel.Unavailable("this kernel has no zram (CONFIG_ZRAM)")

    monkeypatch.setattr(kernel_faults, "ask_kernel", none)
    monkeypatch.setattr(kernel, "controller", lambda _: kernel.Controller(Path("/c"), 1))
    assert kernel_faults.run_case(inputs, 1, True) == []
    assert inputs.remarks == ["kernel-faults skipped: this kernel has no zram (CONFIG_ZRAM)"]


def settings() -> dict[str, str]:
    files = ("/proc/swaps", "/proc/sys/vm/page-cluster", "/proc/sys/vm/swappiness")
    # The lock waits until no other bench changes them.
    with undo.undoing("swap") if os.geteuid() == 0 else nullcontext():
        found = {name: Path(name).read_text() for name in files}
        zram = sorted(path.name for path in Path("/sys/block").glob("zram*"))
    return {**found, "zram": " ".join(zram)}


@pytest.mark.long("a bench of the real kernel")
def test_faults_of_the_real_kernel_are_near_the_predicted_ones() -> None:
    before = settings()
    command = [sys.executable, BENCH / "run.py", "--only", "kernel-faults", "--quick"]
    done = subprocess.run(
        [*command, "--format", "json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert settings() == before
    result = json.loads(done.stdout)
    if not result["rows"]:
        assert result["remarks"][0].startswith("kernel-faults skipped: ")
        pytest.skip(result["remarks"][0])
    cells = result["cells"]
    assert [cell["part"] for cell in cells] == list(kernel_faults.FRACTIONS)
    assert cells[0]["trace_pages"] == pytest.approx(cells[0]["anonymous_pages"], rel=0.1)
    # Less memory, more faults. Quick programs have a tenth of the size, hence the bound of 50 %.
    counted = [cell["polled"][0] for cell in cells if cell["polled"]]
    predicted = [cell["predicted"]["exact"] for cell in cells]
    assert counted[0] > counted[-1] > 0 and predicted[0] > predicted[-1] > 0
    middle = statistics.median(kernel_faults.errors(cells, *kernel_faults.SECOND))
    assert abs(middle) < 50


RECORD = recorded("kernel-faults")


def test_the_record_holds_programs_of_many_kinds() -> None:
    cells = RECORD["cells"]
    programs = list(dict.fromkeys(cell["program"] for cell in cells))
    assert programs == [program.name for program in PROGRAMS] and len(programs) >= 10
    parts = [(cell["program"], cell["part"]) for cell in cells]
    assert parts == [(name, part) for name in programs for part in kernel_faults.FRACTIONS]
    assert not RECORD["options"]["quick"]


def test_each_run_is_compared_with_the_prediction_for_its_statistics() -> None:
    """Statistics are `exact` if the kernel renewed them in the run, else `old`."""
    cell = {"predicted": {"old": 300, "exact": 100}, "kernel": [200, 200, 100], "steady": [200]}
    assert sorted(kernel_faults.pairs(cell, *kernel_faults.MAIN)) == [
        (100, "exact"),
        (200, "exact"),
        (200, "old"),
    ]
    assert kernel_faults.signed_error(cell, *kernel_faults.MAIN) == 0
    assert kernel_faults.signed_error({**cell, "steady": []}, *kernel_faults.MAIN) == -50
    assert kernel_faults.signed_error({**cell, "steady": cell["kernel"]}, *kernel_faults.MAIN) == 50
    assert kernel_faults.signed_error(cell, "kernel", "old") == 50
    few = {**cell, "kernel": [63], "steady": [63]}
    assert kernel_faults.signed_error(few, *kernel_faults.MAIN) is None


def test_the_range_of_spare_frames_is_tried_in_quarters() -> None:
    """Of the kernel's peak of 500 pages, 400 are spare at its usual 100."""
    page = kernel.PAGE
    assert kernel_faults.spare({"kernel_bytes": 500 * page, "kernel_usual_bytes": 100 * page}) == [
        100,
        200,
        300,
        400,
    ]
    assert not kernel_faults.spare({"kernel_bytes": 132 * page, "kernel_usual_bytes": 100 * page})


def test_recorded_figures_come_from_the_cells() -> None:
    made = [row.to_dict() for row in kernel_faults.rows(RECORD["cells"])]
    assert json.loads(json.dumps(made)) == RECORD["rows"]
    changed = json.loads(json.dumps(RECORD["cells"]))
    cell = next(cell for cell in changed if cell["kernel"])
    cell["kernel"] = [2 * count for count in cell["kernel"]]
    assert [row.to_dict() for row in kernel_faults.rows(changed)] != RECORD["rows"]


@pytest.mark.long("captures a program anew; test_digests.py finds what changes the predictions")
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="QEMU is not installed")
@pytest.mark.parametrize("name", REPLAYED)
def test_recorded_predictions_are_reproduced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 2 and 5 %, as compilers and libraries may differ."""
    program = next(program for program in PROGRAMS if program.name == name)
    if program.missing():
        pytest.skip(f"no {program.missing()[0]}")
    # Only the recorded sizes, without those around them.
    monkeypatch.setattr(kernel_faults, "AROUND", (0,))
    recorded = [cell for cell in RECORD["cells"] if cell["program"] == name]
    cells = json.loads(json.dumps(recorded))
    kernel_faults.ask_model(cells, program.make(tmp_path, 1), tmp_path / "program.trace")
    for made, kept in zip(cells, recorded, strict=True):
        assert made["trace_pages"] == pytest.approx(kept["trace_pages"], rel=0.02)
        for how, count in kept["predicted"].items():
            near = pytest.approx(count, rel=0.05, abs=kernel_faults.FEWEST)
            assert made["predicted"][how] == near, (kept["part"], how)


def test_the_changes_of_a_killed_run_are_undone(tmp_path: Path) -> None:
    """Its journal is followed, last step first; the journal of a running process is not."""
    setting, other = tmp_path / "setting", tmp_path / "other"
    setting.write_text("old")
    killed = f"""
import os, pathlib, signal, sys
sys.path[:0] = {[str(BENCH)]!r}
from undo import undoing
setting, other = map(pathlib.Path, sys.argv[2:4])
with undoing("test", pathlib.Path(sys.argv[1])) as steps:
    steps.later("write", setting, setting.read_text())
    setting.write_text("new")
    steps.later("unlink", other)
    other.write_text("x")
    steps.later("group", "/sys/fs/cgroup/there-is-none")
    steps.later("write", "/no/such/file", "1")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    words = [sys.executable, "-c", killed, tmp_path, setting, other]
    assert subprocess.run(words, check=False).returncode == -9
    assert (setting.read_text(), other.exists()) == ("new", True)
    messages = undo.clean(tmp_path)
    assert len(messages) == 4 and messages[0].startswith("write /no/such/file 1: ")
    assert (setting.read_text(), other.exists()) == ("old", False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench-test.lock", "setting"]
    with undo.undoing("test", tmp_path) as steps:
        steps.later("write", setting, "undone")
        assert undo.clean(tmp_path) == []
        assert setting.read_text() == "old"
    assert setting.read_text() == "undone"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench-test.lock", "setting"]


def test_one_run_at_a_time_changes_the_machine(tmp_path: Path) -> None:
    """Runs that enter a block of the same name wait for each other; each undoes its own changes."""
    setting = tmp_path / "setting"
    setting.write_text("0")
    adding = f"""
import pathlib, sys
sys.path[:0] = {[str(BENCH)]!r}
from undo import undoing
setting = pathlib.Path(sys.argv[2])
for _ in range(20):
    with undoing("test", pathlib.Path(sys.argv[1])) as steps:
        assert setting.read_text() == "0"
        for step in range(5):
            steps.later("write", setting, step)
        setting.write_text("changed")
"""
    words = [sys.executable, "-c", adding, tmp_path, setting]
    runs = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(run.communicate()[1], run.returncode) for run in runs] == [("", 0)] * 3
    assert setting.read_text() == "0"
