"""Published results beside ours: ``papers/`` holds what was published, a module here makes ours.

A study is one file here, found by its name, with a function ``rows`` that returns one mapping for
each published number or statement, with exactly the keys :data:`KEYS`. Options are keyword
arguments with defaults, of those declared and ``progress``; a study has only those it can use. A
study with more to show than rows has ``study`` too, with the same arguments, which returns a
:class:`Reproduced`; ``rows`` is then its rows.

``papers/NNN/statements.toml`` holds one ``[[statement]]`` each (:class:`Statement`); ``holds`` is
computed by :func:`within_tolerance` from the tolerance beside the published value, never typed in.
A statement in words is measured as well: as a share of cases, a count, a ratio. Why ours differs is
data, too: ``differs`` of the statement, or ``[[differs]]`` of a table (:func:`explained`).

A row whose ours is only what was put in is no result: its statement names the ``input``. Its
``holds`` is None, and nothing counts it (:func:`results`).

>>> rows("paging")[0]["holds"]                              # doctest: +SKIP
True
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import math
import pkgutil
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack

from nearfar import _engine
from nearfar.declared import reproduce as declared
from nearfar.errors import NearfarError, unknown
from nearfar.result import Result
from nearfar.schema import complete, count, takes


class Series(TypedDict):
    """Points of a figure and its curve as (page bytes, value)."""

    name: str
    points: list[tuple[int, float]]
    curve: list[tuple[int, float]]


class Figure(TypedDict):
    """A figure of the page; ``time``: its values are nanoseconds."""

    title: str
    caption: str
    axis: str
    time: bool
    series: list[Series]


class TextTable(TypedDict):
    """A table of the page: texts."""

    title: str
    headers: list[str]
    rows: list[list[str]]


#: Keys of a row.
KEYS: Final = tuple(column.name for column in declared.ROWS.columns)

_NUMBER: Final = r"([-+]?\d+(?:\.\d+)?)"


@dataclass(frozen=True)
class Statement:
    """A published result.

    Attributes:
        key: names it in its paper, and what measures it.
        place: figure, table or section; says: what is stated, in a sentence.
        published: the number printed, or ``stated``; unit: of it and of ours.
        tolerance: when ours counts as the same (:func:`within_tolerance`); why: why that tolerance.
        paper: the paper's number.
        differs: why ours is not the same; empty where it is.
        input: what ours only repeats, a key of a machine file (``MACHINE: KEY``, or a section's), a
            choice of the study, or its ``definition``; empty for a result.
    """

    key: str
    place: str
    says: str
    published: float | str
    unit: str
    tolerance: str
    why: str
    paper: str
    differs: str = ""
    input: str = ""

    def row(self, ours: float | None, note: str) -> declared.Row:
        """The row of this statement; ``ours`` is None where there is none.

        The note of a row outside its tolerance also says why.
        """
        holds = ours is not None and within_tolerance(self.published, ours, self.tolerance)
        if not holds:
            note = with_why(note, self.differs)
        item = f"{self.place}: {self.says}"
        return {
            "paper": self.paper,
            "item": item,
            "published": self.published,
            "ours": ours,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "holds": None if self.input else holds,
            "note": note,
            "input": self.input,
        }


def results(rows: Sequence[declared.Row]) -> list[declared.Row]:
    """The rows that count: not inputs."""
    return [row for row in rows if row["holds"] is not None]


def with_why(note: str, why: str) -> str:
    """A note on what was seen, and why it is not what was published."""
    return "; ".join(part for part in (note, why and f"why: {why}") if part)


@dataclass(frozen=True)
class Reproduced(Result):
    """What a study found.

    Attributes:
        rows: published results beside ours.
        run: how it was made; no times of day.
        sensitivity: the same when what the papers leave open is chosen otherwise.
        figures, tables: for the page.
    """

    rows: list[declared.Row]
    run: Mapping[str, Any]
    sensitivity: list[declared.SensitivityRow] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)

    shown = "nearfar.report.reproduce:rows"
    page = "nearfar.report.html.reproduce:ReproducePage"
    chart = "nearfar.report.plots.reproduce:draw"
    plain = ("run", "rows", "sensitivity")

    @property
    def holding(self) -> int:
        """How many rows hold."""
        return sum(bool(row["holds"]) for row in self.rows)

    @property
    def counted(self) -> int:
        """How many rows could hold."""
        return len(results(self.rows))

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``; ``published`` as text."""
        return declared.ROWS.table(
            [{**row, "published": _as_text(row["published"])} for row in self.rows]
        )


def _as_text(value: float | str | None) -> str | None:
    return f"{value:g}" if isinstance(value, int | float) else value


def names() -> list[str]:
    """Names of the studies, sorted."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in found if not name.startswith("_"))


@takes(declared.OPTIONS)
def reproduce(
    study: str,
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Reproduced:
    """Run a study of the papers.

    Args:
        study: one of :func:`names`.
        progress: called now and then with the references done.
        {options}

    Raises:
        NearfarError: unknown study, an option that it has not, or what the study raises.
    """
    if study not in names():
        raise unknown("reproduce: no study", study, names(), "studies:")
    module = importlib.import_module(f"{__name__}.{study}")
    run: Callable[..., Any] = getattr(module, "study", module.rows)
    taken = inspect.signature(run).parameters
    given = _given(options)
    for key in ("full", "traces"):
        if key in given and key not in taken:
            raise NearfarError(f"--{key}: reproduce {study} has no such option; leave it out")
    given["progress"] = progress
    found = run(**{key: value for key, value in given.items() if key in taken})
    return found if isinstance(found, Reproduced) else Reproduced(list(found), {"study": study})


def rows(study: str, **options: Unpack[declared.Options]) -> list[declared.Row]:
    """Only the rows of :func:`reproduce`."""
    return reproduce(study, **options).rows


def _given(options: declared.Options) -> dict[str, Any]:
    """The options that are set, checked."""
    asked = complete(declared.OPTIONS, options)
    asked["threads"] = count("--threads", asked["threads"], 0, 1024)
    return {key: value for key, value in asked.items() if value}


@takes(declared.OPTIONS)
def everything(
    *,
    progress: Callable[[str], Callable[[int], None] | None] | None = None,
    **options: Unpack[declared.Options],
) -> Reproduced:
    """The rows of every study, one after the other; no sensitivity and no figures.

    Args:
        progress: called with the name of each study before it runs; returns what that one calls.
        {options}

    Raises:
        NearfarError: as the studies raise it.
    """
    given = _given(options)
    found: list[declared.Row] = []
    counts: dict[str, dict[str, int]] = {}
    for name in names():
        module = importlib.import_module(f"{__name__}.{name}")
        taken = inspect.signature(module.rows).parameters
        passed = {key: value for key, value in given.items() if key in taken}
        if progress is not None and "progress" in taken:
            passed["progress"] = progress(name)
        own = module.rows(**passed)
        hold = sum(bool(row["holds"]) for row in own)
        counts[name] = {"rows": len(results(own)), "hold": hold}
        found += own
    captured = (
        f"those of {given['traces']}" if "traces" in given else "the bundled views of whole runs"
    )
    run = {
        "study": "reproduce --all",
        "captures": "whole runs" if "full" in given else captured,
        "studies": counts,
        "version": _engine.__version__,
    }
    return Reproduced(found, run)


def statements(paper: str) -> list[Statement]:
    """What a paper states, in the order of its file, ``papers/PAPER/statements.toml``.

    Raises:
        NearfarError: there is no such file.
    """
    return read_statements(published(f"{paper}/statements"))


def read_statements(text: str) -> list[Statement]:
    """Read the text of a ``statements.toml``.

    Raises:
        NearfarError: it is not TOML, or a statement lacks a key, has one too many or holds a
            tolerance that cannot be judged.
    """
    try:
        content = tomllib.loads(text)
        found = [Statement(paper=content["paper"], **given) for given in content["statement"]]
        for one in found:
            within_tolerance(one.published, 0.0, one.tolerance)
    # Huge numbers and deep nesting are no TOML errors to Python.
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise NearfarError(f"papers: statements cannot be read: {error}") from None
    return found


def explained(
    rows: Sequence[declared.Row], reasons: Sequence[Mapping[str, Any]]
) -> list[declared.Row]:
    """Rows, those that do not hold with why: the first of ``reasons`` that knows the row.

    Args:
        rows: as :data:`KEYS` has it.
        reasons: ``[[differs]]`` of a paper's tables: ``items``, patterns (:mod:`fnmatch`) of the
            items concerned, and ``why``.
    """

    def why(row: declared.Row) -> str:
        known = (
            str(reason["why"])
            for reason in reasons
            if any(fnmatch.fnmatchcase(row["item"], item) for item in reason["items"])
        )
        return next(known, "") if row["holds"] is False else ""

    return [{**row, "note": with_why(row["note"], why(row))} for row in rows]


def published(name: str) -> str:
    """Text of ``papers/NAME.toml``, such as ``000/fleet``; it is built into the package."""
    known = dict(_engine.paper_builtin())
    if name not in known:
        raise NearfarError(f"papers: no {name[:60]!r}; known are {', '.join(known)}")
    return known[name]


def within_tolerance(published: float | str, ours: float, tolerance: str) -> bool:
    """Whether ``ours`` agrees with what was published.

    Tolerances: ``>= 3``, ``<= 3``, ``3 to 9`` (ours alone); ``equal``, ``within 0.1`` (absolute),
    ``within 10%`` (of the published), ``factor 2`` (either way).

    Raises:
        NearfarError: it is none of these, or needs a published number and there is none.
    """
    for pattern, holds in _ALONE.items():
        if found := re.fullmatch(pattern, tolerance):
            return not math.isnan(ours) and holds(ours, [float(part) for part in found.groups()])
    for pattern, agrees in _TOLERANCES.items():
        if (found := re.fullmatch(pattern, tolerance)) and not isinstance(published, str):
            limits = [float(part) for part in found.groups()]
            return not math.isnan(ours) and agrees(float(published), ours, limits)
    raise NearfarError(
        f"papers: tolerance {tolerance!r} of {published!r} cannot be judged; "
        "see nearfar.reproduce.within_tolerance"
    )


def compared(
    setting: str, why: str, rows: Sequence[declared.Row], usual: Sequence[declared.Row]
) -> declared.SensitivityRow:
    """Entry of :attr:`Reproduced.sensitivity`: ``rows`` under a setting, beside the usual ones."""
    pairs = list(zip(results(rows), results(usual), strict=True))
    return {
        "setting": setting,
        "why": why,
        "holds": sum(bool(row["holds"]) for row, _ in pairs),
        "rows": len(pairs),
        "more": [row["item"] for row, was in pairs if row["holds"] and not was["holds"]],
        "fewer": [row["item"] for row, was in pairs if was["holds"] and not row["holds"]],
    }


#: Room for the last digit of a computed value.
_ROUNDING: Final = 1e-9
_ALONE: Final[dict[str, Callable[[float, Sequence[float]], bool]]] = {
    rf">= {_NUMBER}": lambda ours, limit: ours >= limit[0] - _ROUNDING,
    rf"<= {_NUMBER}": lambda ours, limit: ours <= limit[0] + _ROUNDING,
    rf"{_NUMBER} to {_NUMBER}": lambda ours, limit: limit[0] <= ours <= limit[1],
}
_TOLERANCES: Final[dict[str, Callable[[float, float, Sequence[float]], bool]]] = {
    "equal": lambda value, ours, _: abs(value - ours) <= _ROUNDING,
    rf"within {_NUMBER}": lambda value, ours, limit: abs(value - ours) <= limit[0] + _ROUNDING,
    rf"within {_NUMBER}%": lambda value, ours, limit: (
        abs(value - ours) <= limit[0] / 100 * abs(value) + _ROUNDING
    ),
    rf"factor {_NUMBER}": lambda value, ours, limit: (
        ours > 0 and value > 0 and max(ours / value, value / ours) <= limit[0] + _ROUNDING
    ),
}
