"""Opening traces: pyarrow, Polars and the engine read the same; damage is one clear line."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nearfar as package
from conftest import refused
from nearfar import exporter, importer
from nearfar import info as info_module
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.machine import load

CAPTURE = Path(__file__).parent / "data" / "captures" / "gzip.trace"
COLUMNS = ["addr", "kind", "size", "thread", "instr"]


def engine_csv(trace: Path, to: Path) -> str:
    """The records as the engine's own reader gives them."""
    exporter.export_trace(trace, to / "engine.csv", format="csv", force=True)
    return (to / "engine.csv").read_text()


def engine_records(trace: Path, to: Path) -> list[tuple[int, str, int, int, int]]:
    """The same records, in the form of :func:`tuples`."""
    return [
        (int(r["addr"], 0), r["kind"], int(r["size"]), int(r["thread"]), int(r["instr"]))
        for r in csv.DictReader(engine_csv(trace, to).splitlines())
    ]


def tuples(table: pa.Table) -> list[tuple[int, str, int, int, int]]:
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


def decoded(trace: Path) -> list[pa.ChunkedArray]:
    """The columns as Python reads them; kinds as text, as order in a dictionary may differ."""
    table = package.open(trace).table()
    table = table.set_column(1, "kind", table["kind"].cast(pa.string()))
    return [table[name] for name in COLUMNS]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Every kind, three threads, odd sizes, both ends of memory: 3,000 records."""
    kinds = [name for name, _ in names.KIND]
    lines = ["addr,kind,size,thread,instr"]
    for i in range(3000):
        addr = (2**64 - 1 - i) if i % 97 == 0 else i * 7919 % 2_000_003
        size = 1 + i * 31 % 300
        lines.append(f"{addr},{kinds[i % len(kinds)]},{size},{i % 3},{i % 11}")
    source = tmp_path / "small.csv"
    source.write_text("\n".join(lines) + "\n")
    return importer.import_trace(source, tmp_path / "small.trace", format="csv")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The bundled capture, to be damaged."""
    return Path(shutil.copytree(CAPTURE, tmp_path / "copy.trace"))


@pytest.mark.parametrize("which", ["small", "capture"])
def test_all_readers_see_the_same_records(which: str, small: Path, tmp_path: Path):
    path = small if which == "small" else CAPTURE
    trace = package.open(path)
    expected = engine_records(path, tmp_path)
    assert len(trace) == len(expected) == trace.info["records"]
    assert tuples(trace.table()) == expected
    assert trace.polars().collect().select(COLUMNS).rows() == expected
    streamed = list(trace.batches(["addr", "size"]))
    assert [a for b in streamed for a in b["addr"].to_pylist()] == [r[0] for r in expected]
    assert streamed[0].schema.names == ["addr", "size"]


def test_types_are_those_of_the_docs():
    schema = package.open(CAPTURE).arrow().schema
    kind = pa.dictionary(pa.int32(), pa.string())
    wanted = [pa.uint64(), kind, pa.uint16(), pa.uint32(), pa.uint32()]
    assert (schema.names, schema.types) == (COLUMNS, wanted)


def test_a_trace_describes_itself():
    trace = package.open(str(CAPTURE))
    assert "541,547 records, 1 thread, 184 pages" in repr(trace)
    page = trace._repr_html_()
    assert page.startswith("<table>") and "541 547" in page.replace("\u202f", " ")
    assert trace.parts == [CAPTURE / "part-00000.parquet"]
    events = trace.regions
    assert events.column_names[0] == "at" and "[heap]" in events["name"].to_pylist()
    assert trace.footprint_bytes == 184 * 4096


def test_html_of_a_hostile_name_is_text(small: Path):
    path = small.parent / "<img src=x onerror=alert(1)>.trace"
    small.rename(path)
    assert "<img" not in package.open(path)._repr_html_()


def test_an_empty_trace_can_be_read(tmp_path: Path, small: Path):
    info = json.loads((small / "trace.json").read_text())
    info |= {"records": 0, "instructions": 0, "records_by_kind": {}, "pages_by_kinds": {}}
    info |= {"parts": [], "threads": []}
    (small / "trace.json").write_text(json.dumps(info))
    trace = package.open(small)
    assert len(trace) == trace.table().num_rows == 0
    assert trace.table().schema.names == COLUMNS == trace.polars().collect().columns
    assert list(trace.batches()) == []
    assert trace.polars().collect_schema()["kind"] == polars.String


LAYOUTS = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {
            "addr": "DELTA_BINARY_PACKED",
            "size": "DELTA_BINARY_PACKED",
            "thread": "DELTA_BINARY_PACKED",
            "instr": "DELTA_BINARY_PACKED",
            "kind": "DELTA_LENGTH_BYTE_ARRAY",
        },
        "compression": "zstd",
    },
    "small-pages": {"data_page_size": 512, "write_batch_size": 64, "compression": "zstd"},
    "row-groups": {"row_group_size": 700, "compression": "none"},
    "pages-v2": {"data_page_version": "2.0", "data_page_size": 4096, "compression": "zstd"},
    "defaults": {},
    "default-row-groups": {"row_group_size": 700},
    "no-dictionary": {"use_dictionary": False},
    "few-in-dictionary": {"dictionary_pagesize_limit": 1000, "write_batch_size": 100},
    "checksums": {"write_page_checksum": True},
    "gzip": {"compression": "gzip"},
    "lz4": {"compression": "lz4"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_rewritten_by_pyarrow_reads_the_same(layout: str, small: Path, tmp_path: Path):
    before = engine_records(small, tmp_path)
    part = small / "part-00000.parquet"
    table = pq.read_table(part)
    assert not any(field.nullable for field in table.schema)
    pq.write_table(table, part, **LAYOUTS[layout])
    assert engine_records(small, tmp_path) == before
    assert tuples(package.open(small).table()) == before


def by_duckdb(path: Path) -> None:
    new = path.with_name("new")
    with duckdb.connect() as connection:
        connection.execute(f"COPY (FROM '{path}') TO '{new}' (FORMAT parquet)").fetchall()
    new.replace(path)


def by_polars(path: Path) -> None:
    polars.read_parquet(path).write_parquet(path)


def by_polars_stream(path: Path) -> None:
    new = path.with_name("new")
    polars.scan_parquet(path).sink_parquet(new)
    new.replace(path)


def by_pandas(path: Path) -> None:
    pandas.read_parquet(path).to_parquet(path)


@pytest.mark.parametrize("tool", [by_duckdb, by_polars, by_polars_stream, by_pandas])
def test_a_trace_rewritten_by_another_tool_reads_the_same(
    tool: Callable[[Path], None], tmp_path: Path, copy: Path
):
    """With each tool's default compression, row groups and nullable columns."""
    before, columns = engine_csv(copy, tmp_path), decoded(copy)
    expected = info_module.info(copy)
    for name in ("part-00000.parquet", "regions.parquet"):
        tool(copy / name)
    assert engine_csv(copy, tmp_path) == before
    assert decoded(copy) == columns
    found = info_module.info(copy)
    assert found == expected
    with pytest.raises(NearfarError, match="part-00000.parquet: has .* in trace.json"):
        info_module.info(copy, verify=True)


def test_a_null_is_refused(small: Path):
    part = small / "part-00000.parquet"
    table = pq.read_table(part)
    sizes = pa.array([None, *table["size"].to_pylist()[1:]], pa.uint16())
    pq.write_table(table.set_column(2, "size", sizes), part)
    with pytest.raises(NearfarError, match="column `size`: truncated or damaged: .*null"):
        info_module.info(small)


def test_a_record_size_above_16_bits_is_refused(small: Path):
    part = small / "part-00000.parquet"
    table = pq.read_table(part)
    sizes = pa.array([70_000, *table["size"].to_pylist()[1:]], pa.uint32())
    for use_dictionary in (False, True):
        wide = table.set_column(2, "size", sizes)
        pq.write_table(wide, part, use_dictionary=use_dictionary)
        with pytest.raises(NearfarError, match="column `size`: .* a size of 70000 bytes"):
            info_module.info(small)


def test_pages_have_checksums_that_other_tools_check():
    with view(CAPTURE, "cache", load("desktop-nvm")) as written:
        # Schema 1, like the bundled capture, whose events name addresses but no lifetimes.
        assert package.open(written.path).info["schema"] == 1
        for name in ("part-00000.parquet", "regions.parquet"):
            path = written.path / name
            whole = path.read_bytes()
            table = pq.read_table(path, page_checksum_verification=True)
            assert table.num_rows > 0 and pq.read_table(path) == table
            # Bytes of the first page, after the magic number and the page's header.
            for place in range(60, 64):
                flipped = bytearray(whole)
                flipped[place] ^= 1
                path.write_bytes(flipped)
                with pytest.raises(OSError, match="CRC"):
                    pq.read_table(path, page_checksum_verification=True)


def test_a_flipped_bit_is_found_by_every_way_to_read(small: Path):
    part = small / "part-00000.parquet"
    flipped = bytearray(part.read_bytes())
    flipped[300] ^= 0x10
    part.write_bytes(flipped)
    trace = package.open(small)
    for read in (trace.table, lambda: list(trace.batches()), lambda: info_module.info(small)):
        with pytest.raises(NearfarError, match="truncated or damaged: .*(CRC|checksum)"):
            read()


def cut(folder: Path) -> None:
    part = folder / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1000])


def change(folder: Path, **values: object) -> None:
    path = folder / "trace.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def other_count(folder: Path) -> None:
    info = json.loads((folder / "trace.json").read_text())
    for counted in (info["parts"][0], info["threads"][0]):
        counted["records"] += 1
    info["records_by_kind"]["load"] += 1
    info["records"] += 1
    change(folder, **info)


DAMAGE = {
    "truncated part": (cut, "part-00000.parquet: truncated or damaged"),
    "part of zero bytes": (
        lambda f: (f / "part-00000.parquet").write_bytes(b""),
        "part-00000.parquet: truncated or damaged",
    ),
    "wrong magic": (
        lambda f: (f / "part-00000.parquet").write_bytes(b"GIF89a" * 1000),
        "part-00000.parquet: truncated or damaged",
    ),
    "missing part": (
        lambda f: (f / "part-00000.parquet").unlink(),
        "part-00000.parquet: listed in trace.json but missing",
    ),
    "not JSON": (
        lambda f: (f / "trace.json").write_text('{"schema": 1,'),
        "trace.json: damaged",
    ),
    "wrong JSON": (lambda f: (f / "trace.json").write_text("[1]"), "trace.json: damaged"),
    "key missing": (lambda f: (f / "trace.json").write_text('{"schema": 1}'), "missing field"),
    "newer schema": (
        lambda f: change(f, schema=3),
        "trace.json: trace schema 3 is not 1 to 2, which this nearfar reads",
    ),
    "records differ": (
        lambda f: change(f, records=5),
        "trace.json: `parts` has 541547 records in total, but `records` is 5",
    ),
    "part listed twice": (
        lambda f: change(f, parts=json.loads((f / "trace.json").read_text())["parts"] * 2),
        "trace.json: `parts` has 1083094 records in total, but `records` is 541547",
    ),
    "part differs": (other_count, "has 541547 records, but 541548 in trace.json"),
    "no trace.json": (lambda f: (f / "trace.json").unlink(), "not a trace: it has no trace.json"),
    "no folder": (lambda f: shutil.rmtree(f), "no such trace"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_clear_line(name: str, copy: Path, nearfar):
    damage, message = DAMAGE[name]
    damage(copy)
    with pytest.raises(NearfarError) as caught:
        package.open(copy)
    text = str(caught.value)
    assert message in text and "\n" not in text and caught.value.exit_code == 2
    refused(nearfar("info", copy), f"error: {text}\n")


def test_damage_within_a_part_is_found_when_it_is_read(copy: Path, nearfar):
    part = copy / "part-00000.parquet"
    data = bytearray(part.read_bytes())
    data[100:90_000] = bytes(89_900)
    part.write_bytes(data)
    trace = package.open(copy)
    with pytest.raises(NearfarError, match="truncated or damaged"):
        trace.table()
    with pytest.raises(NearfarError, match="truncated or damaged"):
        list(trace.batches())
    refused(nearfar("info", copy))


def test_keys_that_may_be_left_out_are_not_needed(copy: Path, nearfar):
    info = json.loads((copy / "trace.json").read_text())
    del info["incomplete_reason"], info["source"]["sampled"], info["source"]["skipped_records"]
    (copy / "trace.json").write_text(json.dumps(info))
    done = nearfar("paging", copy, "--page-sizes", "4K", "--memory", "50%")
    assert done.returncode == 0 and done.stderr == ""


def test_a_file_is_no_trace(tmp_path: Path):
    path = tmp_path / "a.trace"
    path.write_text("x")
    with pytest.raises(NearfarError, match="is a file, not a trace folder"):
        package.open(path)


def test_an_unknown_column_is_named():
    with pytest.raises(NearfarError, match="no column 'pc'; choose from addr, kind"):
        package.open(CAPTURE).table(["addr", "pc"])


def test_without_polars_the_error_says_how_to_install_it():
    code = (
        "import sys; sys.modules['polars'] = None\n"
        "import nearfar\n"
        "try:\n    nearfar.open(sys.argv[1]).polars()\n"
        "except nearfar.NearfarError as e:\n    print(e.exit_code, e)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, CAPTURE], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("3 polars: is not installed; install it with `pip install")


def test_the_snippets_of_the_docs_run(monkeypatch: pytest.MonkeyPatch, capsys):
    """Python in separate namespaces, SQL in DuckDB."""
    page = (Path(__file__).parents[1] / "docs" / "trace.md").read_text()

    def snippets(language: str) -> list[str]:
        return [part.split("```")[0] for part in page.split(f"```{language}\n")[1:]]

    assert len(snippets("python")) >= 3
    monkeypatch.chdir(CAPTURE.parent)
    for snippet in snippets("python"):
        exec(compile(snippet, "docs/trace.md", "exec"), {})
    assert "[stack]" in capsys.readouterr().out
    (query,) = snippets("sql")
    counted = {kind: records for kind, records, _ in duckdb.execute(query).fetchall()}
    by_kind = package.open("gzip.trace").info["records_by_kind"]
    assert counted == {kind: records for kind, records in by_kind.items() if records}
