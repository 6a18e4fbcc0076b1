"""The ``nearfar`` command: one file a command, found by its name.

A command file ``NAME.py`` (a trailing underscore is dropped) in this package defines ``run``, a
function whose signature Typer turns into options and whose docstring is the help text; one that has
commands of its own defines ``APP``, a Typer application, in place of it. Heavy
imports belong inside ``run``, so that ``nearfar --help`` stays quick.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Annotated

import typer

from nearfar.errors import NearfarError


def build() -> typer.Typer:
    """Assemble the application from the command files of this package."""
    app = typer.Typer(
        name="nearfar",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Which pages belong near, which far, and how big should they be?",
    )
    app.callback()(_root)
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if found.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{found.name}")
        if hasattr(module, "APP"):  # a command with commands of its own
            app.add_typer(module.APP, name=found.name)
            continue
        settings = getattr(module, "SETTINGS", {})
        app.command(name=found.name.rstrip("_"), **settings)(module.run)
    return app


def _version(asked: bool) -> None:
    if asked:
        from nearfar import __version__

        print(f"nearfar {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Which pages belong near, which far, and how big should they be?"""


def main() -> None:
    """Run the command line; no traceback reaches a user."""
    try:
        code = build()(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        sys.exit(130)
    except NearfarError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except typer._click.exceptions.ClickException as error:  # noqa: SLF001
        _fail(error.format_message(), 2)
    except OSError as error:
        where = error.filename or "system"
        _fail(f"{where}: {error.strerror or error}; check the path, permissions and free space", 2)


def _fail(message: str, code: int) -> None:
    print(f"nearfar: error: {message}", file=sys.stderr)
    sys.exit(code)
