"""The ``nearfar`` command: one file a command, found by its name.

A command file ``NAME.py`` (a trailing underscore is dropped) in this package defines ``run``, a
function whose signature Typer turns into options and whose docstring is the help text, and
``GROUP``, where ``nearfar --help`` lists it; one with sub-commands defines ``APP``, a Typer
application, in place of ``run``. Heavy imports belong inside ``run``, so that ``nearfar --help``
stays quick.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final

from nearfar.cli import _streams
from nearfar.cli._version import say_version
from nearfar.errors import NearfarError, no_memory, of_system

if TYPE_CHECKING:
    import typer

#: Exit codes of processes.
EXIT_CODES: Final = {
    0: "done",
    1: "the answer is not whole, or a stated threshold failed",
    2: "usage or bad input",
    3: "a needed tool or device is missing",
    130: "interrupted",
}


def build() -> typer.Typer:
    """The application: a command is imported when it is asked for, or listed with its summary."""
    from nearfar.cli import _application

    return _application.build()


def main() -> None:
    """Run the command line; no traceback reaches a user."""
    _streams.prepare()
    try:
        if len(sys.argv) == 1:
            sys.argv.append("--help")
        code = say_version() if sys.argv[1:] == ["--version"] else _run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong.
        code = 0
    except OSError as error:
        code = _fail(str(of_system(error)), 2)
    # All memory is about to be given back: no search for cycles first, which takes 30 ms.
    gc.freeze()
    sys.exit(code)


def _run() -> int:
    """Run the command line; its exit code."""
    import typer

    try:
        code = build()(standalone_mode=False, prog_name="nearfar")
        return code if isinstance(code, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:
        # Typer ends a broken pipe with 1, and what completion has printed with 0.
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
        # Python's own loops do not always say that memory was short.
        return _fail(f"Python: {error}; free some memory, or report this", 2)
    except UnicodeEncodeError as error:
        # Most paths may be any bytes; other words are text.
        word = error.object[:60]
        return _fail(f"{word}: character {error.start + 1} is not UTF-8; rename it", 2)


def _unknown(error: Any) -> str:
    """What to say of an option that a command does not have."""
    import difflib

    context = error.ctx
    known = [flag for param in context.command.params for flag in param.opts if flag[:2] == "--"]
    instead = (context.obj or {}).get(error.option_name)
    if instead is None:
        near = difflib.get_close_matches(error.option_name, known, 1)
        command = f"`{context.command_path} --help` lists"
        instead = f"did you mean {near[0]}? ({command} them)" if near else f"{command} all options"
    return f"{error.option_name}: no such option; {instead}"


def _fail(message: str, code: int) -> int:
    print(f"nearfar: error: {message}", file=sys.stderr)
    return code
