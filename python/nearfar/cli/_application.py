"""The application that Typer runs, from the command files of this package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from nearfar.cli._shared import add_shared_options
from nearfar.cli._version import say_version


def build(only: str | None = None) -> typer.Typer:
    """See :func:`nearfar.cli.build`."""
    app = typer.Typer(
        name="nearfar",
        no_args_is_help=True,
        add_completion=True,
        # Plain text: markup would swallow what stands in brackets, and Rich takes a while to load.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Which pages belong near, which far, and how big should they be?",
    )
    app.callback(epilog="Example: nearfar paging app.trace --machine optane-ssd")(_root)
    files = {
        found.name.rstrip("_"): found.name
        for found in sorted(
            pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda module: module.name
        )
        if not found.name.startswith("_")
    }
    if only in files:
        files = {only: files[only]}
    for name, file in files.items():
        module = importlib.import_module(f"{__package__}.{file}")
        if hasattr(module, "APP"):  # a command with commands of its own
            for own in module.APP.registered_commands:
                own.callback = add_shared_options(
                    f"{name} {own.name or own.callback.__name__}", own.callback
                )
                own.short_help = _summary(own.callback)
            module.APP.rich_markup_mode = None
            app.add_typer(module.APP, name=name, short_help=module.APP.info.help)
            continue
        settings = getattr(module, "SETTINGS", {})
        # Click cuts what it makes of the whole help to the width of a terminal.
        command = add_shared_options(name, module.run)
        app.command(name=name, short_help=_summary(command), **settings)(command)
    return app


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
