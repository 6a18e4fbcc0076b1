"""Rows of every study on the bundled captures, against recorded digests.

A digest is of the rows' values in the columns of the time of recording: a new column changes no
digest, but a changed value does. After an intended change of rows, record again and say why::

    .venv/bin/python tests/test_digests.py
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

import nearfar
from nearfar import numa
from nearfar.explain import explain
from nearfar.generate import generate, generators
from nearfar.importer import import_trace

DATA: Final = Path(__file__).parent / "data"
RECORDED: Final = DATA / "digests.json"
CAPTURES: Final = sorted((DATA / "captures").glob("*.trace"))

Rows = list[dict[str, Any]]

#: Columns that hold a path or a sentence, not a computed value.
_TEXTS: Final = ("trace", "view", "workload", "why", "why_not", "model_reason")

#: Digits of a float in a digest; further ones depend on the C library.
_DIGITS: Final = 9


def _paging(trace: Path, **options: Any) -> Rows:
    asked = {"lifetimes": "off", "memory": "10%,50%,90%"}
    found = nearfar.paging(trace, machine="optane-ssd", **asked, **options)
    return found.table.to_pylist()


def _trace_rows(trace: Path) -> Rows:
    """A row for each column of a trace, with a digest of its values."""
    import pyarrow.parquet

    found: Rows = []
    parts = [pyarrow.parquet.read_table(part) for part in sorted(trace.glob("part-*.parquet"))]
    for name in parts[0].column_names:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(json.dumps(part[name].to_pylist()).encode())
        found.append({"column": name, "values": digest.hexdigest()})
    return found


def _generated(name: str) -> Rows:
    options = {"mix": {"mix": "zipf:0.7,sequential:0.3"}}.get(name, {})
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "made.trace"
        generate(name, trace, refs=20_000, pages=300, seed=3, write_ratio=0.3, **options)
        return _trace_rows(trace)


def _imported() -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        trace = import_trace(DATA / "small.lackey", Path(folder) / "small.trace")
        return _trace_rows(Path(trace))


def _advice() -> Rows:
    traces = [DATA / "captures" / f"{name}.trace" for name in ("gnugo", "gzip", "pdf")]
    found = nearfar.advise(traces, machine=["optane-ssd"], storage=["optane-ssd"])
    # Predictions of the fitted models depend on SciPy; advised and simulated values do not.
    return [
        {name: value for name, value in row.items() if not name.startswith("predicted")}
        for row in found.table.to_pylist()
    ]


def _info(trace: Path) -> Rows:
    found = dict(nearfar.info(trace, heatmap=False))
    for point in found["working_set"]:
        # Added after the digests.
        point.pop("resident_bytes")
    return [found]


#: Counts of explain that were added after its digest.
_NEW: Final = ("zero_fills", "file_reads", "swap_ins", "file_rereads", "mapped")


def _explained(trace: Path) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        nearfar.paging(trace, memory="50%", page_sizes="4K,64K", machine="desktop-nvm").write(run)
        found = explain(run, page="4K", storage=None).to_dict()
        for place in (found["total"], *found["regions"], *found["ranges"]):
            for name in _NEW:
                place.pop(name)
        return [{key: found[key] for key in ("total", "regions", "ranges")}]


def _cases() -> dict[str, Callable[[], Rows]]:
    cases: dict[str, Callable[[], Rows]] = {}

    def add(name: str, run: Callable[..., Rows], *given: Any, **options: Any) -> None:
        cases[name] = lambda: run(*given, **options)

    for trace in CAPTURES:
        add(f"paging {trace.stem}", _paging, trace)
        add(f"paging {trace.stem} linux 64x4", _paging, trace, replacement="linux", tlb="64x4")
        add(f"info {trace.stem}", _info, trace)
    small = DATA / "captures" / "gnugo.trace"
    for name, options in {
        "lru two levels": {"replacement": "lru", "tlb": "64+1536x12"},
        "mglru": {"replacement": "mglru", "tlb": "64x4"},
        "loads": {"kinds": ["load"]},
        "write back": {"write_back": True},
        "filtered": {"filter": "cache"},
    }.items():
        add(f"paging gnugo {name}", _paging, small, **options)
    add("explain gnugo", _explained, small)
    add("advise", _advice)
    for name in ("pigz", "redis"):
        add(
            f"ssd {name}",
            lambda path: nearfar.ssd(path, dram=["2M", "8M"]).table.to_pylist(),
            DATA / "captures" / f"{name}.trace",
        )
    for mix in ("read", "write"):
        add(
            f"tiering {mix}",
            lambda mix: nearfar.tiering(
                "nomad-medium", mix=mix, scale="1/256", rounds=1, seeds=2
            ).table.to_pylist(),
            mix,
        )
    add(
        "tiering trace",
        lambda: nearfar.tiering(
            DATA / "captures" / "graph.trace", fast="40%", lifetimes="off"
        ).table.to_pylist(),
    )
    for machine in ("optane-4node", "cxl-2socket", "laptop"):
        for allocator in ("vmalloc", "user"):
            add(
                f"numa alloc {machine} {allocator}",
                lambda machine, allocator: numa.alloc(
                    ["1G", "60G", "300G"], machine=machine, allocator=allocator
                ).table.to_pylist(),
                machine,
                allocator,
            )
    add("numa run", lambda: numa.run(small).table.to_pylist())
    add("numa run stream", lambda: numa.run("40G", writes=0.25).table.to_pylist())
    add("numa pair", lambda: numa.pair("20G", "30G", overlap=[0.0, 0.5]).table.to_pylist())
    for name in generators():
        add(f"generate {name}", _generated, name)
    add("import lackey", _imported)
    return cases


CASES: Final = _cases()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def digest(rows: Rows, columns: list[str]) -> str:
    """The digest of these columns of rows."""
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps([_plain(row[name]) for name in columns], sort_keys=True).encode())
    return found.hexdigest()


@pytest.mark.parametrize("case", CASES)
def test_rows_have_the_recorded_digest(case: str) -> None:
    recorded = json.loads(RECORDED.read_text())[case]
    rows = CASES[case]()
    assert len(rows) == recorded["rows"]
    assert digest(rows, recorded["columns"]) == recorded["sha256"]


def test_every_case_is_recorded() -> None:
    assert set(json.loads(RECORDED.read_text())) == set(CASES)


def test_a_digest_changes_with_a_value_and_not_with_a_new_column() -> None:
    rows = [{"faults": 7, "rate": 0.5}]
    same = digest([{"rate": 0.5, "faults": 7, "added": 1}], ["faults", "rate"])
    assert digest(rows, ["faults", "rate"]) == same
    assert digest([{"faults": 8, "rate": 0.5}], ["faults", "rate"]) != same


def record() -> None:
    found = {}
    for case, run in CASES.items():
        rows = run()
        columns = [name for name in rows[0] if name not in _TEXTS]
        found[case] = {"rows": len(rows), "columns": columns, "sha256": digest(rows, columns)}
        print(case, len(rows), file=sys.stderr)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    record()
