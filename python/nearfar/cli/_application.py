"""The application that Typer runs, from the command files of this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from nearfar.cli._shared import add_shared_options
from nearfar.cli._version import say_version


def build() -> typer.Typer:
    """See :func:`nearfar.cli.build`."""
    app = typer.Typer(
        name="nearfar",
        cls=_Program,
        no_args_is_help=True,
        add_completion=True,
        # Plain text: markup would swallow what stands in brackets, and Rich takes a while to load.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Which pages belong near, which far, and how big should they be?",
    )
    app.callback(epilog="Example: nearfar paging app.trace --machine optane-ssd")(_root)
    return app


class _Commands(Mapping[str, Any]):
    """Every command by its name; its file is imported when it is first looked up."""

    def __init__(self) -> None:
        """Find the files."""
        found = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
        self._files = {file.rstrip("_"): file for file in found if not file.startswith("_")}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The command of this name as Typer makes it."""
        if name not in self._built:
            self._built[name] = _command(name, self._files[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        """Their names, without importing anything."""
        return iter(self._files)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._files)


class _Program(typer.core.TyperGroup):
    """``nearfar`` itself: each command starts quickly, as no other is imported."""

    def __init__(self, **given: Any) -> None:
        """Take the commands from their files."""
        super().__init__(**{**given, "commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names; Typer's own would look at each."""
        return list(self.commands)


def _command(name: str, file: str) -> Any:
    """The command of a file of this package."""
    module = importlib.import_module(f"{__package__}.{file}")
    holder = typer.Typer(rich_markup_mode=None)
    if hasattr(module, "APP"):  # a command with commands of its own
        for own in module.APP.registered_commands:
            own.callback = add_shared_options(
                f"{name} {own.name or own.callback.__name__}", own.callback
            )
            own.short_help = _summary(own.callback)
        module.APP.rich_markup_mode = None
        holder.add_typer(module.APP, name=name, short_help=module.APP.info.help)
    else:
        # Click cuts what it makes of the whole help to the width of a terminal.
        command = add_shared_options(name, module.run)
        settings = getattr(module, "SETTINGS", {})
        holder.command(name=name, short_help=_summary(command), **settings)(command)
    return typer.main.get_group(holder).commands[name]


def _summary(command: Callable[..., Any]) -> str:
    """The first paragraph of a command's help."""
    return " ".join((inspect.getdoc(command) or "").partition("\n\n")[0].split())


def _version(asked: bool) -> None:
    if asked:
        raise typer.Exit(say_version())


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Which pages belong near, which far, and how big should they be?"""
