"""Options and columns as data.

Every option and column is declared once, next to the study that uses it: in the engine, or in
Python for commands that are written in Python (such as ``advise`` and ``diff``). ``make declared``
collects the declarations in :mod:`nearfar.declared`, so that neither help nor a type checker loads
the engine or the study. Signatures, docstrings, the command line's options, completion, command
lines that repeat a run, Arrow schemas and tables of the docs are made from them.
"""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from nearfar.errors import NearfarError

Function = TypeVar("Function", bound=Callable[..., object])
Value = TypeVar("Value")
Values = TypeVar("Values", bound=Mapping[str, object])

if TYPE_CHECKING:
    import pyarrow

    from nearfar._engine import Machine

    #: A machine as an option takes it: a name, the path of a file, or a loaded machine.
    MachineLike: TypeAlias = str | Path | Machine
else:  # a type must not load the engine
    MachineLike = str | Path

#: A tiering policy as an option takes it: a name, or a class or object of
#: :class:`nearfar.policy.Policy`.
PolicyLike: TypeAlias = "str | object"

#: The unit at the end of a column's name; values show it as well.
_UNIT: Final = re.compile(r"_(bytes|ns)$")

#: A help text lists the choices of an option if there are at most this many; the docs list all.
_MAX_LISTED: Final = 12


@dataclass(frozen=True)
class Option:
    """The declaration of an option.

    Attributes:
        name: its name in Python, in files and in the record of a run.
        type: its type in a Python signature.
        what: a description, in a sentence or two.
        default: its default.
        shown: how help describes a default of None.
        required: whether it has no default.
        metavar: the name of its value in help; empty for a flag.
        choices: allowed names, each with a line of description.
        open: whether values other than ``choices`` are allowed.
        recorded: whether results depend on it; if so, the record of a run has it.
        argument: whether it is a positional argument of the command.
    """

    name: str
    type: str
    what: str
    default: Any = None
    shown: str = ""
    required: bool = False
    metavar: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    open: bool = True
    recorded: bool = True
    argument: bool = False

    @property
    def flag(self) -> str:
        """The flag on the command line; ``from_``, a keyword of Python, is ``--from``."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def is_flag(self) -> bool:
        """Whether it is a flag without a value."""
        return not self.metavar

    @property
    def help(self) -> str:
        """The description, the choices, and the default if it is None."""
        text = self.what
        if self.choices and len(self.choices) <= _MAX_LISTED:
            text = f"{text} One of: {', '.join(name for name, _ in self.choices)}."
        return f"{text} [default: {self.shown}]" if self.shown else text

    @property
    def annotation(self) -> object:
        """The type, evaluated."""
        names: dict[str, object] = {"Sequence": Sequence, "Mapping": Mapping, "Path": Path}
        names |= {"MachineLike": str | Path, "PolicyLike": str}
        return eval(self.type, names)  # noqa: S307  our own source


@dataclass(frozen=True)
class Column:
    """The declaration of a column.

    Attributes:
        name: its name.
        arrow: its type in Arrow.
        nullable: whether it may be null.
        unit: its unit; empty for counts, shares and names.
        what: its meaning.
        title: its heading, unless that follows from the name (:attr:`head`).
        python: its type in Python if that does not follow from ``arrow``: lists, for example, are
            text in a table.
    """

    name: str
    arrow: str
    nullable: bool
    unit: str
    what: str
    title: str = ""
    python: str = ""

    @property
    def head(self) -> str:
        """Its heading in tables and plots: the title, or the name without its unit.

        >>> Column("page_bytes", "int64", False, "bytes", "Page size.").head
        'page'
        """
        return self.title or _UNIT.sub("", self.name).replace("_", " ")

    @property
    def axis(self) -> str:
        """The title of an axis whose labels show no unit: the heading and the unit."""
        if not self.unit or self.unit == self.head:
            return self.head
        return f"{self.head}{' ' if self.unit.startswith('per ') else ', '}{self.unit}"


@dataclass(frozen=True)
class Rows:
    """The declaration of a table.

    Attributes:
        columns: the columns, in order.
        keys: columns that identify a row, by which rows of two runs are paired. Of a tuple, the
            first column that is not null counts (a memory size as a share, or else in bytes).
        metrics: measured columns, each with ``less`` or ``more``: which is better. The first is
            compared and drawn by default.
        seed: the column that numbers repetitions, if there is one.
    """

    keys: tuple[str | tuple[str, ...], ...]
    metrics: Mapping[str, str]
    seed: str | None = None
    columns: tuple[Column, ...] = ()

    def column(self, name: str) -> Column:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def head(self, name: str) -> str:
        """The heading of a column (:attr:`Column.head`)."""
        return self.column(name).head

    def heads(self, *names: str) -> list[str]:
        """The headings of columns."""
        return [self.head(name) for name in names]

    def arrow(self) -> pyarrow.Schema:
        """The Arrow schema."""
        import pyarrow

        # 20 digits: addresses up to 2^64.
        types = {"bool": pyarrow.bool_(), "decimal128": pyarrow.decimal128(20)}
        return pyarrow.schema(
            [(c.name, types.get(c.arrow) or pyarrow.type_for_alias(c.arrow)) for c in self.columns]
        )

    def table(self, rows: Sequence[Mapping[str, object]]) -> pyarrow.Table:
        """The rows as a table."""
        import pyarrow

        try:
            return pyarrow.Table.from_pylist(list(rows), schema=self.arrow())
        except UnicodeEncodeError:
            # A path that is not UTF-8.
            texts = [{name: as_text(value) for name, value in row.items()} for row in rows]
            return pyarrow.Table.from_pylist(texts, schema=self.arrow())


def as_text(value: Value) -> Value | str:
    """A value for a table: bytes of a path that are not UTF-8 are escaped."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def takes(options: Iterable[Option]) -> Callable[[Function], Function]:
    """Declare the ``**options`` of a function.

    The signature lists them after the function's own parameters, which include required options and
    positional arguments. ``{options}`` in the docstring becomes their descriptions. The attribute
    ``options`` of the function holds the declarations, for the command line and for sweeps. Calls
    do not change: options that the caller omits are not passed.
    """
    declared = tuple(options)

    def change(function: Function) -> Function:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.required else option.default,
                annotation=option.type,
            )
            for option in declared
            if option.name not in signature.parameters
        ]
        signature = signature.replace(parameters=[*named, *added])
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.options = declared  # type: ignore[attr-defined]
        if function.__doc__:
            function.__doc__ = _described(function.__doc__, declared)
        return function

    return change


def complete(options: Sequence[Option], given: Values) -> Values:
    """The values of all options, with defaults, for a command that is written in Python.

    Raises:
        NearfarError: an option is unknown.
    """
    values = {option.name: option.default for option in options}
    unknown = next((name for name in given if name not in values), None)
    if unknown is not None:
        raise NearfarError(
            f"--{unknown[:40].replace('_', '-')}: there is no such option; there are: "
            + ", ".join(option.flag for option in options)
        )
    return cast("Values", values | dict(given))


def count(flag: str, value: str | int, low: int = 0, high: int | None = None) -> int:
    """The whole number that an option has; a command line passes it as text.

    Raises:
        NearfarError: naming ``flag``, if it is not a number or out of range.
    """
    try:
        number = int(str(value))
    except ValueError:
        number = low - 1
    if number < low or (high is not None and number > high):
        fix = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise NearfarError(f"{flag}: {value} is out of range; give a whole number {fix}")
    return number


def default(options: Iterable[Option], name: str) -> Any:
    """The default of an option."""
    return next(option.default for option in options if option.name == name)


def options_of(function: Callable[..., object]) -> tuple[Option, ...]:
    """The options that :func:`takes` declared for a function."""
    options: tuple[Option, ...] = getattr(function, "options", ())
    return options


def _described(doc: str, options: Sequence[Option]) -> str:
    lines = []
    for line in doc.splitlines():
        if line.strip() != "{options}":
            lines.append(line)
            continue
        indent = line[: -len("{options}")]
        for option in options:
            text = f"{option.name}: {option.help}"
            lines += textwrap.wrap(
                text, 99, initial_indent=indent, subsequent_indent=indent + "    "
            )
    return "\n".join(lines)


def written(value: object) -> str:
    """A value as text on a command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(written, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def knob_text(value: object) -> str:
    """The value of a policy's knob as the engine reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_line(
    command: str,
    arguments: Sequence[str | PathLike[str]],
    options: Iterable[Option],
    values: Mapping[str, object],
) -> str:
    """The command line that repeats a run: its arguments, and every value that is not the default.

    Args:
        command: the words after ``nearfar``.
        arguments: positional arguments.
        options: the options of the command.
        values: their values by name, from the record of the run.
    """
    words = ["nearfar", *command.split(), *map(str, arguments)]
    for option in options:
        value = values.get(option.name)
        if value is None or written(value) == written(option.default):
            continue
        if option.argument:
            words.append(written(value))
        elif option.is_flag:
            words.append(option.flag if value else option.flag.replace("--", "--no-", 1))
        else:
            words += [option.flag, written(value)]
    return shlex.join(words)
