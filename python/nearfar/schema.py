"""Options and columns as data: what ``nearfar.declared`` is made of, and what is made of that.

Every option and column is declared once, beside the study that uses it: in the engine, or in Python
for commands whose home is there (such as ``advise`` and ``diff``). ``make declared`` writes the
declarations as Python source (:mod:`nearfar.declared`), so that neither help nor a type checker
loads the engine or the study. From there come signatures, docstrings, the command line's options,
completion, command lines that repeat a run, Arrow schemas and the docs' tables.
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
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from nearfar.errors import NearfarError

Function = TypeVar("Function", bound=Callable[..., Any])

if TYPE_CHECKING:
    from nearfar._engine import Machine

    #: A machine as an option takes it: a name, the path of a file, or a machine already loaded.
    MachineLike: TypeAlias = str | Path | Machine
else:  # the engine is not loaded for a type
    MachineLike = str | Path

#: A tiering policy as an option takes it: a name, or a class or object of
#: :class:`nearfar.tiering.Policy`.
PolicyLike: TypeAlias = "str | object"

#: The unit at the end of a column's name, which the values show.
_UNIT: Final = re.compile(r"_(bytes|ns)$")

#: Names that a help text lists; more are left to completion and docs.
_LISTED: Final = 10


@dataclass(frozen=True)
class Option:
    """The declaration of an option.

    Attributes:
        name: in Python, in files and in the record of a run.
        type: in a Python signature.
        what: what it is, in a sentence or two.
        default: what it is unless given.
        shown: what help says of a default that is None.
        required: whether it must be given.
        metavar: how its value is called in help; empty for a flag.
        choices: names that may be written, each with a line on it.
        open: whether other values than ``choices`` are taken.
        recorded: whether results depend on it, so that the record of a run holds it.
        argument: whether a command takes it without a flag, in its place.
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
        """How it is written on a command line; ``from_``, as Python has ``from``, is ``--from``."""
        return "--" + self.name.rstrip("_").replace("_", "-")

    @property
    def is_flag(self) -> bool:
        """Whether it is on or off."""
        return not self.metavar

    @property
    def help(self) -> str:
        """What it is, the names to choose from, and a default that its value does not say."""
        text = self.what
        if self.choices and len(self.choices) <= _LISTED:
            text = f"{text.rstrip('.')}: {', '.join(name for name, _ in self.choices)}."
        return f"{text} [default: {self.shown}]" if self.shown else text

    @property
    def annotation(self) -> Any:
        """The type as Python has it."""
        names: dict[str, Any] = {"Sequence": Sequence, "Mapping": Mapping, "Path": Path}
        names |= {"MachineLike": str | Path, "PolicyLike": str}
        return eval(self.type, names)  # noqa: S307  our own source


@dataclass(frozen=True)
class Column:
    """The declaration of a column.

    Attributes:
        name: its name.
        arrow: its type in Arrow.
        nullable: whether a row may lack it.
        unit: its unit; empty for counts, shares and names.
        what: what it means.
        title: its head, where the name does not say it: see :attr:`head`.
        python: its type in Python, where that is not the usual one of ``arrow``: lists, say, which
            a table holds as text.
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
        """Its head in tables and plots: the title, or the name without its unit.

        >>> Column("page_bytes", "int64", False, "bytes", "Page size.").head
        'page'
        """
        return self.title or _UNIT.sub("", self.name).replace("_", " ")

    @property
    def axis(self) -> str:
        """The title of an axis whose labels show no unit: the head and the unit."""
        if not self.unit or self.unit == self.head:
            return self.head
        return f"{self.head}{' ' if self.unit.startswith('per ') else ', '}{self.unit}"


@dataclass(frozen=True)
class Rows:
    """The declaration of a table.

    Attributes:
        columns: in order.
        keys: columns that say what a row is of, so that rows of two runs are paired by them; of
            a tuple the first that is not null counts (a memory size as a share, or else in bytes).
        metrics: what a row found, each ``less`` or ``more``: what of it is better. The first is
            what is compared and drawn unless another is named.
        seed: a column over which rows are repetitions of each other, where there is one.
    """

    keys: tuple[str | tuple[str, ...], ...]
    metrics: Mapping[str, str]
    seed: str | None = None
    columns: tuple[Column, ...] = ()

    def column(self, name: str) -> Column:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def head(self, name: str) -> str:
        """The head of the column of this name (:attr:`Column.head`)."""
        return self.column(name).head

    def heads(self, *names: str) -> list[str]:
        """The heads of these columns."""
        return [self.head(name) for name in names]

    def arrow(self) -> Any:
        """The ``pyarrow.Schema``."""
        import pyarrow

        types = {"bool": pyarrow.bool_(), "decimal128": pyarrow.decimal128(20)}
        return pyarrow.schema(
            [(c.name, types.get(c.arrow) or pyarrow.type_for_alias(c.arrow)) for c in self.columns]
        )

    def table(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """The rows as a ``pyarrow.Table``."""
        import pyarrow

        try:
            return pyarrow.Table.from_pylist(list(rows), schema=self.arrow())
        except UnicodeEncodeError:
            # A path with bytes that are no text; tables hold text alone.
            texts = [{name: as_text(value) for name, value in row.items()} for row in rows]
            return pyarrow.Table.from_pylist(texts, schema=self.arrow())


def as_text(value: Any) -> Any:
    """A value as tables hold it: bytes of a path that are no text, escaped."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def takes(options: Iterable[Option]) -> Callable[[Function], Function]:
    """Make a function that ends in ``**options`` one that takes these, for introspection too.

    Its signature lists them, after those that it names itself, as it does what must be given;
    ``{options}`` in its docstring becomes a line or two on each; its
    attribute ``options`` holds the declarations, for the command line and for sweeps. The function
    is the same otherwise: what is not given is not passed. An argument, which has no flag, is a
    parameter that the function has itself.
    """
    declared = tuple(options)

    def change(function: Function) -> Function:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if option.required else option.default,
                annotation=option.type,
            )
            for option in declared
            if option.name not in own.parameters
        ]
        function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        function.options = declared  # type: ignore[attr-defined]
        if function.__doc__:
            function.__doc__ = _described(function.__doc__, declared)
        return function

    return change


def complete(options: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, and the defaults for the rest, of a command whose home is Python.

    Raises:
        NearfarError: there is no such option.
    """
    declared = tuple(options)
    values = {option.name: option.default for option in declared}
    unknown = next((name for name in given if name not in values), None)
    if unknown is not None:
        raise NearfarError(
            f"--{unknown[:40].replace('_', '-')}: there is no such option; there are: "
            + ", ".join(option.flag for option in declared)
        )
    return values | dict(given)


def count(flag: str, value: str | int, least: int = 0, most: int | None = None) -> int:
    """The whole number of an option; a command line gives it as text.

    Raises:
        NearfarError: naming ``flag``, if it is none or out of range.
    """
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        fix = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise NearfarError(f"{flag}: {value} is out of range; give a whole number {fix}")
    return number


def default(options: Iterable[Option], name: str) -> Any:
    """The default of the option of this name."""
    return next(option.default for option in options if option.name == name)


def options_of(function: Callable[..., Any]) -> tuple[Option, ...]:
    """The options that :func:`takes` has given to a function."""
    found: tuple[Option, ...] = getattr(function, "options", ())
    return found


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
    """A value as it is written on a command line."""
    if isinstance(value, list | tuple):
        return ",".join(written(one) for one in value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def knob_text(value: object) -> str:
    """The value of a policy's knob as the engine reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_line(
    command: str,
    arguments: Sequence[str | PathLike[str]],
    options: Iterable[Option],
    values: Mapping[str, Any],
) -> str:
    """The command line that repeats a run: its arguments, and every value that is not the default.

    Args:
        command: as it is typed after ``nearfar``.
        arguments: what comes without a flag.
        options: the command's.
        values: by name, as the record of the run holds them.
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
