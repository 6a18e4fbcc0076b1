"""Shared by all commands: ``--color``, ``--progress``, completion of names, sections of the help;
and ``--set`` for commands with a ``--machine``.

A command's own parameter of the same name wins. Completion offers the names that :data:`NAMES` has
for a parameter.
"""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from nearfar.cli import _help
from nearfar.errors import NearfarError
from nearfar.schema import Option, options_of, written

#: Choices of ``--color`` and ``--progress``.
When = Literal["auto", "always", "never"]

#: Options that every command has, by parameter.
SHARED = {
    "color": Annotated[
        When,
        typer.Option(
            metavar="WHEN",
            help="Colours: auto (on a terminal, unless NO_COLOR is set), always, never.",
        ),
    ],
    "progress": Annotated[
        When,
        typer.Option(
            metavar="WHEN",
            help="Progress on standard error: auto (on a terminal), always, never.",
        ),
    ],
}

#: Parameters that name outputs; other paths are inputs.
_OUTPUTS = ("out", "output", "html", "prometheus")

#: ``--set`` of commands with a ``machine``.
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value of the machine file for this run; repeatable.",
    ),
]

#: Yields names and their descriptions.
Names = Callable[[], Iterable[tuple[str, str]]]


def add_shared_options(command: str, run: Callable[..., object]) -> Callable[..., object]:
    """Add the shared options to a command's function, and completion and sections to all options.

    Args:
        command: as typed after ``nearfar``, such as ``numa alloc``.
        run: the command's function.

    Returns:
        A function to register in its place.
    """
    # The application may be built more than once.
    if getattr(run, "has_shared_options", False):
        return run
    signature = inspect.signature(run)
    hints = typing.get_type_hints(run, include_extras=True)
    declared = {option.name: option for option in options_of(run)}
    parameters = [
        _completed(
            command,
            _of_option(declared[name], parameter)
            if name in declared
            else parameter.replace(annotation=hints[name]),
            is_declared=name in declared,
        )
        for name, parameter in signature.parameters.items()
    ]
    # Help lists arguments first, then the study's options, then those of the command line.
    parameters.sort(key=lambda each: 0 if _is_argument(each) else 1 if each.name in declared else 2)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    added = [name for name in SHARED if name not in signature.parameters]
    # `advise` has its own `set_`, which it refuses for a fleet: a fleet's file names the machines.
    adds_set = "machine" in signature.parameters and "set_" not in signature.parameters

    @functools.wraps(run)
    def wrapped(*args: Any, **given: Any) -> object:
        from nearfar.output import add_inputs, choose

        for name in added:
            choose(name, given.pop(name))
        add_inputs(_inputs(given))
        try:
            values = given.pop("set_") if adds_set else None
            if values:
                from nearfar import machine

                chosen = machine.listed(given["machine"]) or [machine.usual()]
                loaded = [machine.load(each, set=machine.parse_set(values)) for each in chosen]
                given["machine"] = loaded if len(loaded) > 1 else loaded[0]
            return run(*args, **given)
        except KeyboardInterrupt:  # Typer would end without a message
            raise NearfarError("interrupted", 130) from None

    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, default="auto", annotation=SHARED[name]) for name in added
    ]
    if adds_set:
        shared.append(inspect.Parameter("set_", keyword, default=None, annotation=SET))
    parameters += [_completed(command, parameter) for parameter in shared]
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.has_shared_options = True  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _inputs(given: Mapping[str, object]) -> Iterable[str | Path]:
    """A command's inputs, which outputs must not replace: paths, and names of files or traces."""
    for name, value in given.items():
        if name in _OUTPUTS:
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            # A text such as a policy may also name a folder: it counts only if it is a trace.
            if isinstance(item, Path) or (
                isinstance(item, str)
                and item
                and (_is_file(item) or _is_file(f"{item}/trace.json"))
            ):
                yield item


def _is_file(path: str) -> bool:
    """Whether this is a regular file; False for text that cannot be a path."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _completed(
    command: str, parameter: inspect.Parameter, *, is_declared: bool = False
) -> inspect.Parameter:
    """The parameter with completion of its names and its section of the help."""
    names = NAMES.get(f"{command} {parameter.name}", NAMES.get(parameter.name))
    # A copy: commands share declarations such as SET.
    infos = [copy.copy(each) for each in parameter.annotation.__metadata__]
    for info in infos:
        if isinstance(info, OptionInfo):
            info.rich_help_panel = _help.section(command, parameter.name, is_declared=is_declared)
        if names is not None and isinstance(info, ParameterInfo) and info.autocompletion is None:
            info.autocompletion = _listed(names)
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, *infos])


def _of_option(option: Option, parameter: inspect.Parameter) -> inspect.Parameter:
    """An option of :mod:`nearfar.declared` for Typer; the engine parses its value."""
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
    # A function gives a required option a default if a mode runs without it (`apply --restore`).
    if option.required and parameter.default is parameter.empty:
        default = inspect.Parameter.empty
    return parameter.replace(default=default, annotation=annotation)


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(info, ArgumentInfo) for info in metadata)


def _listed(names: Names) -> Callable[[str], list[tuple[str, str]]]:
    """Complete the last item of a comma-separated list with names that the list lacks."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        before, comma, last = incomplete.rpartition(",")
        try:
            offered = list(names())
        except Exception:  # noqa: BLE001  completion cannot show an error
            return []
        taken = before.split(",")
        return [
            (before + comma + name, what)
            for name, what in offered
            if name.startswith(last) and name not in taken
        ]

    # A type, not its name, which Typer would evaluate for each option.
    complete.__annotations__ = {"incomplete": str}
    return complete


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


def _emitters(command: str) -> Iterable[tuple[str, str]]:
    """The emitters that need only columns of the command's rows."""
    from nearfar import declared, emit

    rows = getattr(declared, command).ROWS
    columns = {column.name for column in rows.columns}
    if command == "advise":
        columns.add("regions")  # a table in each row, added for emitters that need it
    found = [(name, emit.emitter(name)) for name in emit.names()]
    return [(name, each.SUMMARY) for name, each in found if columns.issuperset(each.NEEDS)]


def _runs() -> Iterable[tuple[str, str]]:
    from nearfar import live_watch

    found = live_watch.runs().items()
    return [
        ("auto", "the only running `nearfar run`"),
        *((str(pid), command) for pid, command in found),
    ]


def _studies() -> Iterable[tuple[str, str]]:
    import nearfar.reproduce as study

    return [(name, "") for name in study.names()]


#: Names by ``COMMAND PARAMETER``, or by ``PARAMETER`` alone for every command.
NAMES: Mapping[str, Names] = {
    "advise emit": lambda: _emitters("advise"),
    "machine": _machines,
    "machine show name": _machines,
    "numa plan emit": lambda: _emitters("numa_plan"),
    "reproduce study": _studies,
    "size emit": lambda: _emitters("size"),
    "storage": _storages,
    "watch emit": lambda: _emitters("watch"),
    "watch words": _runs,
    "workload": _tiering_workloads,
    "workload capture names": _workloads,
    "workload show names": _workloads,
}
