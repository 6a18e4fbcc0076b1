"""The ``nearfar`` command: one file per command.

A command file ``NAME.py`` in this package (``NAME_.py`` if NAME is a keyword) defines ``run``, a
function whose signature Typer turns into options and whose docstring is the help text, and
``GROUP``, the group in which ``nearfar --help`` lists it. A command with sub-commands defines
``APP``, a Typer application, instead of ``run``. Heavy imports belong inside ``run``, so that
``nearfar --help`` stays quick.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

from nearfar.cli import _streams
from nearfar.cli._version import print_version
from nearfar.errors import NearfarError, no_memory, of_system

if TYPE_CHECKING:
    import typer
    from typer import _click as click

EXIT_CODES: Final = {
    0: "success",
    1: "incomplete result, or a threshold was not met",
    2: "wrong usage or bad input",
    3: "a tool or device is missing",
    130: "interrupted",
}


def build() -> typer.Typer:
    """The application; it imports command files on demand."""
    from nearfar.cli import _application

    return _application.build()


def main() -> None:
    """Run the command line and exit."""
    _streams.prepare()
    try:
        if len(sys.argv) == 1:
            sys.argv.append("--help")
        code = print_version() if sys.argv[1:] == ["--version"] else _run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (`| head`): not an error.
        code = 0
    except OSError as error:
        code = _fail(str(of_system(error)), 2)
    # Skip garbage collection at exit, which takes 30 ms.
    gc.freeze()
    sys.exit(code)


def _run() -> int:
    import typer

    try:
        code = build()(standalone_mode=False, prog_name="nearfar")
        return code if isinstance(code, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        # Typer exits with 1 on a broken pipe, and with 0 after completion.
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        return stop.code if isinstance(stop.code, int) else 0
    except NearfarError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except typer._click.exceptions.NoSuchOption as error:  # noqa: SLF001
        return _fail(_unknown(error), 2)
    except typer._click.exceptions.ClickException as error:  # noqa: SLF001
        return _fail(error.format_message(), 2)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(str(of_system(error)), 2)
    except MemoryError:
        return _fail(str(no_memory()), 2)
    except SystemError as error:
        # Python may raise this instead of MemoryError.
        return _fail(f"Python: {error}; free some memory, or report this", 2)
    except UnicodeEncodeError as error:
        # Paths may be any bytes; most other arguments must be UTF-8.
        return _fail(f"{error.object[:60]}: character {error.start + 1} is not UTF-8; rename it", 2)


def _unknown(error: click.exceptions.NoSuchOption) -> str:
    """The message for an option that a command does not have."""
    import difflib

    context = error.ctx
    assert context is not None
    known = [flag for param in context.command.params for flag in param.opts if flag[:2] == "--"]
    # A command file may advise on options of similar tools (`obj` in its SETTINGS for Typer).
    instead = (context.obj or {}).get(error.option_name)
    if instead is None:
        near = difflib.get_close_matches(error.option_name, known, 1)
        command = f"`{context.command_path} --help` lists"
        instead = f"did you mean {near[0]}? ({command} them)" if near else f"{command} all options"
        takes_program = any("-- COMMAND" in (p.metavar or "") for p in context.command.params)
        if not near and takes_program:
            instead += "; put `--` before a program and its options"
    return f"{error.option_name}: no such option; {instead}"


def _fail(message: str, code: int) -> int:
    print(f"nearfar: error: {message}", file=sys.stderr)
    return code
