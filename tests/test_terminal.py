"""Output on 80 columns: text is not cut, numbers not split, omitted columns named; progress."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer
from rich.console import Group
from rich.text import Text

from conftest import DATA, Run
from nearfar import cli, units
from nearfar.cli._progress import SECONDS, _Line, as_count, records, records_of_run
from nearfar.report import tables
from nearfar.report.fitted import DETAIL, KEY, Prose, Table

WIDTH = 80

#: Command lines to run in :func:`folder`.
PRINTED = """
advise app.trace --machine optane-ssd
advise app.trace --machine all --sizes 4 --evaluate
advise app.trace --machine zen4-vm --view machine
devices app.trace
diff app.run other.run --metric tlb_misses
diff app.run other.run --full
doctor
explain app.run --page 64K --memory 50%
export app.trace --format csv -o out.csv
fit --csv measured.csv
generate zipf -o zipf.trace --refs 1000 --pages 50 --force
info app.trace --verify
machine list
machine show optane-ssd
numa alloc --size 80G,3000G
numa import
numa pair 48G 48G
numa plan --capacity 500G --threads 24
numa run 40G
paging app.trace --machine optane-ssd
paging app.trace --machine optane-ssd --full
paging app.trace --machine zen4-vm --view machine
report app.run -o page.html --force
reproduce numa
size app.trace --swap zram
ssd app.trace --dram 1M,2M
sweep study.toml -o study.sweep
thp app.trace
tiering app.trace
tiering --list
workload list
workload show redis
""".strip().splitlines()

#: Commands that are not run here, and why.
NOT_RUN = {
    "apply": "what it prints depends on the kernel; tests/test_apply.py",
    "run": "what it prints depends on the program and the clock; tests/test_run.py",
    "capture": "a summary on standard error; tests/test_capture.py",
    "guest": "the streams of a command; tests/test_guest.py",
    "import": "as generate",
    "watch": "what it prints depends on the process; tests/test_watch.py",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from nearfar.paging import paging

    made = tmp_path_factory.mktemp("terminal")
    shutil.copytree(DATA / "captures" / "memcached.trace", made / "app.trace")
    (made / "measured.csv").write_text("page_bytes,tlb_miss_rate\n1K,0.05\n4K,0.02\n16K,0.009\n")
    (made / "study.toml").write_text(
        'study = "paging"\n[grid]\nreplacement = ["clock", "lru"]\n[options]\n'
        'trace = "app.trace"\nmachine = "optane-ssd"\nmemory = "50%"\n'
    )
    for name, tlb in (("app", "64"), ("other", "32")):
        found = paging(made / "app.trace", machine="optane-ssd", tlb=tlb, memory="10%,50%,90%")
        found.write(made / f"{name}.run")
    return made


def commands() -> set[str]:
    root = typer.main.get_command(cli.build())
    return set(root.commands)  # type: ignore[attr-defined]


def test_every_command_is_run_or_excused() -> None:
    assert {line.split()[0] for line in PRINTED} | set(NOT_RUN) == commands()


@pytest.mark.parametrize("line", PRINTED)
def test_output_is_not_cut(
    line: str, folder: Path, nearfar: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.chdir(folder)
    done = nearfar(*shlex.split(line))
    assert done.returncode in (0, 1), done.stderr
    lines = done.stdout.splitlines()
    assert lines
    for one in lines:
        assert len(one) <= WIDTH, one
        # Rich ends cut text with an ellipsis, which becomes `~` where output goes to a file.
        assert "…" not in one and not re.search(r"\w~(\s|$)", one), one


@pytest.mark.parametrize("name", ["", *sorted(commands())])
def test_help_is_not_cut(name: str, nearfar: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    printed = nearfar(*name.split(), "--help").stdout
    assert all(len(one) <= WIDTH for one in printed.splitlines())
    assert not re.search(r"\w\.\.\.$", printed, re.M), printed


# --- the tables themselves


def _table() -> Table:
    table = Table("Title")
    table.add_column("name", overflow="fold", importance=KEY)
    table.add_column("count", justify="right")
    table.add_column("more", justify="right", importance=DETAIL)
    table.add_column("share", justify="right")
    table.add_row("a name of several words", "110 485 321", "1 234 567", "12.3 %")
    return table


def _printed(width: int) -> list[str]:
    return tables.text(_table(), width, elsewhere="elsewhere").splitlines()


def test_narrow_tables_omit_columns_by_importance_then_from_the_right() -> None:
    heads = {width: _printed(width)[2].split() for width in (80, 50, 42, 24)}
    assert heads == {
        80: ["name", "count", "more", "share"],
        50: ["name", "count", "share"],
        42: ["name", "count"],
        24: ["name"],
    }
    assert _printed(80)[-1] != "columns left out at this width: more; elsewhere"
    assert _printed(50)[-1] == "columns left out at this width: more;" or (
        " ".join(_printed(50)).endswith("columns left out at this width: more; elsewhere")
    )
    # Lines break between words only.
    assert {"a", "name", "of", "several", "words"} <= set(" ".join(_printed(24)).split())


def test_narrow_tables_shorten_paths_to_file_names() -> None:
    names = ["page cache: /usr/lib/x86_64-linux-gnu/libc.so.6", "(anonymous) 0x4002a21000"]
    table = tables.listing("title", ["time", "share", "region"],
                           [["1.5 ns", "10 %", name] for name in names], paths=True)  # fmt: skip
    lines = tables.text(table, 44, "elsewhere").splitlines()
    assert [line.split("%")[1].strip() for line in lines if "%" in line] == [
        "page cache: libc.so.6",
        names[1],
    ]
    wide = tables.text(table, 120, "elsewhere")
    assert all(name in wide for name in names)


@pytest.mark.parametrize("width", range(20, 60))
def test_numbers_stay_on_one_line(width: int) -> None:
    sentence = "Of 110 485 321 references 12.3 % miss, 4 KiB at 1.5 us each, 412 MiB in all."
    shown = tables.text(Group(Text(sentence), _table()), width, elsewhere="elsewhere")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    for whole in ("110 485 321", "12.3 %", "4 KiB", "1.5 us", "412 MiB"):
        assert any(whole in line for line in lines), whole
    assert " ".join(" ".join(lines).split()).startswith(sentence)


def test_prose_keeps_the_styles_of_a_text() -> None:
    text = Text.assemble(("bold", "bold"), " and 1 234 not")
    assert Prose.of(text).spans == text.spans and Prose.of(text).plain == text.plain


# --- progress


def test_progress_has_a_total_and_an_estimate() -> None:
    shown = _Line("paging x", 40_000_000)
    began = shown.began
    assert shown.line(0, began) == "paging x: 0 of 40 M references, 0 %"
    half = "paging x: 20 of 40 M references, 50 %, about 10 s left"
    assert shown.line(20_000_000, began + 10) == half
    assert shown.line(40_000_000, began + 20) == "paging x: 40 of 40 M references, 100 %"
    # A count beyond the total begins the next pass, and so does a smaller count.
    assert shown.line(50_000_000, began + 25) == "paging x: 10 of 40 M references, pass 2, 25 %"
    assert shown.line(60_000_000, began + 30).endswith("pass 2, 50 %, about 5 s left")
    assert shown.line(1_000_000, began + 31).endswith("1 of 40 M references, pass 3, 2 %")
    assert _Line("tiering", None).line(7_000_000, 0) == "tiering: 7 M references"
    timed = _Line("watch x", 60, SECONDS)
    assert timed.line(15, timed.began + 15) == "watch x: 15 of 60 s, 25 %, about 45 s left"


def test_waiting_times_are_rounded_to_one_unit() -> None:
    shown = [units.wait(seconds) for seconds in (0.2, 40, 119, 120, 7199, 7200, 200_000)]
    assert shown == ["1 s", "40 s", "119 s", "2 min", "120 min", "2 h", "2 days"]


def test_a_study_knows_its_records_in_advance(folder: Path, tmp_path: Path) -> None:
    whole = json.loads((folder / "app.trace" / "trace.json").read_text())["records"]
    assert records(folder / "app.trace", {}) == whole == records(folder / "app.trace")
    assert records(folder / "app.trace", {"filter": "none"}, 4) == 4 * whole
    assert records(folder / "app.trace", {"kinds": "load"}) is None
    assert records(tmp_path / "absent.trace") is None and records("40G") is None
    assert records_of_run(folder / "absent.run") is None


def test_commands_report_progress(nearfar: Run) -> None:
    for words in (["info"], ["paging", "--machine", "optane-ssd"]):
        command, *more = words
        trace = DATA / "captures" / "gnugo.trace"
        done = nearfar(command, trace, *more, "--progress", "always")
        assert re.search(r": \d+ of 1 M references(, pass \d)?, \d+ %", done.stderr), done.stderr


def test_only_integers_are_totals_of_progress() -> None:
    assert [as_count(count) for count in (1000, "1000", "10s", "1e6", None)] == [
        1000, 1000, None, None, None,
    ]  # fmt: skip
