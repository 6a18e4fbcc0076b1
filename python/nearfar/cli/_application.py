"""The application that Typer runs, from the command files of this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
import typer.core

from nearfar.cli._help import Command
from nearfar.cli._shared import add_shared_options
from nearfar.cli._version import print_version

if TYPE_CHECKING:
    from typer import _click as click


def build() -> typer.Typer:
    """See :func:`nearfar.cli.build`."""
    app = typer.Typer(
        name="nearfar",
        cls=_Program,
        add_completion=True,
        # Plain text: Rich is slow to load, and its markup removes text in brackets.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Which pages belong near, which far, and how big should they be?",
    )
    app.callback(epilog="Example: nearfar paging app.trace --machine optane-ssd")(_root)
    return app


#: The groups of commands in `nearfar --help`, in order; each command file names its own.
GROUPS: Final = {
    "Record": "write a trace",
    "Ask": "which page size, memory size, device, tiering policy or placement",
    "Run": "run a real program with a page size or with memory tiers",
    "Compare": "runs with each other and with the papers",
    "Tools": "machines, formats, set-up",
}


class _Commands(Mapping[str, "click.Command"]):
    """Every command by name; its file is imported on first use."""

    def __init__(self) -> None:
        files = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
        # `import_.py` is the command `import`.
        self._files = {file.rstrip("_"): file for file in files if not file.startswith("_")}
        self._built: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._built:
            self._built[name] = _command(name, self._files[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def group(self, name: str) -> str:
        """The group in which `nearfar --help` lists the command."""
        module = importlib.import_module(f"{__package__}.{self._files[name]}")
        return str(module.GROUP)


class _Program(typer.core.TyperGroup):
    """``nearfar`` itself; it imports only the command that runs."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "commands": _Commands()})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names; Typer's own method would import each command."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = cast(_Commands, self.commands)
        for group, what in GROUPS.items():
            names = [name for name in commands if commands.group(name) == group]
            with formatter.section(f"{group} ({what})"):
                # 6: the margins, as in Click's own method.
                limit = formatter.width - 6 - max(map(len, commands))
                formatter.write_dl([(n, commands[n].get_short_help_str(limit)) for n in names])


def _command(name: str, file: str) -> click.Command:
    module = importlib.import_module(f"{__package__}.{file}")
    holder = typer.Typer(rich_markup_mode=None)
    if hasattr(module, "APP"):  # a command with sub-commands
        for command in module.APP.registered_commands:
            words = f"{name} {command.name or command.callback.__name__}"
            command.callback = add_shared_options(words, command.callback)
            command.short_help = _summary(command.callback)
            command.cls = Command
        module.APP.rich_markup_mode = None
        holder.add_typer(module.APP, name=name, short_help=module.APP.info.help)
    else:
        # Without a short help, Click truncates the whole help.
        run = add_shared_options(name, module.run)
        settings = getattr(module, "SETTINGS", {})
        holder.command(name=name, cls=Command, short_help=_summary(run), **settings)(run)
    return typer.main.get_group(holder).commands[name]


def _summary(command: Callable[..., object]) -> str:
    """The first paragraph of a command's help."""
    return " ".join((inspect.getdoc(command) or "").partition("\n\n")[0].split())


def _version(requested: bool) -> None:
    if requested:
        raise typer.Exit(print_version())


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which pages belong near, which far, and how big should they be?"""
