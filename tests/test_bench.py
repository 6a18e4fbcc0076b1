"""The bench runs end to end on small inputs, and its reference simulators agree with the engines.

Nothing here depends on speed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run  # of the bench

from conftest import HANG

BENCH = Path(__file__).parent.parent / "bench"

#: Cases with test files of their own.
TESTED = {
    "kernel-faults",
    "mglru-guest",
    "tiering-guest",
    "page-gain",
    "first-access",
    "guest-pages",
}
CASES = [case.NAME for case in (*run.CASES, *run.VALIDATION) if case.NAME not in TESTED]


def bench(*words: object, path: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, BENCH / "run.py", "--quick", *map(str, words)]
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANG, check=False, env=environment
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    name = folder / "quick.today"
    done = bench(
        "--only", ",".join(CASES), "--format", "json", "--rounds", 2, "--huge", 20_000, "-o", name
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert sorted(file.name for file in folder.iterdir()) == ["quick.today.json", "quick.today.md"]
    assert json.loads((folder / "quick.today.json").read_text()) == result
    assert (folder / "quick.today.md").read_text().count("\n|") >= len(result["rows"])
    return result


def named(result: dict[str, Any], case: str, start: str) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if row["case"] == case and row["name"].startswith(start)]


@pytest.mark.long("compiles the bench, and runs its cases")
def test_every_case_has_figures(quick: dict[str, Any]) -> None:
    cases = [row["case"] for row in quick["rows"]]
    expected = CASES if shutil.which("qemu-x86_64") else CASES[1:]  # without `capture`
    skipped = [remark.partition(" skipped: ")[0] for remark in quick["remarks"]]
    expected = [case for case in expected if case not in skipped]
    assert list(dict.fromkeys(cases)) == [*expected, "huge"]
    for row in quick["rows"]:
        assert math.isfinite(row["value"]), row
        assert row["value"] >= 0 or row["name"].startswith("signed "), row
        assert row["low"] <= row["value"] <= row["high"], row
        assert row["holds"] is None, "quick inputs are too small to judge goals by"


@pytest.mark.long("compiles the bench, and runs its cases")
def test_miss_counts_equal_libcachesim(quick: dict[str, Any]) -> None:
    """Equal counts: 2 rounds x 3 configurations + 2 TLBs; for Zipf 2 x 2 + 1."""
    assert [row["value"] for row in named(quick, "paging", "miss counts")] == [8]
    assert [row["value"] for row in named(quick, "zipf", "miss counts")] == [5]


@pytest.mark.long("compiles the bench, and runs its cases")
def test_lru_faults_equal_those_of_a_fenwick_tree(quick: dict[str, Any]) -> None:
    rows = named(quick, "lru", "Fenwick / engine")
    assert len(rows) == 4 and all(row["note"].endswith("all equal") for row in rows)


@pytest.mark.long("compiles the bench, and runs its cases")
def test_lru_faults_equal_libcachesim_at_every_size(tmp_path: Path, mixed: Path) -> None:
    from inputs import Inputs
    from measure import run
    from run import build

    inputs = Inputs(tmp_path, 1, 1, build())
    found = inputs.measure("lru", mixed, "--page-bytes", "4096")
    assert found["stack_faults"] == found["fenwick_faults"]
    runs = [f"lru:{frames}" for frames in found["frames"]]
    file = inputs.page_file(mixed, 4096)
    peers = run([sys.executable, BENCH / "peer.py", file, *runs]).json()
    assert [peer["misses"] for peer in peers] == found["stack_faults"]
    assert {peer["requests"] for peer in peers} == {found["references"]}


def test_counts_that_differ_are_an_error() -> None:
    from against import same
    from measure import BenchError

    same(7, 7, "CLOCK misses", 4096, 3)
    with pytest.raises(BenchError, match="nearfar 7, libCacheSim 8"):
        same(7, 8, "CLOCK misses", 4096, 3)


def test_goals_are_judged_by_the_median() -> None:
    from measure import row

    met = row("lru", "a", [1.0, 5.0, 4.0], "x", goal=">= 3")
    assert (met.value, met.low, met.high, met.holds, met.rounds) == (4.0, 1.0, 5.0, True, 3)
    assert row("lru", "a", [2.0, 5.0, 1.0], "x", goal=">= 3").holds is False
    assert row("lru", "a", [2.0, 5.0, 4.0], "x", goal="<= 3").holds is False
    assert row("lru", "a", [2.0], "x").holds is None


@pytest.mark.long("compiles the bench, and runs its cases")
def test_without_qemu_a_generated_trace_stands_in(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("cargo", "rustc", "rustup", "cc", "ld", "gzip"):
        found = shutil.which(tool)
        if found is not None:
            (tools / tool).symlink_to(found)
    done = bench("--only", "capture,decode", "--format", "json", path=str(tools))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert {row["case"] for row in result["rows"]} == {"decode"}
    assert "replaces the capture" in result["remarks"][0]


def test_bad_options_get_one_clear_line(tmp_path: Path) -> None:
    done = bench("--only", "speed")
    assert done.returncode == 2 and done.stderr.startswith("bench: error: --only: no case 'speed'")
    done = bench("--refs", "0")
    assert done.returncode == 2 and "is not above 0" in done.stderr
