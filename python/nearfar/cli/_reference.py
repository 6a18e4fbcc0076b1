"""The command reference, as man pages or Markdown, from the declarations behind ``--help``.

``python -m nearfar.cli._reference man FOLDER`` writes ``nearfar.1`` and a page for each command,
``... markdown`` prints all commands as one page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nearfar.cli import EXIT_CODES, build

if TYPE_CHECKING:
    from typer import _click as click

Entries = list[tuple[str, str]]


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        words: as typed, such as ``nearfar numa alloc``.
        usage: the usage line after ``words``, such as ``[OPTIONS] {trace}``.
        summary: the first sentence of its help.
        more: the paragraphs after it.
        arguments, options, commands: name and meaning of each.
        example: a command line that works.
    """

    words: str
    usage: str
    summary: str
    more: list[str]
    arguments: Entries
    options: Entries
    commands: Entries
    example: str


def commands() -> Iterator[Command]:
    """Every command in the order of ``--help``, a group before its sub-commands."""
    yield from _walk(typer.main.get_command(build()), "nearfar", None)


def _walk(command: click.Command, name: str, parent: click.Context | None) -> Iterator[Command]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    entries: dict[str, Entries] = {"argument": [], "option": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            entries[parameter.param_type_name].append((record[0], " ".join(record[1].split())))
    inner = getattr(command, "commands", {})
    yield Command(
        words=context.command_path,
        usage=" ".join(command.collect_usage_pieces(context)),
        summary=paragraphs[0],
        more=paragraphs[1:],
        arguments=entries["argument"],
        options=entries["option"],
        commands=[(key, " ".join((one.help or "").split("\n\n")[0].split()))
                  for key, one in inner.items()],
        example=(command.epilog or "").removeprefix("Example: "),
    )  # fmt: skip
    for key, one in inner.items():
        yield from _walk(one, key, context)


def markdown(command: Command, level: int) -> str:
    """The command as a section of a Markdown page, its heading at ``level``."""
    parts = [f"{'#' * level} {command.words}", command.summary, *command.more]
    parts.append(f"```text\n{command.words} {command.usage}\n```")
    for entries in (command.arguments, command.options, command.commands):
        if entries:
            lines = [f"| `{name}` | {_cell(what)} |" for name, what in entries]
            parts.append("\n".join(["| | |", "|---|---|", *lines]))
    if command.example:
        parts.append(f"```sh\n{command.example}\n```")
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text)


def man(command: Command, version: str) -> str:
    """The command as a manual page of section 1, in the macros of man(7)."""
    name = command.words.replace(" ", "-")
    lines = [
        # The version takes the place of a date.
        f'.TH {name.upper()} 1 "" "nearfar {version}" "nearfar"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(command.summary)}",
        ".SH SYNOPSIS",
        f".B {_roff(command.words)}",
        _roff(command.usage),
        ".SH DESCRIPTION",
        _roff(command.summary),
    ]
    for paragraph in command.more:
        lines += [".PP", _roff(paragraph)]
    for title, entries in (
        ("ARGUMENTS", command.arguments),
        ("OPTIONS", command.options),
        ("COMMANDS", command.commands),
    ):
        if entries:
            lines.append(f".SH {title}")
        for key, what in entries:
            lines += [".TP", f".B {_roff(key)}", _roff(what)]
    lines += [".SH EXIT STATUS"]
    for code, what in EXIT_CODES.items():
        lines += [".TP", f".B {code}", _roff(what)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        ".B NO_COLOR",
        _roff("Not empty: no colours, unless --color always is given."),
    ]
    if command.example:
        lines += [".SH EXAMPLES", ".nf", _roff(command.example), ".fi"]
    others = [f"{name}-{key}" for key, _ in command.commands] or ["nearfar"]
    if command.commands and name != "nearfar":
        others.insert(0, "nearfar")
    lines.append(".SH SEE ALSO")
    lines += [f".BR {_roff(other)} (1)," for other in others[:-1]]
    lines.append(f".BR {_roff(others[-1])} (1)")
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti")
    escaped = escaped.replace("'", "\\(aq").replace("^", "\\(ha").replace("`", "\\(ga")
    return "\\&" + escaped if escaped.startswith((".", "\\(aq")) else escaped


def write_man(folder: Path) -> list[Path]:
    """Write a manual page for each command to ``folder``; return the paths."""
    from nearfar import __version__
    from nearfar.output import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for command in commands():
        path = folder / f"{command.words.replace(' ', '-')}.1"
        write_whole(path, man(command, __version__), force=True)
        written.append(path)
    return written


def write_markdown() -> str:
    """All commands as one Markdown page."""
    lead = (
        "# Commands\n\nWhat `--help` says, for every command; the pages of the commands say more. "
        "Exit codes: " + "; ".join(f"{code} {what}" for code, what in EXIT_CODES.items()) + ".\n"
    )
    sections = [markdown(command, 1 + len(command.words.split())) for command in commands()]
    return "\n".join([lead, *sections])


if __name__ == "__main__":
    if sys.argv[1:] == ["markdown"]:
        print(write_markdown(), end="")
    elif sys.argv[1:2] == ["man"] and len(sys.argv) == 3:
        for path in write_man(Path(sys.argv[2])):
            print(path)
    else:
        sys.exit("usage: python -m nearfar.cli._reference markdown | man FOLDER")
