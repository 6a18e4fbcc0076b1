"""``nearfar sweep``: its file, cells and folder; test_sweep_killed.py interrupts it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from conftest import DATA, Run
from nearfar import studies
from nearfar.errors import NearfarError
from nearfar.sweep import estimate, load, sweep
from nearfar.sweep.plan import read
from sweeping import GRID, LISTED, REPLACEMENTS, bytes_of, lay_out, sweep_here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lay_out(tmp_path)


# --- the file


def refused(folder: Path, text: str) -> str:
    file = folder / "wrong.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(NearfarError) as caught:
        read(file)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('study = "paging"', 'study = "pagin"', "did you mean `paging`?"),
        ('study = "paging"', "", "key study: is missing"),
        ("[options]", "[option]", "did you mean `options`?"),
        ("memory =", "memroy =", "did you mean `memory`?"),
        ("memory =", "progress =", "unknown key"),
        ("memory =", "threads =", "unknown key"),
        ('memory = "50%,100%"', "replacement = 7", "'7' is not text"),
        ('memory = "50%,100%"', "write_back = 1", "'1' is not true or false"),
        (LISTED, '"clock"', "is not a list of values"),
        (LISTED, "[]", "is not a list of values"),
        (LISTED, '["clock", "clock"]', "names a value twice"),
        ('memory = "50%,100%"', 'replacement = "lru"', "is in [grid] as well"),
        ('trace = ["gzip.trace", "sqlite.trace"]', "", "trace: is missing"),
        ("[grid]", "grid]", "not TOML"),
    ],
)
def test_errors_in_the_file_are_reported(folder: Path, old: str, new: str, expected: str) -> None:
    assert old in GRID
    message = refused(folder, GRID.replace(old, new))
    assert expected in message
    assert "wrong.toml" in message


def test_the_line_of_a_wrong_key_is_reported(folder: Path) -> None:
    message = refused(folder, GRID.replace("memory =", "memroy ="))
    line = 1 + GRID.replace("memory =", "memroy =").splitlines().index('memroy = "50%,100%"')
    assert f"wrong.toml line {line} key options.memroy" in message


def test_a_grid_of_too_many_cells_is_refused() -> None:
    many = {name: list(range(1, 1001)) for name in ("seed", "window", "sleep_granularity")}
    with pytest.raises(NearfarError, match="1,000,000,000 cells"):
        read({"study": "ssd", "grid": many, "options": {"trace": "a.trace"}})


def test_every_study_declares_what_sweeps_and_diffs_need() -> None:
    for study in studies.STUDIES.values():
        known = study.parameters()
        assert {*study.traces, *study.in_columns} <= set(known)
        assert set(study.machines) <= set(known)
        assert study.columns.metrics
        assert set(study.columns.metrics.values()) <= {"less", "more"}


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("page_sizes", "4K", True),
        ("page_sizes", [4096, 8192], True),
        ("page_sizes", [4096, "8K"], True),
        ("page_sizes", [4096, True], False),
        ("storage", ["hdd"], True),
        ("storage", "hdd", True),  # names separated by commas
        ("write_back", False, True),
    ],
)
def test_values_are_checked_against_the_annotation(name: str, value: Any, good: bool) -> None:
    annotation = studies.find("paging").parameters()[name].annotation
    assert studies.fits(annotation, value) is good


# --- cells


def test_a_cell_has_the_rows_of_the_study(folder: Path) -> None:
    from nearfar.paging import paging

    found = sweep_here(folder / "study.toml", folder / "out")
    assert [cell["status"] for cell in found.cells] == ["done"] * 6
    assert found.ran == 6
    # 2 memory sizes, 2 page sizes and 2 storages in each cell.
    rows = found.to_polars()
    assert rows.height == 6 * 2 * 2 * 2
    direct = paging(
        folder / "sqlite.trace",
        machine="optane-ssd",
        memory="50%,100%",
        page_sizes="4K,32K",
        replacement=REPLACEMENTS[-1],
    )
    own = [
        {key: row[key] for key in direct.rows[0]}
        for row in rows.iter_rows(named=True)
        if (row["trace"], row["replacement"]) == ("sqlite.trace", REPLACEMENTS[-1])
    ]
    assert own == direct.rows


def test_the_dataset_opens_in_one_line(folder: Path) -> None:
    import polars

    sweep_here(folder / "study.toml", folder / "out")
    frame = polars.read_parquet(folder / "out" / "dataset")
    assert frame.height == 48
    assert frame["trace"].unique().sort().to_list() == ["gzip.trace", "sqlite.trace"]
    schemas = {str(pq.read_schema(part)) for part in (folder / "out" / "dataset").iterdir()}
    assert len(schemas) == 1


def test_finished_cells_are_never_run_again(folder: Path) -> None:
    out = folder / "out"
    sweep_here(folder / "study.toml", out)
    marks = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    again = sweep_here(folder / "study.toml", out)
    assert again.ran == 0
    assert marks == {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    # A smaller grid shows only its own cells, and keeps the other results.
    first, last = REPLACEMENTS[0], REPLACEMENTS[-1]
    text = GRID.replace(LISTED, f'["{last}", "{first}"]')
    (folder / "study.toml").write_text(text, encoding="utf-8")
    fewer = sweep_here(folder / "study.toml", out)
    assert fewer.ran == 0
    assert set(fewer.to_polars()["replacement"]) == {first, last}
    (folder / "study.toml").write_text(GRID, encoding="utf-8")
    assert sweep_here(folder / "study.toml", out).ran == 0
    forced = sweep_here(folder / "study.toml", out, force=True)
    assert forced.ran == 6


def test_same_input_same_bytes(folder: Path) -> None:
    """In this process, and in two others."""
    sweep_here(folder / "study.toml", folder / "a", threads=1)
    sweep(folder / "study.toml", folder / "b", workers=2, threads=4)
    assert bytes_of(folder / "a") == bytes_of(folder / "b")


def test_a_cells_key_depends_on_contents_of_trace_and_machine(folder: Path) -> None:
    def keys() -> list[str]:
        return [cell.key for cell in read(folder / "study.toml").cells()]

    first = keys()
    assert len(set(first)) == 6
    assert keys() == first
    # A changed trace changes the keys of its cells.
    part = folder / "gzip.trace" / "part-00000.parquet"
    changed = bytearray(part.read_bytes())
    changed[-20] ^= 1
    part.write_bytes(changed)
    second = keys()
    assert [a == b for a, b in zip(first, second, strict=True)] == [False] * 3 + [True] * 3
    machine = folder / "optane-ssd.toml"
    text = (DATA.parent.parent / "machines" / "optane-ssd.toml").read_text(encoding="utf-8")
    machine.write_text(text, encoding="utf-8")
    (folder / "study.toml").write_text(
        GRID.replace('machine = "optane-ssd"', 'machine = "optane-ssd.toml"'), encoding="utf-8"
    )
    third = keys()
    machine.write_text(text.replace("64", "63", 1), encoding="utf-8")
    assert not set(third) & set(keys())


def test_known_hashes_are_used_only_for_unchanged_files(folder: Path) -> None:
    known: dict[str, Any] = {}
    plan = read(folder / "study.toml")
    first = [cell.key for cell in plan.cells(known)]
    assert len(known) == 2
    part = folder / "gzip.trace" / "part-00000.parquet"
    changed = bytearray(part.read_bytes())
    changed[-20] ^= 1
    part.write_bytes(changed)
    assert [cell.key for cell in read(folder / "study.toml").cells(known)] != first


def test_a_cells_key_depends_on_the_source_of_a_python_policy(tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"

    def key(text: str) -> str:
        policy.write_text(text)
        study = {"study": "tiering", "options": {"policy": f"tpp,{policy}:Mine"}}
        (cell,) = read(study).cells()
        return cell.key

    assert key("a = 1") == key("a = 1") != key("a = 2")


def test_a_cell_that_fails_leaves_the_others(folder: Path, nearfar: Run) -> None:
    first = REPLACEMENTS[0]
    text = GRID.replace(LISTED, f'["{first}", "fifo"]')
    text = text.replace('"sqlite.trace"', '"gone.trace"')
    (folder / "study.toml").write_text(text, encoding="utf-8")
    done = nearfar("sweep", folder / "study.toml", "-o", folder / "out", "--format", "json")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    shown = json.loads(done.stdout)
    cells = {(c["parameters"]["trace"], c["parameters"]["replacement"]): c for c in shown["cells"]}
    assert cells["gzip.trace", first]["status"] == "done"
    assert "no policy" in cells["gzip.trace", "fifo"]["error"]
    assert "no trace there" in cells["gone.trace", first]["error"]
    assert "trace=gzip.trace, replacement=fifo" in done.stderr
    assert len(shown["rows"]) == 8
    # Only failed cells are tried again.
    again = sweep_here(folder / "study.toml", folder / "out")
    assert (again.ran, len(again.failed)) == (3, 3)
    shutil.copytree(DATA / "captures" / "sqlite.trace", folder / "gone.trace")
    assert len(sweep_here(folder / "study.toml", folder / "out").failed) == 2


def test_every_study_sweeps(folder: Path) -> None:
    """Parts have one schema, even if values are missing in some or all rows."""
    files: list[dict[str, Any]] = [
        {"study": "advise", "grid": {"traces": [str(folder / "gzip.trace")]},
         "options": {"page_sizes": "4K,16K,64K", "storage": ["optane-ssd"]}},
        {"study": "size", "grid": {"swap": ["zram", "none"]},
         "options": {"traces": str(folder / "gzip.trace")}},
        {"study": "devices", "grid": {"memory": ["50%", "75%"]},
         "options": {"trace": str(folder / "gzip.trace"), "storage": "zram,nvme"}},
        {"study": "thp", "grid": {"max_ptes_none": [0, 511]},
         "options": {"trace": str(folder / "gzip.trace"), "policy": "never,always"}},
        {"study": "ssd", "grid": {"seed": [1, 2]},
         "options": {"trace": str(folder / "gzip.trace"), "dram": ["100K"], "epf": ["none"]}},
        {"study": "tiering", "grid": {"policy": ["none", "nomad"], "seeds": [[1], [2]]},
         "options": {"scale": "1/1024", "rounds": 1}},
        {"study": "numa-alloc", "grid": {"size": [["1G"], ["100T"]]}},
        {"study": "numa-run", "grid": {"load": ["1G"], "mode": [["memory-mode"], ["alius"]]}},
        {"study": "numa-pair", "grid": {"second": ["48G"]}, "options": {"first": "48G"}},
        {"study": "numa-plan", "grid": {"capacity": ["80G", "120G"]}},
    ]  # fmt: skip
    # For `run` and `watch`: tests/test_run.py, tests/test_watch.py.
    assert {file["study"] for file in files} | {"paging", "run", "watch"} == set(studies.STUDIES)
    for file in files:
        found = sweep_here(file, folder / file["study"])
        assert not found.failed, found.failed
        assert found.to_polars().height > 0
        schemas = {str(pq.read_schema(part)) for part in found.dataset.iterdir()}
        assert len(schemas) == 1, file["study"]
        columns = found.columns
        for key in columns.keys:
            for name in [key] if isinstance(key, str) else key:
                assert name in found.table.column_names, (file["study"], name)
        assert set(columns.metrics) <= set(found.table.column_names)


# --- dry run, folders


def test_dry_run_counts_and_writes_nothing(folder: Path, nearfar: Run) -> None:
    out = folder / "out"
    first = estimate(folder / "study.toml", out, workers=2)
    assert (first.cells, first.done) == (6, 0)
    records = sum(
        json.loads((folder / name / "trace.json").read_text())["records"]
        for name in ("gzip.trace", "sqlite.trace")
    )
    # 3 cells per trace, 5 million references/s, 2 workers.
    assert first.seconds == pytest.approx(3 * records / 5e6 / 2)
    assert not out.exists()
    sweep_here(folder / "study.toml", out)
    (folder / "study.toml").write_text(GRID.replace('"50%,100%"', '"50%"'), encoding="utf-8")
    done = nearfar("sweep", folder / "study.toml", "-o", out, "--dry-run", "--format", "json")
    shown = json.loads(done.stdout)
    assert (shown["cells"], shown["done"], shown["to_run"]) == (6, 0, 6)
    (folder / "study.toml").write_text(GRID, encoding="utf-8")
    done = nearfar("sweep", folder / "study.toml", "-o", out, "--dry-run", "--format", "json")
    assert json.loads(done.stdout)["to_run"] == 0


def test_a_folder_of_something_else_is_left_alone(folder: Path) -> None:
    with pytest.raises(NearfarError, match="holds no sweep"):
        sweep(folder / "study.toml", folder)
    with pytest.raises(NearfarError, match="holds no sweep"):
        load(folder)


def test_workers_and_threads_must_be_in_range(folder: Path) -> None:
    for options, expected in (
        ({"workers": 4097}, "--workers: 4097 .* 4096"),
        ({"threads": -1}, "--threads"),
    ):
        for function in (sweep, estimate):
            with pytest.raises(NearfarError, match=expected):
                function(folder / "study.toml", folder / "counted", **options)
    assert not (folder / "counted").exists()
