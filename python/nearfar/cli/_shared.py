"""What commands have without saying so: ``--color``, ``--progress``, names to complete; and
``--set`` where there is a machine.

A command's own parameter of the same name wins. Names are offered by the parameter's name
(:data:`NAMES`), so a new command that takes ``--machine`` completes machines from the start.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import ArgumentInfo, ParameterInfo

from nearfar.errors import NearfarError
from nearfar.schema import Option, options_of, written


class When(StrEnum):
    """Choices of ``--color`` and ``--progress``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


#: Options that every command has, by parameter.
SHARED = {
    "color": Annotated[
        When, typer.Option(help="Colours; auto: on a terminal, unless NO_COLOR is set.")
    ],
    "progress": Annotated[
        When, typer.Option(help="Progress on standard error; auto: on a terminal.")
    ],
}

#: Parameters of what a command makes.
_OUTPUTS = ("out", "output", "html")

#: Of every command with a ``machine``: values in place of its file's.
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value of the machine file for this run."
    ),
]

Names = Callable[[], Iterable[tuple[str, str]]]


def add_shared_options(command: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function of a command the shared options, and its parameters names to complete.

    Args:
        command: as it is typed after ``nearfar``, such as ``numa alloc``.
        run: the function whose signature Typer turns into options.

    Returns:
        A function to register in its place.
    """
    # An application of commands is built more than once.
    if getattr(run, "has_shared_options", False):
        return run
    signature = inspect.signature(run)
    hints = typing.get_type_hints(run, include_extras=True)
    declared = {option.name: option for option in options_of(run)}
    own = [
        _of_option(declared[name], parameter)
        if name in declared
        else _completed(command, parameter.replace(annotation=hints[name]))
        for name, parameter in signature.parameters.items()
    ]
    # Help lists arguments first, then what the study is asked, then where the answer goes.
    own.sort(key=lambda one: 0 if _is_argument(one) else 1 if one.name in declared else 2)
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    added = [name for name in SHARED if name not in signature.parameters]
    # A command that takes more than one machine has `set_` of its own.
    sets = "machine" in signature.parameters and "set_" not in signature.parameters

    @functools.wraps(run)
    def wrapped(*args: Any, **given: Any) -> Any:
        from nearfar.output import add_inputs, choose

        for name in added:
            choose(name, given.pop(name).value)
        add_inputs(_read(given))
        try:
            values = given.pop("set_") if sets else None
            if values:
                from nearfar import machine

                # One for all, where there are several.
                chosen = machine.listed(given["machine"]) or [machine.usual()]
                loaded = [machine.load(one, set=machine.parse_set(values)) for one in chosen]
                given["machine"] = loaded if len(loaded) > 1 else loaded[0]
            return run(*args, **given)
        except KeyboardInterrupt:  # Typer would end without a word
            raise NearfarError("interrupted", 130) from None

    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=When.AUTO, annotation=SHARED[name]
        )
        for name in added
    ]
    if sets:
        more.append(
            inspect.Parameter("set_", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SET)
        )
    whole = signature.replace(parameters=[*own, *more])
    wrapped.__signature__ = whole  # type: ignore[attr-defined]
    wrapped.has_shared_options = True  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in whole.parameters.values()}
    return wrapped


def _read(given: Mapping[str, Any]) -> Iterable[str | Path]:
    """What a command was given that it may read: paths, and words that name a file or a trace."""
    for name, value in given.items():
        if name in _OUTPUTS:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            # A word such as a policy's name may be that of a folder by chance.
            named = (
                isinstance(one, str) and one and (_is_file(one) or _is_file(f"{one}/trace.json"))
            )
            if isinstance(one, Path) or named:
                yield one


def _is_file(path: str) -> bool:
    """Whether a regular file is there; False for a word that can name none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _completed(command: str, parameter: inspect.Parameter) -> inspect.Parameter:
    names = NAMES.get(f"{command} {parameter.name}", NAMES.get(parameter.name))
    for info in getattr(parameter.annotation, "__metadata__", ()):
        if names is not None and isinstance(info, ParameterInfo) and info.autocompletion is None:
            info.autocompletion = _listed(names)
    return parameter


def _of_option(option: Option, parameter: inspect.Parameter) -> inspect.Parameter:
    """A declared option as Typer takes it; the engine reads the text."""
    annotation: Any
    default: Any
    names = (lambda: option.choices) if option.choices else NAMES.get(option.name, lambda: ())
    described: Any = {
        "help": option.help,
        "metavar": option.metavar,
        "autocompletion": _listed(names),
    }
    if option.argument:
        annotation, default = Annotated[str, typer.Argument(**described)], None
    elif option.is_flag:
        flags = option.flag if not option.default else f"{option.flag}/--no-{option.flag[2:]}"
        annotation = Annotated[bool, typer.Option(flags, help=option.help)]
        default = option.default
    else:
        info = typer.Option(option.flag, **described)
        annotation = Annotated[str if option.required else str | None, info]
        default = None if option.default is None else written(option.default)
    # A command that can do without it, such as `apply --restore`, gives it a default.
    if option.required and parameter.default is parameter.empty:
        default = inspect.Parameter.empty
    return parameter.replace(default=default, annotation=annotation)


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(info, ArgumentInfo) for info in metadata)


def _listed(names: Names) -> Callable[[str], list[tuple[str, str]]]:
    """Complete the last item of a comma-separated list, leaving out what stands in it already."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        before, comma, last = incomplete.rpartition(",")
        try:
            offered = list(names())
        except Exception:  # noqa: BLE001  a shell has no place for an error
            return []
        taken = before.split(",")
        return [
            (before + comma + name, what)
            for name, what in offered
            if name.startswith(last) and name not in taken
        ]

    # Typer looks at them once an option, and would compile their text each time.
    complete.__annotations__ = {"incomplete": str}
    return complete


def _words(*words: str) -> Names:
    return lambda: [(word, "") for word in words]


def _machines() -> Iterable[tuple[str, str]]:
    from nearfar import machine

    return [(name, machine.load(name).description) for name in machine.names()]


def _storages() -> Iterable[tuple[str, str]]:
    from nearfar import machine

    found = {device: name for name in machine.names() for device in machine.load(name).storages}
    return [(device, f"of {name}") for device, name in found.items()]


def _workloads() -> Iterable[tuple[str, str]]:
    from nearfar import workload

    return [(name, workload.load(name).description) for name in workload.names()]


def _tiering_workloads() -> Iterable[tuple[str, str]]:
    import nearfar.tiering as study

    return study.workloads().items()


def _emitters() -> Iterable[tuple[str, str]]:
    from nearfar import emit

    return [(name, emit.emitter(name).SUMMARY) for name in emit.names()]


def _runs() -> Iterable[tuple[str, str]]:
    from nearfar import live_watch

    found = live_watch.runs().items()
    return [("auto", "the only one"), *((str(pid), command) for pid, command in found)]


def _studies() -> Iterable[tuple[str, str]]:
    import nearfar.reproduce as study

    return [(name, "") for name in study.names()]


#: Names by ``COMMAND PARAMETER``, or by ``PARAMETER`` alone for every command.
NAMES: Mapping[str, Names] = {
    "emit": _emitters,
    "guest arch": _words("auto", "x86_64", "aarch64"),
    "machine": _machines,
    "machine target": _machines,
    "numa import output_format": _words("table", "json", "toml"),
    "output_format": _words("table", "json", "csv", "parquet"),
    "reproduce study": _studies,
    "run watch": _runs,
    "storage": _storages,
    "workload": _tiering_workloads,
    "workload targets": _workloads,
}
