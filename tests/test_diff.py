"""``nearfar diff``: pairing of rows, verdicts, and the exit code for CI."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, Run
from nearfar.diff import compare, diff
from nearfar.errors import NearfarError
from nearfar.paging import paging
from nearfar.tiering import tiering
from sweeping import sweep_here

TRACE = DATA / "captures" / "gzip.trace"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Paging runs with two TLBs and two sets of memory sizes; tiering runs of four seeds."""
    folder = tmp_path_factory.mktemp("runs")
    common: dict[str, Any] = {"page_sizes": "4K,32K", "machine": "optane-ssd"}
    paging(TRACE, memory="50%,100%", **common).write(folder / "plain")
    paging(TRACE, memory="50%,100%", tlb="16", **common).write(folder / "small-tlb")
    paging(TRACE, memory="50%,75%", **common).write(folder / "other-memory")
    more: dict[str, Any] = {"scale": "1/1024", "rounds": 1, "seeds": 4}
    tiering(policy="nomad,ssp", **more).write(folder / "cheap")
    tiering(policy="nomad,ssp", cost_scale=1.5, **more).write(folder / "dear")
    tiering(policy="tpp", **more).write(folder / "tpp")
    tiering(policy="ssp", **more).write(folder / "ssp")
    return folder


# --- one comparison


def test_paired_differences_have_the_interval_of_the_paired_t_test() -> None:
    from scipy import stats  # takes seconds, which each worker would need to collect the tests

    draw = random.Random(3)
    a = {seed: 100 + draw.gauss(0, 10) for seed in range(6)}
    b = {seed: value * 1.02 + draw.gauss(0, 0.5) for seed, value in a.items()}
    found = compare("x", a, b, "less")
    assert found is not None
    tested = stats.ttest_rel([b[s] for s in a], [a[s] for s in a]).confidence_interval(0.95)
    mean = sum(a.values()) / 6
    assert found["low"] == pytest.approx(tested.low / mean)
    assert found["high"] == pytest.approx(tested.high / mean)
    assert found["pairs"] == 6
    assert found["verdict"] == "worse"
    other = compare("x", a, b, "more")
    assert other is not None
    assert other["verdict"] == "better"


def test_runs_without_common_seeds_are_compared_by_welchs_t_test() -> None:
    from scipy import stats

    draw = random.Random(4)
    a = {seed: 100 + draw.gauss(0, 3) for seed in range(5)}
    b = {seed: 104 + draw.gauss(0, 1) for seed in range(10, 17)}
    found = compare("x", a, b, "less")
    assert found is not None
    test = stats.ttest_ind(list(b.values()), list(a.values()), equal_var=False)
    tested = test.confidence_interval(0.95)
    mean = sum(a.values()) / 5
    assert (found["low"], found["high"]) == pytest.approx((tested.low / mean, tested.high / mean))
    assert found["pairs"] == 0


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({1: 5.0}, {1: 5.0}, "unchanged"),
        ({1: 5.0}, {1: 5.0 + 1e-14}, "unchanged"),
        ({1: 5.0}, {1: 5.1}, "worse"),
        ({1: 5.0}, {1: 4.9}, "better"),
        ({1: 0.0}, {1: 1.0}, "worse"),
        ({1: 10.0, 2: 12.0}, {1: 11.0, 2: 11.0}, "unchanged"),
        ({1: None, 2: 12.0}, {1: 11.0, 2: 13.0}, "worse"),
    ],
)
def test_verdicts_need_significance(a: dict[int, Any], b: dict[int, Any], verdict: str) -> None:
    found = compare("x", a, b, "less")
    assert found is not None
    assert found["verdict"] == verdict


# --- runs


def test_rows_are_paired_by_the_declared_keys(runs: Path) -> None:
    found = diff(runs / "plain", runs / "small-tlb")
    assert found.run["keys"] == ["storage", "memory", "page_bytes"]
    assert len(found.rows) == 2 * 2 * 2
    assert not found.only_a
    assert not found.only_b
    ours = {(r["storage"], r["memory"], r["page_bytes"]): (r["a"], r["b"]) for r in found.rows}
    for name, side in (("plain", 0), ("small-tlb", 1)):
        import pyarrow.parquet as pq

        for row in pq.read_table(runs / name / "result.parquet").to_pylist():
            memory = f"{100 * row['memory_fraction']:g}%"
            key = (row["storage"], memory, row["page_bytes"])
            assert ours[key][side] == row["total_ns"]
    assert all(row["verdict"] == "worse" for row in found.rows if row["page_bytes"] == 4096)


def test_rows_of_one_run_only_are_named(runs: Path) -> None:
    found = diff(runs / "plain", runs / "other-memory")
    assert {row["memory"] for row in found.rows} == {"50%"}
    assert {row["memory"] for row in found.only_a} == {"100%"}
    assert {row["memory"] for row in found.only_b} == {"75%"}
    assert len(found.only_a) == 4


def test_numbers_of_one_run_only_are_named(tmp_path: Path) -> None:
    """For example, an allocation that became impossible has no time."""
    from nearfar.numa import alloc

    first = alloc(["1G", "90G"], mode=["local", "interleave"])
    second = alloc(["1G", "90G"], mode=["local", "interleave"])
    for row in second.rows:
        if (row["mode"], row["size_bytes"]) == ("local", 90 << 30):
            row["seconds"] = row["gb_per_second"] = None
    first.write(tmp_path / "a")
    second.write(tmp_path / "b")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert len(found.rows) == 3
    assert found.only_a == [{"mode": "local", "size_bytes": 90 << 30, "metric": "seconds"}]
    assert found.only_b == []


def test_a_metric_is_compared_over_all_seeds(runs: Path) -> None:
    found = diff(runs / "cheap", runs / "dear", metric=["bandwidth_mb_s", "seconds"])
    assert diff(runs / "cheap", runs / "dear", metric="bandwidth_mb_s, seconds") == found
    assert {row["pairs"] for row in found.rows} == {4}
    assert all(row["low"] <= row["relative"] <= row["high"] for row in found.rows)
    for row in found.rows:
        assert row["verdict"] == "worse"
        assert (row["relative"] < 0) == (row["metric"] == "bandwidth_mb_s")


def test_an_option_that_differs_between_the_runs_is_no_key(runs: Path) -> None:
    found = diff(runs / "tpp", runs / "ssp")
    assert found.run["differs"] == {"policy": ["tpp", "ssp"]}
    assert found.run["keys"] == ["phase"]
    assert len(found.rows) == 2


def test_bad_options_are_an_error_of_one_line(runs: Path) -> None:
    def refused(*words: Any, **more: Any) -> str:
        with pytest.raises(NearfarError) as caught:
            diff(*words, **more)
        assert caught.value.exit_code == 2
        return str(caught.value)

    assert "did you mean total_ns" in refused(runs / "plain", runs / "plain", metric="totl_ns")
    assert "is of paging" in refused(runs / "plain", runs / "cheap")
    assert "not a run folder" in refused(runs / "plain", runs / "nothing")


@pytest.mark.parametrize("damage", ["{", '{"study": "paging"}', "[]", '{"study": "sweep"}'])
def test_a_damaged_run_is_an_error_that_names_it(runs: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(runs / "plain", tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(damage, encoding="utf-8")
    with pytest.raises(NearfarError) as caught:
        diff(runs / "plain", tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)


def test_fail_above_sets_the_exit_code(runs: Path, nearfar: Run) -> None:
    found = diff(runs / "plain", runs / "small-tlb")
    worst = max(row["relative"] for row in found.rows)
    assert worst > 0
    above, below = f"{worst * 100 * 0.99:.9f}%", f"{worst * 100 * 1.01:.9f}%"
    a, b = runs / "plain", runs / "small-tlb"
    failed = nearfar("diff", a, b, "--fail-above", above)
    assert failed.returncode == 1
    assert "worse by more than" in failed.stderr
    assert nearfar("diff", a, b, "--fail-above", below).returncode == 0
    # An improvement is no failure.
    assert nearfar("diff", b, a, "--fail-above", "0%").returncode == 0
    assert nearfar("diff", a, a, "--fail-above", "0%").returncode == 0
    assert nearfar("diff", a, b).returncode == 0
    assert nearfar("diff", a, b, "--fail-above", "much").returncode == 2


def test_json_is_the_whole_result(runs: Path, nearfar: Run) -> None:
    done = nearfar("diff", runs / "plain", runs / "small-tlb", "--format", "json")
    printed = json.loads(done.stdout)
    assert printed == diff(runs / "plain", runs / "small-tlb").to_dict()
    assert all(math.isfinite(row["relative"]) for row in printed["rows"])


def test_two_sweeps_are_compared(tmp_path: Path) -> None:
    shutil.copytree(TRACE, tmp_path / "gzip.trace")
    grid = {"trace": [str(tmp_path / "gzip.trace")], "replacement": ["clock", "lru"]}
    options = {"page_sizes": "4K,32K", "memory": "50%", "storage": ["optane-ssd"],
               "machine": "optane-ssd"}  # fmt: skip
    sweep_here({"study": "paging", "grid": grid, "options": options}, tmp_path / "a")
    options["tlb"] = "16"
    sweep_here({"study": "paging", "grid": grid, "options": options}, tmp_path / "b")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.run["keys"] == ["replacement", "page_bytes"]
    assert found.run["differs"] == {"tlb": ["64", "16"]}
    assert len(found.rows) == 4
