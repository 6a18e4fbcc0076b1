"""``nearfar tiering`` with parallel threads, on nodes whose latency rises with load."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from conftest import Run
from nearfar import tiering_answers as answers
from nearfar.errors import NearfarError
from nearfar.tiering import policies, tiering, workloads

#: Options for workloads of 16 threads on two sockets, at 1/1024 of their size.
ROWS: dict[str, Any] = {"machine": "ddr4-2socket", "scale": "1/1024", "fast": "16G"}
#: Policies that may take more than three times as long as no policy (docs/tiering.md, Policies).
SLOW = {(name, "tpp") for name in ("nomad-small", "nomad-medium", "nomad-large", "ranked")}


def last(result: Any) -> dict[str, Any]:
    """The rows of the last phase, by policy."""
    return {row["policy"]: row for row in result.rows if row["phase"] == result.rows[-1]["phase"]}


def test_rows_of_a_normal_distribution() -> None:
    """Without a policy, the far node's 35.2 GB/s are the limit; the best placement is known."""
    rows = last(tiering("normal-rows", policy="none,autonuma,oracle", rounds=2, **ROWS))
    none, best = rows["none"], rows["oracle"]
    far = 35.2 * 1e9 / 2**20 / (1 - none["fast_hit_ratio"])
    assert none["bandwidth_mb_s"] == pytest.approx(far, rel=0.01)
    # 524,288 rows around the mean fit, with a standard deviation of 200,000.
    assert best["fast_hit_ratio"] == pytest.approx(
        math.erf(524_288 / 2 / 200_000 / math.sqrt(2)), abs=0.01
    )
    assert none["fast_hit_ratio"] < 0.01
    assert none["mean_latency_ns"] < 2.9 * rows["autonuma"]["mean_latency_ns"]
    assert best["bandwidth_mb_s"] > rows["autonuma"]["bandwidth_mb_s"] > 2 * none["bandwidth_mb_s"]


def test_the_answer_notes_a_single_memory_tier() -> None:
    """Linux puts the DRAM of two sockets in one tier, CXL memory in another."""
    options: dict[str, Any] = {"policy": "none,tpp,autonuma", "scale": "1/256", "rounds": 1}
    said = answers.answers(tiering("nomad-small", machine="ddr4-2socket", fast="13G", **options))
    assert "one memory tier, within which autonuma and tpp move nothing" in said[-1]
    said = answers.answers(tiering("nomad-small", **options))
    assert not any("memory tier" in line for line in said)


@pytest.mark.parametrize("workload", list(workloads()))
def test_no_policy_is_far_slower_than_none(workload: str) -> None:
    options: dict[str, Any] = {"scale": "1/256"}
    if workload in ("normal-rows", "gups", "antagonist"):
        options = ROWS | {"slow": "80G"}
    rows = last(tiering(workload, rounds=1, **options))
    assert set(rows) == {policy["name"] for policy in policies()}
    for name, row in rows.items():
        if (workload, name) not in SLOW:
            assert row["mean_latency_ns"] < 3 * rows["none"]["mean_latency_ns"], name


FILE = """\
description = "two arrays"
source = "a test"
threads = {threads}
access = "4KiB"
operations = 200_000
mix = "read"

[[array]]
size = "64MiB"
weight = 3
distribution = "uniform"

[[array]]
size = "256MiB"
distribution = "sequential"
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_a_workload_is_read_from_a_file(nearfar: Run, tmp_path: Path, threads: int) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FILE.format(threads=threads))
    options: dict[str, Any] = {"policy": "none", "scale": 1, "rounds": 2, "fast": "64M"}
    result = tiering(file, slow="256M", **options)
    assert [row["phase"] for row in result.rows] == ["round-1", "round-2"]
    for row in result.rows:
        assert row["accesses"] == 200_000
        assert row["fast_hit_ratio"] == pytest.approx(0.75, abs=0.01)
        assert row["mean_latency_ns"] == pytest.approx(
            row["seconds"] * threads / row["accesses"] * 1e9
        )
    assert str(file) in result.run["command"]
    done = nearfar("tiering", "--workload", file, "--policy", "none", "--scale", 1, "--rounds", 1)
    assert done.returncode == 0, done.stderr


def test_a_moving_hot_set_is_promoted(tmp_path: Path) -> None:
    file = tmp_path / "moves.toml"
    text = FILE.format(threads=4).replace("uniform", "normal").replace("weight = 3", "weight = 30")

    def promoted(shift: float) -> float:
        file.write_text(text.replace("mix =", "misses = 4\nmix =", 1) + "shift = 0\n")
        file.write_text(file.read_text().replace("weight = 30", f"weight = 30\nshift = {shift}"))
        options: dict[str, Any] = {"policy": "oracle", "scale": 1, "rounds": 3}
        rows = tiering(file, fast="16M", slow="512M", **options).rows
        return float(rows[-1]["promotions"])

    assert promoted(0) < 200 < 2000 < promoted(0.4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("threads", "thread"), "unknown field `thread`"),
        (("uniform", "bell"), "zipf, normal, uniform"),
        (('access = "4KiB"', 'access = "100B"'), "whole pages"),
        (("[[array]]", "[array]"), "mine.toml"),
    ],
)
def test_mistakes_in_a_file_are_one_line(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FILE.format(threads=1).replace(*change))
    with pytest.raises(NearfarError, match="mine.toml") as raised:
        tiering(file, policy="none")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2
