"""Run the documentation's commands and Python snippets, and check links and tables of options.

A ```console block of README.md or docs/*.md holds commands (lines that begin with `$ `, continued
by lines that begin with `> `) and the output that follows each. Commands must end with exit code 0
unless the next command is `echo $?`. Output is standard output and error together; a line of only
`...` stands for any lines, `...` inside a line for any text; every other shown line must be there,
in order. A word after `console` names a need of the block (a key of NEEDS); if that is missing, the
block is skipped, or fails where `CI` is set. ```pycon blocks are doctests. Other blocks (```sh) are
not run.

Each page runs in a folder of its own that holds the bundled captures and small inputs.
"""

from __future__ import annotations

import doctest
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import declared
import pytest

import forks
from conftest import DATA, HANG, Run, no_guest

ROOT = Path(__file__).resolve().parents[1]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
#: What a console block may need, and whether this machine has it.
NEEDS = {
    "qemu": lambda: all(found.available for found in _probe()),
    "guest": lambda: no_guest("x86_64") is None,
    "run": lambda: _live_refused() is None,
    "kubectl": lambda: shutil.which("kubectl") is not None,
    "systemd-analyze": lambda: shutil.which("systemd-analyze") is not None,
    "virt-xml": lambda: all(map(shutil.which, ("virt-xml", "virt-xml-validate"))),
}


@dataclass(frozen=True)
class Block:
    """A fenced block: first line of its content (from 1), words after the fence, text."""

    line: int
    words: list[str]
    text: str


def _probe() -> list:
    from nearfar.capture import probe

    return [f for f in probe() if "x86_64" in f.name or "plugin" in f.name]


def _live_refused() -> str | None:
    from nearfar.live import refused

    return refused()


def blocks(page: Path) -> list[Block]:
    found, opened = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.fullmatch(r"(`{3,})(.*)", line)
        if opened is None and fence:
            opened = (fence[1], fence[2].split(), number + 1, [])
        elif opened is not None and fence and fence[1] == opened[0] and not fence[2]:
            found.append(Block(opened[2], opened[1], "\n".join(opened[3]) + "\n"))
            opened = None
        elif opened is not None:
            opened[3].append(line)
    assert opened is None, f"{page}: the block of line {opened[2]} is not closed"
    return found


@dataclass(frozen=True)
class Command:
    """A command of a console block, its line in the page, and the output shown under it."""

    line: int
    text: str
    shown: list[str]


def commands(block: Block) -> Iterator[Command]:
    current: Command | None = None
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            if current:
                yield current
            current = Command(number, line[2:], [])
        elif current and not current.shown and (line.startswith("> ") or line == ">"):
            current = Command(current.line, f"{current.text}\n{line[2:]}", [])
        else:
            assert current, f"line {number}: a console block begins with a command"
            current.shown.append(line.rstrip())
    assert current, f"line {block.line}: an empty console block"
    yield current


def missing_line(shown: list[str], printed: str) -> str | None:
    """The first shown line that was not printed where it should be; None if all were."""
    lines = [line.rstrip() for line in printed.splitlines()]
    place, after_ellipsis = 0, False
    for want in shown:
        if want == "...":
            after_ellipsis = True
            continue
        pattern = ".*".join(re.escape(part) for part in want.split("..."))
        candidates = (
            range(place, len(lines)) if after_ellipsis else range(place, min(place + 1, len(lines)))
        )
        at = next((i for i in candidates if re.fullmatch(pattern, lines[i])), None)
        if at is None:
            return want
        place, after_ellipsis = at + 1, False
    return None if after_ellipsis or place == len(lines) else f"(then: {lines[place]})"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Bundled captures and inputs under the names that the documentation uses."""
    work = tmp_path / "work"
    work.mkdir()
    for trace in (DATA / "captures").glob("*.trace"):
        shutil.copytree(trace, work / trace.name)
    shutil.copy(DATA / "small.lackey", work)
    return work


@pytest.fixture
def environment(tmp_path: Path, commands: str) -> dict[str, str]:
    """Variables whose PATH has the `nearfar` and `python` under test; 100 columns."""
    tools = tmp_path / "bin"
    tools.mkdir()
    python = f'exec "{sys.executable}" "$@"'
    own = f'exec "{sys.executable}" -IS "{forks.__file__}" "{commands}" "$@"'
    for name, does in (("nearfar", own), ("python", python), ("python3", python)):
        tool = tools / name
        tool.write_text(f"#!/bin/sh\n{does}\n")
        tool.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "FORCE_COLOR")}
    path = f"{tools}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


def console_cases() -> list:
    guest = pytest.mark.long("guests under TCG")
    return [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=[guest] if any("guest" in block.words for block in blocks(page)) else [],
        )
        for page in PAGES
        if any(block.words[:1] == ["console"] for block in blocks(page))
    ]


@pytest.mark.parametrize("page", console_cases())
def test_commands_print_what_is_shown(
    page: Path, folder: Path, environment: dict[str, str]
) -> None:
    """A block may use files that earlier blocks of its page made."""
    skipped = []
    for block in blocks(page):
        if block.words[:1] != ["console"]:
            continue
        lacking = [word for word in block.words[1:] if not _is_there(word)]
        if lacking:
            skipped.append(f"line {block.line} needs {', '.join(lacking)}")
            continue
        status, expected = 0, True
        listed = list(commands(block))
        for command, following in zip(listed, [*listed[1:], None], strict=True):
            where = f"{page.name} line {command.line}: $ {command.text}"
            done = subprocess.run(
                ["bash", "-c", f"(exit {status})\n{command.text}"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=HANG,
                check=False,
            )
            status = done.returncode
            expected = status == 0 or (following is not None and following.text == "echo $?")
            assert expected, f"{where}\nexit code {status}\n{done.stdout}"
            if command.shown:
                lacks = missing_line(command.shown, done.stdout)
                assert lacks is None, f"{where}\nnot printed: {lacks}\nprinted:\n{done.stdout}"
    if skipped:
        pytest.skip("; ".join(skipped))


@functools.cache
def _is_there(need: str) -> bool:
    assert need in NEEDS, f"no such need: {need}; known: {', '.join(NEEDS)}"
    there = NEEDS[need]()
    if not there and os.environ.get("CI"):
        pytest.fail(f"{need} is missing; see `nearfar doctor`")
    return there


def doctest_cases() -> list:
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(block.words[:1] == ["pycon"] for block in blocks(page))
    ]


@pytest.mark.parametrize("page", doctest_cases())
def test_python_prints_what_is_shown(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    text = "\n".join(block.text for block in blocks(page) if block.words[:1] == ["pycon"])
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    outcome = runner.run(examples, out=report.append)
    assert outcome.attempted > 0
    assert outcome.failed == 0, "".join(report)


def test_blocks_that_are_not_run_have_no_shell_prompts() -> None:
    """A `$ ` suggests that the command and its output are tested."""
    for page in PAGES:
        for block in blocks(page):
            if block.words[:1] != ["console"]:
                prompt = re.search(r"^\$ ", block.text, re.MULTILINE)
                assert not prompt, f"{page.name} line {block.line}: mark this block `console`"


# --- links


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks and inline code."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(<?([^)>\s]+)>?\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: no {target}"
        assert there.is_relative_to(ROOT), f"{page.name}: {target} leaves the repository"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name}: no heading #{anchor} in {path}"


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "README.md":
            assert f"]({page.name})" in index, f"docs/README.md does not list {page.name}"


# --- commands


def command_pages() -> dict[str, str]:
    """The page of each command, by the table in README.md; a page may hold several commands."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return dict(
        re.findall(r"^\| \[`([a-z]+)`\]\((docs/[a-z]+\.md)(?:#[a-z-]+)?\) \|", readme, re.M)
    )


def test_every_command_is_in_the_table_and_has_a_page(nearfar: Run) -> None:
    import pkgutil

    from nearfar import cli

    found = pkgutil.iter_modules(cli.__path__)
    names = {module.name.rstrip("_") for module in found if not module.name.startswith("_")}
    printed = nearfar("--help").stdout
    assert nearfar().stdout == printed and nearfar().returncode == 0
    pages = command_pages()
    assert set(pages) == names, "the table of commands in README.md"
    for name in names:
        assert re.search(rf"\b{name}\b", printed)
        text = (ROOT / pages[name]).read_text(encoding="utf-8")
        assert f"nearfar {name}" in text, f"{pages[name]} does not show `nearfar {name}`"


@pytest.mark.parametrize(
    "command",
    ["advise", "apply", "capture", "diff", "explain", "export", "fit", "generate", "guest"]
    + ["import", "info", "paging", "report", "reproduce", "sweep"],
)
def test_every_option_is_in_the_page_of_its_command(command: str) -> None:
    """Any of its names counts; docs/shell.md has the options that all commands share."""
    import typer

    from nearfar.cli import build
    from nearfar.cli._shared import SHARED

    app = typer.main.get_command(build())
    options = [parameter for parameter in app.commands[command].params if "-" in parameter.opts[0]]
    assert options
    schema = declared.schema()
    pages = {
        page: declared.with_tables((ROOT / page).read_text(encoding="utf-8"), schema)
        for page in (command_pages()[command], "docs/shell.md")
    }
    own, shared = pages
    for parameter in options:
        page = shared if parameter.name in {*SHARED, "set_"} else own
        names = parameter.opts + parameter.secondary_opts
        found = any(re.search(rf"(?<![\w-]){name}(?![\w-])", pages[page]) for name in names)
        assert found, f"{page} does not explain {' '.join(names)}"


# --- licences, and paths of a machine


def test_of_crates_only_the_qemu_plugin_is_under_the_gpl() -> None:
    import tomllib

    plugin = ROOT / "capture" / "qemu-plugin"
    for source in (plugin / "src").glob("*.rs"):
        first = source.read_text(encoding="utf-8").splitlines()[0]
        assert first == "// SPDX-License-Identifier: GPL-2.0-or-later", source.name
    manifests = [*ROOT.glob("*/*/Cargo.toml"), *ROOT.glob("*/Cargo.toml"), ROOT / "Cargo.toml"]
    assert plugin / "Cargo.toml" in manifests
    for manifest in manifests:
        content = tomllib.loads(manifest.read_text(encoding="utf-8"))
        package = content.get("package") or content["workspace"]["package"]
        wanted = "GPL-2.0-or-later" if manifest.parent == plugin else "Apache-2.0 OR MIT"
        assert package["license"] in (wanted, {"workspace": True}), manifest
        assert manifest.parent != plugin or package["license"] == wanted


def test_pages_have_no_paths_of_the_author_s_machine() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = re.search(r"(?<![\w.])/(home|root|work|Users)/|localhost:\d", text)
        assert not found, f"{page.name}: {found[0]}"


# --- the checks themselves


@pytest.mark.parametrize(
    ("shown", "printed", "lacks"),
    [
        (["a", "b"], "a\nb\n", None),
        (["a", "...", "d"], "a\nb\nc\nd\n", None),
        (["a", "..."], "a\nb\n", None),
        (["x ... z"], "x y z\n", None),
        (["a"], "a\nb\n", "(then: b)"),
        (["b"], "a\nb\n", "b"),
        (["...", "b", "a"], "a\nb\n", "a"),
        (["1.5"], "1x5\n", "1.5"),
    ],
)
def test_missing_line_honours_ellipses(shown: list[str], printed: str, lacks: str | None) -> None:
    assert missing_line(shown, printed) == lacks
