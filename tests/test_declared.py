"""The engine's declared options and columns, and source, signatures, help and docs from them."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import declared as maker
import pytest

import nearfar
from conftest import DATA, Run
from nearfar import numa
from nearfar import paging as study
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.numa.plan import plan
from nearfar.run_folder import open_run
from nearfar.schema import Option, command_line
from nearfar.tiering import tiering

ROOT = Path(__file__).resolve().parents[1]

SCHEMA = maker.schema()


@pytest.mark.parametrize(
    "path, text", list(maker.files(SCHEMA)), ids=lambda value: str(value)[-40:]
)
def test_generated_files_are_current(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run `make declared`"


def test_every_command_has_its_options_and_columns_in_the_docs() -> None:
    pages = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    for command, one in SCHEMA["commands"].items():
        if one["options"]:
            assert f"<!-- declared: options {command} -->" in pages
        for table in one["tables"]:
            name = f"columns {command}" + ("" if table == "rows" else f" {table}")
            assert f"<!-- declared: {name} -->" in pages


def test_every_mark_in_the_docs_has_its_table() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        made = maker.with_tables(text, SCHEMA)
        assert "<!-- declared" not in made
        assert made.count("\n|---") >= text.count("\n|---") + text.count("<!-- declared")


def test_every_registry_has_its_names_in_the_docs() -> None:
    pages = "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    for name in SCHEMA["registries"]:
        what = "policies" if name == "policy" else f"names {name}"
        assert f"<!-- declared: {what} -->" in pages


def test_rows_have_the_declared_columns_and_types() -> None:
    found = nearfar.paging(DATA / "captures" / "gnugo.trace", page_sizes="4K", memory="50%")
    assert list(found.rows[0]) == [column.name for column in declared.ROWS.columns]
    assert found.table.schema == declared.ROWS.arrow()


def test_a_column_head_is_the_title_or_the_name_without_its_unit() -> None:
    assert declared.ROWS.heads("page_bytes", "fault_rate") == ["page", "fault rate"]
    assert declared.ROWS.head("dirty_evictions") == declared.ROWS.column("dirty_evictions").title
    assert declared.ROWS.column("fault_rate").axis == "fault rate per reference"
    assert declared.ROWS.column("frames").axis == "frames, pages"


@pytest.mark.parametrize("page, arguments", [
    ("alloc", ["--size", "80G"]),
    ("run", ["40G", "--mode", "alius"]),
    ("plan", ["--capacity", "80G"]),
])  # fmt: skip
def test_printed_tables_have_declared_heads(page: str, arguments: list[str], nearfar: Run) -> None:
    rows = numa.NumaResult.columns[page]
    shown = {column.head for column in rows.columns}
    lines = nearfar("numa", page, *arguments).stdout.splitlines()
    head = lines[next(at for at, line in enumerate(lines) if set(line.strip()) == {"-"}) - 1]
    texts = re.split(r"  +", head.strip())
    assert len(texts) > 4 and set(texts) <= shown


def test_a_functions_signature_and_docstring_have_its_options() -> None:
    shown = inspect.signature(study.paging).parameters
    assert shown["page_sizes"].default == "512,1K,...,2M"
    assert shown["storage"].default is None
    text = study.paging.__doc__ or ""
    assert "page_sizes: Page sizes" in text and "{options}" not in text
    assert all(len(line) < 100 for line in text.splitlines())


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(NearfarError, match="--page-size: there is no such option; .*--page-sizes"):
        nearfar.paging(DATA / "captures" / "gnugo.trace", page_size="4K")  # type: ignore[call-arg]


def test_help_and_completion_do_not_load_the_engine() -> None:
    code = (
        "import sys, typer\n"
        "from nearfar.cli import build\n"
        "root = typer.main.get_command(build())\n"
        "for name in root.commands: root.commands[name]\n"
        "assert 'nearfar._engine' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", SCHEMA["commands"])
def test_help_has_every_option(nearfar: Run, command: str) -> None:
    words = "workload capture" if command == "workload" else command
    shown = nearfar(*words.split(), "--help").stdout
    for option in SCHEMA["commands"][command]["options"]:
        flag = Option(option["name"], "str", "").flag
        assert f" {option['metavar'] if option['argument'] else flag} " in shown


def test_help_lists_the_names_of_a_registry(nearfar: Run) -> None:
    help_text = " ".join(nearfar("paging", "--help").stdout.split())
    names = ", ".join(name for name, _ in SCHEMA["registries"]["replacement"])
    assert f"Page replacement policy. One of: {names}." in help_text


def test_a_command_line_repeats_options_that_are_not_defaults() -> None:
    options = [
        Option("sizes", "str", "sizes", default="1,2", metavar="SIZES"),
        Option("fast", "bool", "fast", default=False),
        Option("slow", "bool", "slow", default=True),
        Option("part", "float | None", "part", metavar="NUMBER"),
        Option("name", "str", "name", required=True, metavar="NAME", argument=True),
    ]
    given = {"sizes": [1, 2], "fast": True, "slow": False, "part": 0.1, "name": "x"}
    assert command_line("do it", ["a b"], options, given) == (
        "nearfar do it 'a b' --fast --no-slow --part 0.1 x"
    )


def _ssd() -> Any:
    from nearfar.ssd import ssd

    trace = DATA / "captures" / "gnugo.trace"
    return ssd(
        trace,
        dram=["1M", 2 << 20],
        epf=["none", "smart:30us"],
        precondition=(0.6, 0.25),
        overwrite="drawn",
        sleep_granularity=1000,
        atomic="load+store",
        first_touch="stored",
        l2p="device",
        disk="hdd",
        file_data="clean",
        bus="held",
        seed=7,
    )


@pytest.mark.parametrize(
    "ask",
    [
        _ssd,
        lambda: study.paging(
            DATA / "captures" / "gnugo.trace",
            page_sizes=[4096, 8192],
            memory="30%,1M",
            kinds=["load", "store"],
            machine="optane-ssd",
            write_back=True,
        ),
        lambda: numa.alloc(["1G", 60 << 30], mode=["kmem-dax"], allocator="user", nodes=[0, 4]),
        lambda: numa.run("40G", mode="alius,memory-mode", writes=0.25, shuffle=True, seed=3),
        lambda: numa.pair("4G", "4G", overlap=[0.0, 1.0], cache="8G", from_=1),
        lambda: plan("500G", working_set="10G", threads=24, pattern="sequential"),
        lambda: tiering(
            workload="nomad-small",
            policy="tpp,nomad",
            knobs={"tpp.arm_demoted": False, "tpp.scan_delay": "500ms"},
            mix="split",
            seeds=2,
            seed=7,
            scale="1/512",
            rounds=1,
            fast="30%",
            points=4,
        ),
        lambda: tiering(
            DATA / "captures" / "gnugo.trace",
            policy=["tpp", "none"],
            filter="none",
            fast="40%",
            rounds=2,
            cost_scale=2.0,
        ),
    ],
    ids=[
        "ssd",
        "paging",
        "numa alloc",
        "numa run",
        "numa pair",
        "numa plan",
        "tiering",
        "tiering of a trace",
    ],
)
def test_a_result_is_repeated_by_its_command_and_read_from_its_folder(
    ask: Callable[[], Any], nearfar: Run, tmp_path: Path
) -> None:
    import shlex

    first = ask()
    again = nearfar(*shlex.split(first.run["command"])[1:], "--format", "json")
    assert json.loads(again.stdout)["rows"] == first.rows
    read = open_run(first.write(tmp_path / "kept"))
    assert read.result.run == first.run
    assert read.result.rows == first.rows
    assert read.result.table.equals(first.table)
