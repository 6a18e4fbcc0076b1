"""Behaviour of all commands: help, flags, colours, pipes, completion, manual pages."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import forks
from conftest import DATA, HANG, Run, refused
from nearfar import cli, output
from nearfar.cli import _help, _reference, _shared
from nearfar.declared import names

ROOT = Path(__file__).resolve().parents[1]


def leaves() -> Iterator[tuple[str, Any]]:
    """Commands without subcommands, by their words after ``nearfar``."""

    def walk(words: list[str], command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(words), command
        for name, one in (inner or {}).items():
            yield from walk([*words, name], one)

    yield from walk([], typer.main.get_command(cli.build()))


LEAVES = dict(leaves())
ALL = pytest.mark.parametrize("words", LEAVES)


def options(words: str) -> dict[str, Any]:
    """The options of a command by parameter name."""
    return {p.name: p for p in LEAVES[words].params if p.opts[0].startswith("-")}


def choices(option: Any) -> list[str]:
    """Values of an option: its enumeration, else the words of its help."""
    known = getattr(option.type, "choices", None)
    return re.findall(r"[a-z]+", option.help) if known is None else list(known)


# --- help


@ALL
def test_help_ends_with_an_example_that_parses(words: str) -> None:
    context = typer.Context(LEAVES[words], info_name=f"nearfar {words}")
    printed = LEAVES[words].get_help(context)
    example = re.search(r"\n\s*Example: nearfar (.*)\Z", printed, re.S)
    assert example, f"nearfar {words}: no epilog with an example in SETTINGS"
    parts = shlex.split(" ".join(example[1].split()))
    assert parts[: len(words.split())] == words.split()
    # Typer's own parser: unknown options, missing arguments and bad choices raise.
    LEAVES[words].make_context(words, parts[len(words.split()) :])


@ALL
def test_help_says_what_every_option_is(words: str) -> None:
    assert LEAVES[words].help
    for parameter in LEAVES[words].params:
        assert parameter.help, f"nearfar {words}: {parameter.name}"


@ALL
def test_help_shows_at_most_ten_options_first(words: str) -> None:
    context = typer.Context(
        LEAVES[words], info_name=words, help_option_names=["-h", "--help"], terminal_width=80
    )
    printed = LEAVES[words].get_help(context)
    sections: dict[str, list[str]] = {}
    for line in printed.partition("Example:")[0].splitlines():
        if title := re.fullmatch(r"(\w[\w ]*):", line):
            listed = sections[title[1]] = []
        elif flag := re.match(r"  (--?\w\S*)", line):
            listed.append(flag[1])
    first = sections["Options"]
    assert first[-1] in ("-h,", "--help") and len(first) <= 10
    assert sum(map(len, sections.values())) == len(options(words)) + 1


def test_sections_of_help_name_options_that_exist() -> None:
    for words, first in _help._FIRST.items():
        assert set(first.split()) <= set(options(words)), words


@pytest.mark.parametrize(("words", "name"), [
    ("advise", "emit"), ("numa plan", "emit"), ("reproduce", "study"),
])  # fmt: skip
def test_help_lists_the_names_to_choose_from(words: str, name: str) -> None:
    (parameter,) = (each for each in LEAVES[words].params if each.name == name)
    known = [known for known, _ in _shared.NAMES[f"{words} {name}"]()]
    assert parameter.help.endswith(f": {', '.join(known)}.")


@pytest.mark.parametrize("flag", ["-p", "--pid", "--watch"])
def test_run_with_a_process_id_names_watch(flag: str, nearfar: Run) -> None:
    done = nearfar("run", flag, "12")
    assert done.returncode == 2
    assert done.stderr == (
        f"nearfar: error: {flag}: no such option; run starts a program; to see a running "
        "`nearfar run`, use `nearfar watch PID`\n"
    )


@ALL
def test_an_unknown_short_option_gets_no_suggestion(words: str, nearfar: Run) -> None:
    done = nearfar(*words.split(), "-p", "12")
    assert done.returncode == 2 and "-p: no such option" in done.stderr
    assert "did you mean" not in done.stderr


@pytest.mark.parametrize(
    "words", ["paging --help", "numa alloc --help", "--version", "nearfar pag", "nearfar numa al"]
)
def test_only_the_named_command_is_imported(words: str) -> None:
    """Words that begin with ``nearfar`` are given to completion."""
    typed = words.split()
    completion = {}
    if typed[0] == "nearfar":
        completion = {"_NEARFAR_COMPLETE": "complete_bash", "COMP_WORDS": words}
        completion["COMP_CWORD"] = str(len(typed) - 1)
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        f"sys.argv[1:] = {[] if completion else typed!r}\n"
        "from nearfar.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **completion}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    loaded = {name.removeprefix("nearfar.cli.") for name in done.stderr.split()}
    others = {words.split()[0] for words in LEAVES} - {"numa" if "numa" in typed else "paging"}
    assert done.stdout and not loaded & others


def test_an_unknown_command_gets_the_nearest(nearfar: Run) -> None:
    refused(nearfar("pagin"), "'paging'")


@ALL
def test_an_unknown_option_gets_the_nearest(words: str, nearfar: Run) -> None:
    """Options after ``--`` are those of a program."""
    done = nearfar(*words.split(), "--colour", "never", "--", "true", "--colour")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "nearfar: error: --colour: no such option; did you mean --color? "
        f"(`nearfar {words} --help` lists them)\n"
    )


def test_capture_says_that_it_cannot_attach(nearfar: Run, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\ntouch "$0.started"\n')
    program.chmod(0o755)
    for words in (["--foo", str(program)], ["--foo", "--", str(program)], ["--pid", "1"]):
        done = nearfar("capture", *words)
        refused(done, f"{words[0]}: no such option")
        assert not list(tmp_path.glob("*.started"))
    assert "does not attach to a running one" in done.stderr
    printed = " ".join(nearfar("capture", "--help").stdout.split())
    assert "cannot attach to one that runs already (there is no --pid)" in printed


def test_help_keeps_text_in_brackets(nearfar: Run) -> None:
    printed = " ".join(nearfar("numa", "pair", "--help").stdout.split())
    assert "in front of the node's memory. [default: the machine's]" in printed


#: Examples that are not run here, by their first words, and why.
NOT_RUN = {
    "apply": "changes the machine",
    "capture": "needs QEMU; tests/test_capture.py",
    "doctor": "what it requires may be missing",
    "guest": "needs QEMU and Debian's packages; tests/test_guest.py",
    "machine measure": "changes the default machine; tests/test_measure.py",
    "reproduce": "tests/test_reproduce.py",
    "run": "needs userfaultfd; tests/test_run.py",
    "watch": "needs a run; tests/test_run_watch.py",
    "workload": "needs the programs; tests/test_workload.py",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(DATA / "captures" / "memcached.trace", folder / "app.trace")
    (folder / "measured.csv").write_text(
        "page_bytes,tlb_miss_rate,fault_rate\n4K,.02,.001\n16K,.01,.0004\n64K,.004,.0003\n"
    )
    (folder / "runs").mkdir()
    (folder / "runs" / "app.din.gz").write_bytes(
        subprocess.run(
            ["gzip", "-c"], input=b"0 1000\n1 2000\n2 400\n", stdout=-1, check=True
        ).stdout
    )
    from nearfar.paging import paging

    found = paging(folder / "app.trace", machine="optane-ssd")
    for name in ("app.run", "before.run", "after.run"):
        found.write(folder / name)
    return folder


@ALL
def test_examples_run(words: str, inputs: Path, tmp_path: Path, commands: str) -> None:
    example = shlex.split(LEAVES[words].epilog.removeprefix("Example: nearfar "))
    for key in (words, words.split()[0]):
        if key in NOT_RUN:
            pytest.skip(NOT_RUN[key])
    given = [word for word in example if re.search(r"\.(trace|run|csv|toml|gz)$", word)]
    made = [b for a, b in zip(example, example[1:], strict=False) if a in ("-o", "--out", "--html")]
    absent = [word for word in given if word not in made and not (inputs / word).exists()]
    if absent:
        pytest.skip(f"no {absent[0]} among the inputs of these tests")
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    if Path(made[0] if made else "").suffix == ".trace":
        shutil.rmtree(tmp_path / made[0], ignore_errors=True)
    code, said = into_closed_pipe(commands, example, tmp_path)
    assert code == 0, said
    assert "Traceback" not in said
    for name in made:
        assert (tmp_path / name).exists(), f"{name} is not there"


def into_closed_pipe(server: str, words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard output is a broken pipe."""
    read, write = os.pipe()
    os.close(read)
    with (
        open(os.devnull) as nothing,  # noqa: PTH123
        open(write, "w") as closed,  # noqa: PTH123
        tempfile.TemporaryFile("w+") as err,
        contextlib.chdir(folder),
    ):
        streams = (nothing.fileno(), closed.fileno(), err.fileno())
        code = forks.run(server, words, streams, os.environ)
        err.seek(0)
        return code, err.read()


# --- flags

#: Commands that differ from a rule, and why. Rules: ``--format`` exists, with the default ``table``
#: ("format"); it offers table, json, csv and parquet ("formats"); ``--threads 0`` uses all cores.
DEVIATIONS = {
    "format": {
        "capture": "the program's streams are passed through; a summary on standard error",
        "export": "--format names the trace's format; --json prints the outcome",
        "generate": "makes a trace; --json prints its trace.json",
        "guest": "the command's streams are passed through",
        "import": "--format names the trace's format; --json prints its trace.json",
        "machine measure": "writes a machine file",
        "machine schema": "prints JSON",
        "run": "the program's streams are passed through; a summary on standard error",
    },
    "formats": {
        "doctor": "a list of sentences: table, json",
        "machine check": "one line: table, json",
        "machine list": "a nested description: table, json",
        "machine show": "a nested description: table, json, toml",
        "numa import": "a machine: table, json, toml",
        "report": "which pages were written: table, json",
        "workload capture": "which traces were written: table, json",
        "workload list": "a nested description: table, json",
        "workload show": "a nested description: table, json",
    },
    "threads": {
        "generate": "threads of the trace, not of the work",
        "numa alloc": "cores of the machine that is modelled",
        "numa plan": "cores of the machine that is modelled",
        "numa run": "cores of the machine that is modelled",
    },
}


@ALL
def test_every_command_has_the_shared_options(words: str) -> None:
    has = options(words)
    for name in _shared.SHARED:
        assert has[name].opts == [f"--{name}"]
        assert choices(has[name]) == list(output.WHEN)


@ALL
def test_commands_that_write_have_out_and_force(words: str) -> None:
    has = options(words)
    written = [p for p in has.values() if "-o" in p.opts or "--out" in p.opts]
    for parameter in written:
        assert set(parameter.opts) == {"-o", "--out"}
    assert bool(written or "html" in has) == ("force" in has)
    assert "force" not in has or has["force"].opts == ["--force"]


@ALL
def test_commands_that_print_rows_have_formats(words: str) -> None:
    found = [p for p in options(words).values() if p.opts == ["--format"]]
    if words in DEVIATIONS["format"]:
        assert not any(p.default == "table" for p in found), "no deviation any more"
        return
    assert found and found[0].default == "table"
    every = set(choices(found[0])) >= {"table", "json", "csv", "parquet"}
    assert every != (words in DEVIATIONS["formats"]), choices(found[0])


@ALL
def test_threads_and_seeds_mean_the_same(words: str) -> None:
    has = options(words)
    if "threads" in has and words not in DEVIATIONS["threads"]:
        assert int(has["threads"].default) == 0
        assert "core" in has["threads"].help
    if "seed" in has:
        assert has["seed"].opts == ["--seed"]
        assert int(has["seed"].default) >= 0


# --- colours and progress

ESCAPE = "\x1b["


def on_terminal(at: str, words: list[str], env: dict[str, str], folder: Path) -> str:
    """What a command prints to a terminal of 100 columns, standard output and error together."""
    main, side = pty.openpty()
    whole = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **env}
    heard = []

    def hear() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while more := os.read(main, 65536):
                heard.append(more)

    listener = threading.Thread(target=hear)
    listener.start()
    try:
        with contextlib.chdir(folder):
            code = forks.run(at, words, (side, side, side), whole)
    finally:
        os.close(side)
        listener.join()
        os.close(main)
    text = b"".join(heard).decode()
    assert code == 0, text
    return text


@pytest.mark.parametrize(
    ("terminal", "env", "flag", "wanted"),
    [
        (False, {}, None, False),
        (False, {}, "always", True),
        (False, {"NO_COLOR": "1"}, "always", True),
        (True, {}, None, True),
        (True, {"NO_COLOR": "1"}, None, False),
        (True, {"NO_COLOR": ""}, None, True),
        (True, {}, "never", False),
    ],
)
@pytest.mark.parametrize("words", ["machine show optane-ssd", "paging app.trace"])
def test_colours_follow_terminal_environment_and_flag(
    words: str,
    terminal: bool,
    env: dict[str, str],
    flag: str | None,
    wanted: bool,
    inputs: Path,
    commands: str,
    nearfar: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [*words.split(), *(["--color", flag] if flag else [])]
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if terminal:
        text = on_terminal(commands, [*command, "--progress", "never"], env, inputs)
    else:
        monkeypatch.chdir(inputs)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        done = nearfar(*command)
        assert done.returncode == 0, done.stderr
        text = done.stdout
    assert (ESCAPE in text) == wanted, text[:400]


def test_progress_is_shown_at_a_terminal_or_if_asked_for(
    inputs: Path, nearfar: Run, commands: str
) -> None:
    study = ["paging", str(inputs / "app.trace"), "--page-sizes", "4K", "--memory", "90%"]
    assert nearfar(*study).stderr == ""
    assert "references" in nearfar(*study, "--progress", "always").stderr
    command = [*study, "--format", "csv"]
    # Not only "references", which is a column of the CSV.
    assert "M references" in on_terminal(commands, command, {}, inputs)
    quiet = on_terminal(commands, [*command, "--progress", "never"], {}, inputs)
    assert "M references" not in quiet


def test_color_and_progress_set_no_variables() -> None:
    """A captured program would inherit them."""
    before = dict(os.environ)
    output.choose("color", "never")
    output.choose("progress", "always")
    try:
        assert dict(os.environ) == before
        assert not output.coloured(sys.stdout)
        assert output.shows_progress()
    finally:
        output.choose("color", "auto")
        output.choose("progress", "auto")


def test_a_wrong_choice_is_one_line(nearfar: Run) -> None:
    refused(nearfar("doctor", "--color", "sometimes"))


# --- broken pipes


@pytest.mark.parametrize(
    "words",
    ["--help", "--version", "machine schema", "apply --page 64K -- true"]
    + [f"paging app.trace --page-sizes 4K --format {name}" for name in ("json", "csv", "parquet")]
    + [f"info app.trace --format {name}" for name in ("table", "json", "csv")]
    + [f"export app.trace --format {name} -o -" for name in ("csv", "dinero")],
)
def test_a_broken_pipe_is_no_error(words: str, inputs: Path, commands: str) -> None:
    code, said = into_closed_pipe(commands, words.split(), inputs)
    assert (code, "Traceback" in said) == (0, False), said


# --- completion

#: Typed words, words that must be offered, and words that must not.
Completion = tuple[str, list[str], list[str]]


def _split(registry: tuple[tuple[str, str], ...], typed: str) -> tuple[list[str], list[str]]:
    """The names that begin with ``typed``, and the others."""
    known = [name for name, _ in registry]
    found = [name for name in known if name.startswith(typed)]
    return found, [name for name in known if name not in found]


COMPLETIONS: list[Completion] = [
    ("nearfar pag", ["paging"], ["numa"]),
    ("nearfar numa al", ["alloc"], []),
    ("nearfar paging --machine opt", ["optane-4node", "optane-ssd"], ["laptop"]),
    ("nearfar machine show desktop-n", ["desktop-nvm"], ["desktop-hdd"]),
    ("nearfar tiering --policy nomad,s", ["nomad,ssp"], []),
    ("nearfar advise --emit sys", ["sysfs", "systemd"], ["qemu"]),
    ("nearfar paging --format p", ["parquet"], ["json"]),
    ("nearfar import --format dr", ["drmemtrace"], []),
    ("nearfar export --format or", ["oracle-general"], []),
    ("nearfar workload capture sql", ["sqlite"], ["redis"]),
    ("nearfar reproduce ti", ["tiering"], ["paging"]),
    ("nearfar generate scr", ["scrambled-zipf"], ["zipf"]),
    ("nearfar capture --arch x", ["x86_64"], ["x86-64"]),
    ("nearfar info --filter c", *_split(names.FILTER, "c")),
    ("nearfar numa alloc --mode al", ["alius"], []),
    ("nearfar paging --kinds load,kernel-l", ["load,kernel-load"], []),
    ("nearfar paging --color a", ["auto", "always"], ["never"]),
    ("nearfar ssd --epf sm", ["smart"], []),
    ("nearfar paging --replacement l", *_split(names.REPLACEMENT, "l")),
    ("nearfar paging --storage optane-p", ["optane-pmem"], []),
]


@pytest.fixture(scope="module")
def shell_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with a new HOME, and `nearfar` in PATH."""
    home = tmp_path_factory.mktemp("home")
    (home / "bin").mkdir()
    tool = home / "bin" / "nearfar"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nearfar "$@"\n')
    tool.chmod(0o755)
    return {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
    }


def in_bash(script: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", script], env=env, check=False, cwd=env["HOME"], capture_output=True,
        text=True, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_completion_installs_for_the_parent_shell(shell_env: dict[str, str]) -> None:
    """`; true` keeps bash as the parent process."""
    shown = in_bash("nearfar --show-completion; true", shell_env)
    assert "_NEARFAR_COMPLETE=complete_bash" in shown
    installed = in_bash("nearfar --install-completion; true", shell_env)
    assert "bash completion installed in" in installed
    path = Path(installed.split(" installed in ")[1].splitlines()[0])
    assert path.read_text(encoding="utf-8").strip() == shown.strip()


def test_bash_completes(shell_env: dict[str, str]) -> None:
    lines = ['eval "$(_NEARFAR_COMPLETE=source_bash nearfar)"']
    for typed, _, _ in COMPLETIONS:
        words = typed.split()
        lines.append(f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}")
        lines.append('_nearfar_completion nearfar; echo "${COMPREPLY[*]}"')
    answers = in_bash("\n".join(lines), shell_env).splitlines()
    check([answer.split() for answer in answers], COMPLETIONS)


def check(answers: list[list[str]], typed_lines: list[Completion]) -> None:
    for (typed, wanted, unwanted), words in zip(typed_lines, answers, strict=True):
        assert set(wanted) <= set(words), f"{typed}: {words}"
        assert not set(unwanted) & set(words), f"{typed}: {words}"


def test_lists_of_names_are_for_parameters_that_exist() -> None:
    known = {p.name for command in LEAVES.values() for p in command.params}
    for key in _shared.NAMES:
        words, _, name = key.rpartition(" ")
        assert name in known, key
        assert not words or name in {p.name for p in LEAVES[words].params}, key


@pytest.mark.parametrize("key", _shared.NAMES)
def test_every_list_of_names_has_names(key: str) -> None:
    offered = list(_shared.NAMES[key]())
    assert offered and all(name and "," not in name for name, _ in offered)


# --- manual pages


def test_manual_pages_are_clean(tmp_path: Path) -> None:
    written = _reference.write_man(tmp_path)
    names = {path.name for path in written}
    assert {f"nearfar-{words.replace(' ', '-')}.1" for words in LEAVES} < names
    assert "nearfar.1" in names
    if shutil.which("mandoc") is None and not os.environ.get("CI"):
        pytest.skip("mandoc is missing; apt-get install mandoc")
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", *written], capture_output=True, text=True
    )
    # A page says its version in place of a date: the same input gives the same bytes.
    found = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert found == []
    for path in written:
        rendered = subprocess.run(
            ["mandoc", "-T", "utf8", path], capture_output=True, text=True, check=True
        ).stdout
        plain = re.sub(".\x08", "", rendered)
        assert "SYNOPSIS" in plain and "EXIT STATUS" in plain


def test_manual_pages_say_what_help_says(tmp_path: Path) -> None:
    for found in _reference.commands():
        text = _reference.man(found, "1").replace("\\-", "-")
        for name, _ in [*found.options, *found.arguments, *found.commands]:
            assert f"\n.B {name}\n" in text.replace("\\&", ""), (found.words, name)
