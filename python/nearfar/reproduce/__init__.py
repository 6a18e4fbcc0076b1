"""Compare the papers' results (``papers/``) with ours.

A study is a public module of this package. Its function ``study`` returns a :class:`Reproduced`,
with a row (:data:`KEYS`) for each published number or statement. Its keyword arguments are the
declared options that it supports, ``progress`` if it reports any, and ``rows_only`` to leave out
what takes longer than the rows: sensitivity, figures and tables.

``papers/NNN/statements.toml`` has a ``[[statement]]`` (:class:`Statement`) for each row;
:func:`within_tolerance` computes ``holds`` from its tolerance. A statement in words is measured as
a share of cases, a count or a ratio. The reason for a difference is ``differs`` of the statement,
or a ``[[differs]]`` in the file of a published table (:func:`explained`).

If our number only repeats an input, the statement names the ``input``. Such a row has no ``holds``
and does not count (:func:`results`).

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
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from nearfar import _engine, papers
from nearfar.declared import reproduce as declared
from nearfar.errors import NearfarError, unknown
from nearfar.result import Result
from nearfar.schema import complete, count, takes
from nearfar.strict import Json

if TYPE_CHECKING:
    import pyarrow


class Series(TypedDict):
    """A series of a figure: points and a curve, as (page bytes, value)."""

    name: str
    points: list[tuple[int, float]]
    curve: list[tuple[int, float]]


class Figure(TypedDict):
    """A figure of the HTML page; ``time``: whether values are nanoseconds."""

    title: str
    caption: str
    axis: str
    time: bool
    series: list[Series]


class TextTable(TypedDict):
    """A table of the HTML page."""

    title: str
    headers: list[str]
    rows: list[list[str]]


KEYS: Final = tuple(column.name for column in declared.ROWS.columns)

_NUMBER: Final = r"([-+]?\d+(?:\.\d+)?)"


@dataclass(frozen=True)
class Statement:
    """A published result.

    Attributes:
        key: its name in the statements file and in ``MEASURES`` of the study.
        place: figure, table or section; says: the statement, in a sentence.
        published: the printed number, or ``stated``; unit: of the published number and of ours.
        tolerance: of our number (:func:`within_tolerance`); why: the reason for this tolerance.
        paper: the number of the paper.
        differs: why our number differs; empty if it does not.
        input: the input that our number only repeats: a key or section of a machine file
            (``MACHINE: KEY``), a choice of the study, or ``definition`` if the statement is true by
            definition; empty for a result.
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
        """The row of this statement; if it does not hold, the note also says why."""
        holds = ours is not None and within_tolerance(self.published, ours, self.tolerance)
        if not holds:
            note = with_why(note, self.differs)
        return {
            "paper": self.paper,
            "item": f"{self.place}: {self.says}",
            "published": self.published,
            "ours": ours,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "holds": None if self.input else holds,
            "note": note,
            "input": self.input,
        }


def results(rows: Sequence[declared.Row]) -> list[declared.Row]:
    """The rows that count: all except inputs."""
    return [row for row in rows if row["holds"] is not None]


def with_why(note: str, why: str) -> str:
    """A note with the reason for a difference."""
    return "; ".join(part for part in (note, why and f"why: {why}") if part)


@dataclass(frozen=True)
class Reproduced(Result):
    """The result of a study.

    Attributes:
        rows: published results with ours.
        run: the record of the run.
        sensitivity: how many rows hold under other choices of what the papers leave open.
        figures, tables: what the HTML page shows besides the rows.
    """

    rows: list[declared.Row]
    run: Mapping[str, object]
    sensitivity: list[declared.SensitivityRow] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)

    shown = "nearfar.report.reproduce:rows"
    page = "nearfar.report.html.reproduce:ReproducePage"
    chart = "nearfar.report.plots.reproduce:draw"
    plain = ("run", "rows", "sensitivity")

    @property
    def holding(self) -> int:
        """The number of rows that hold."""
        return sum(bool(row["holds"]) for row in self.rows)

    @property
    def counted(self) -> int:
        """The number of rows that count."""
        return len(results(self.rows))

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``; ``published`` as text."""
        return declared.ROWS.table(
            [{**row, "published": _as_text(row["published"])} for row in self.rows]
        )


def _as_text(value: float | str | None) -> str | None:
    return f"{value:g}" if isinstance(value, int | float) else value


def names() -> list[str]:
    """Names of the studies, sorted."""
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in modules if not name.startswith("_"))


def _function(study: str) -> tuple[Callable[..., Reproduced], Container[str]]:
    """The function of a study and the names of its arguments."""
    function: Callable[..., Reproduced] = importlib.import_module(f"{__name__}.{study}").study
    return function, inspect.signature(function).parameters


@takes(declared.OPTIONS)
def reproduce(
    study: str,
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Reproduced:
    """Run a study of the papers.

    Args:
        study: one of :func:`names`, or the number of a paper, such as ``003``, for only its rows.
        progress: called regularly with the number of references done.
        {options}

    Raises:
        NearfarError: unknown study, an option that it does not support, or a failure of the study.
    """
    paper = study if study in papers.STUDIES else None
    study = papers.STUDIES.get(study, study)
    if study not in names():
        raise unknown("reproduce: no study", study, [*names(), *papers.STUDIES], "studies:")
    run, supported = _function(study)
    given = _given(options)
    for key in ("full", "traces", "vm"):
        if key in given and key not in supported:
            raise NearfarError(f"--{key}: reproduce {study} has no such option; leave it out")
    given["progress"] = progress
    result = run(**{key: value for key, value in given.items() if key in supported})
    return result if paper is None else _of_paper(result, paper)


def _of_paper(result: Reproduced, paper: str) -> Reproduced:
    """The rows, figures and tables of a result that concern one paper."""
    rows = [row for row in result.rows if row["paper"] == paper]
    items = {row["item"] for row in rows}
    part = replace(result, rows=rows, run={**result.run, "study": f"reproduce {paper}"})
    sensitivity: list[declared.SensitivityRow] = []
    for case in result.sensitivity:
        more, fewer = ([item for item in case[key] if item in items] for key in ("more", "fewer"))
        holds = part.holding + len(more) - len(fewer)
        sensitivity.append(
            {**case, "holds": holds, "rows": part.counted, "more": more, "fewer": fewer}
        )
    others = [papers.label(number) for number in papers.SYSTEMS if number != paper]

    def concerns(shown: Figure | TextTable) -> bool:
        return not any(label in shown["title"] for label in others)

    return replace(
        part,
        sensitivity=sensitivity,
        figures=list(filter(concerns, result.figures)),
        tables=list(filter(concerns, result.tables)),
    )


class Claims(TypedDict):
    """A paper's claims that hold (``right``) and do not (``wrong``); why the paper matters now."""

    paper: str
    right: list[str]
    wrong: list[str]
    today: str


def claims(rows: Sequence[declared.Row]) -> list[Claims]:
    """The claims (``papers/NNN/claims.toml``) of each paper that has rows."""
    listed: list[Claims] = []
    for paper in dict.fromkeys(row["paper"] for row in rows if row["paper"] in papers.SYSTEMS):
        content = tomllib.loads(published(f"{paper}/claims"))
        holds = {row["item"]: row["holds"] for row in rows if row["paper"] == paper}
        right, wrong = (
            [claim["says"] for claim in content["claim"] if holds.get(claim["item"]) is wanted]
            for wanted in (True, False)
        )
        listed.append({"paper": paper, "right": right, "wrong": wrong, "today": content["today"]})
    return listed


def rows(study: str, **options: Unpack[declared.Options]) -> list[declared.Row]:
    """Only the rows of :func:`reproduce`."""
    return reproduce(study, **options).rows


def _given(options: declared.Options) -> Json:
    """The options that are set, with checked values."""
    values = complete(declared.OPTIONS, options)
    values["threads"] = count("--threads", values["threads"], 0, 1024)
    return {key: value for key, value in values.items() if value}


@takes(declared.OPTIONS)
def everything(
    *,
    progress: Callable[[str], Callable[[int], None] | None] | None = None,
    **options: Unpack[declared.Options],
) -> Reproduced:
    """The rows of all studies, without sensitivity and figures.

    Args:
        progress: called with the name of each study before it runs; returns the study's
            ``progress``.
        {options}

    Raises:
        NearfarError: a study fails.
    """
    given = _given(options)
    rows: list[declared.Row] = []
    counts: dict[str, dict[str, int]] = {}
    for name in names():
        study, supported = _function(name)
        passed = {key: value for key, value in given.items() if key in supported}
        if progress is not None and "progress" in supported:
            passed["progress"] = progress(name)
        result = study(**passed, rows_only=True)
        counts[name] = {"rows": result.counted, "hold": result.holding}
        rows += result.rows
    captured = (
        f"captures in {given['traces']}" if "traces" in given else "the bundled views of whole runs"
    )
    run = {
        "study": "reproduce --all",
        "captures": "whole runs" if "full" in given else captured,
        "studies": counts,
        "version": _engine.__version__,
    }
    return Reproduced(rows, run)


def statements(paper: str) -> list[Statement]:
    """The statements of ``papers/PAPER/statements.toml``, in order.

    Raises:
        NearfarError: there is no such file.
    """
    return read_statements(published(f"{paper}/statements"))


def read_statements(text: str) -> list[Statement]:
    """Read the text of a ``statements.toml``.

    Raises:
        NearfarError: it is not TOML, or a statement has a missing or unknown key or an invalid
            tolerance.
    """
    try:
        content = tomllib.loads(text)
        listed = [Statement(paper=content["paper"], **keys) for keys in content["statement"]]
        for statement in listed:
            within_tolerance(statement.published, 0.0, statement.tolerance)
    # Also huge numbers and deep nesting, which Python does not report as TOML errors.
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise NearfarError(f"papers: statements cannot be read: {error}") from None
    return listed


def measured(
    paper: str, measure: Callable[[str], tuple[float, str]], digits: int = 6
) -> list[declared.Row]:
    """A row for each statement of a paper.

    Args:
        paper: the number of the paper.
        measure: takes the key of a statement, returns our number and a note.
        digits: significant digits of our numbers.
    """
    return [
        statement.row(float(f"{ours:.{digits}g}"), note)
        for statement in statements(paper)
        for ours, note in [measure(statement.key)]
    ]


def explained(rows: Sequence[declared.Row], reasons: Sequence[Json]) -> list[declared.Row]:
    """The rows; the note of each that does not hold gets the first reason that applies.

    A reason (``[[differs]]`` of a paper's tables) has ``items``, patterns (:mod:`fnmatch`), and
    ``why``.
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
    """The text of ``papers/NAME.toml``, such as ``000/fleet``, built into the package."""
    known = dict(_engine.paper_builtin())
    if name not in known:
        raise NearfarError(f"papers: no {name[:60]!r}; known are {', '.join(known)}")
    return known[name]


def within_tolerance(published: float | str, ours: float, tolerance: str) -> bool:
    """Whether ``ours`` agrees with the published value.

    Tolerances: ``>= 3``, ``<= 3``, ``above 3``, ``below 3``, ``3 to 9`` (of ours alone);
    ``equal``, ``within 0.1`` (absolute), ``within 10%`` (of the published value), ``factor 2``
    (either way).

    Raises:
        NearfarError: the tolerance is invalid, or needs a published number.
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
    """An entry of :attr:`Reproduced.sensitivity`: ``rows`` under a setting, against ``usual``."""
    pairs = list(zip(results(rows), results(usual), strict=True))
    return {
        "setting": setting,
        "why": why,
        "holds": sum(bool(row["holds"]) for row, _ in pairs),
        "rows": len(pairs),
        "more": [row["item"] for row, was in pairs if row["holds"] and not was["holds"]],
        "fewer": [row["item"] for row, was in pairs if was["holds"] and not row["holds"]],
    }


#: Tolerance for rounding of computed values.
_ROUNDING: Final = 1e-9
#: Tolerances by pattern: of our number alone, and of both numbers.
_ALONE: Final[dict[str, Callable[[float, Sequence[float]], bool]]] = {
    rf">= {_NUMBER}": lambda ours, limit: ours >= limit[0] - _ROUNDING,
    rf"<= {_NUMBER}": lambda ours, limit: ours <= limit[0] + _ROUNDING,
    rf"above {_NUMBER}": lambda ours, limit: ours > limit[0],
    rf"below {_NUMBER}": lambda ours, limit: ours < limit[0],
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
