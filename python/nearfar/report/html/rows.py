"""The page of many runs: a sweep, or several runs of a study.

Two rows are compared only if they are of one program and differ in a single choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from nearfar import units
from nearfar.diff import Row, flat
from nearfar.errors import NearfarError
from nearfar.report import palette
from nearfar.report.cells import signed_percent
from nearfar.report.html import charts, page
from nearfar.report.runs import Runs, record
from nearfar.result import Result
from nearfar.run_folder import Run
from nearfar.schema import Column, options_of, written
from nearfar.sweep import SweepResult

#: Maximum numbers of rows, charts, series, places on an axis, and sentences of a page.
_ROWS: Final = 500
_CHARTS: Final = 6
_SERIES: Final = 7
_PLACES: Final = 60
_SENTENCES: Final = 4
#: Ratios from this one up are written as a factor, not as a percentage.
_FACTOR: Final = 2.0
#: Columns that name a row's program: in ``numa run`` it is ``load``, in ``numa pair`` ``first``.
_PROGRAMS: Final = ("program", "trace", "traces", "workload", "command", "load", "first")


class Choice(NamedTuple):
    """The change of the metric from a key's first value to another, all else equal.

    Attributes:
        key: the key column; value, base: its two values.
        ratios: metric with ``value`` over metric with ``base``, for each pair of rows.
    """

    key: str
    value: str
    base: str
    ratios: Sequence[float]

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        return math.exp(math.fsum(map(math.log, self.ratios)) / len(self.ratios))


class RowsPage(page.Page[Result]):
    """Many rows: what each choice changes, the best row of each program, a chart, all rows."""

    provenance_title = "How these were made"
    hidden = ("cells",)

    def __init__(self, result: SweepResult | Runs) -> None:
        """Collect the rows and compare them."""
        if isinstance(result, SweepResult):
            super().__init__(result, dict(result.run))
            opened = Run(result.folder, result.study, result, result.columns)
            self.rows, keys = flat(opened)
            failed = len(result.failed)
            self.study, more = result.study, [f"{failed} cells failed."] if failed else []
            where = result.folder.resolve().name
            self.kicker, self.title = f"nearfar: sweep of {self.study.name}", f"{where} - nearfar"
            self.heading = f"What <code>{page.text(where)}</code> found"
            self.source, self.differs = str(result.dataset), ""
            run = {**result.run["options"], **result.run["grid"]}
            defaults = {option.name: option.default for option in options_of(self.study.function)}
            machine = run.get("machine", defaults.get("machine"))
            self.run = {"machines": machine, **self.run} if machine else self.run
        else:
            super().__init__(result, result.to_dict())
            self.rows, keys = result.rows, result.keys
            self.study, more = result.runs[0].study, []
            self.kicker, self.title = f"nearfar: runs of {self.study.name}", "Runs - nearfar"
            self.heading = f"{len(result.runs)} runs compared"
            self.source, self.differs = "the folders", _differs(result)
        if not self.rows:
            raise NearfarError("no cell is finished; run the sweep")
        columns = self.study.columns
        self.metric, self.better = next(iter(columns.metrics.items()))
        known = {column.name: column for column in columns.columns}
        self.column: Column = known[self.metric]
        self.head = self.column.head
        self.heads = {name: column.head for name, column in known.items()}
        self.program = next((key for key in _PROGRAMS if key in keys), None)
        rows = [row for row in self.rows if row.get(self.metric) is not None]
        self.varying = [
            key
            for key in keys
            if key not in (self.program, columns.seed) and len({_shown(key, r) for r in rows}) > 1
        ]
        self.measured, self.seed = rows, columns.seed
        self.choices = self._choices()
        lines = [*self._best(), *map(self._sentence, self._largest()), *more]
        self.headline, *self.more = lines or [f"No row has a value of {self.head}."]

    def _sections(self) -> list[str]:
        parts = []
        if self.choices:
            parts.append(
                page.section("choices", "What each choice changes", self._table(), wide=True)
            )
        if drawn := self._charts():
            parts.append(page.section("chart", f"Chart of {self.head}", drawn, wide=True))
        if self.differs:
            parts.append(page.section("runs", "The runs", self.differs, wide=True))
        return [*parts, page.section("numbers", "The rows", self._all(), wide=True)]

    def _data(self) -> dict[str, object]:
        return {"result": {"run": self.run, "rows": self.rows[:_ROWS]},
                "model": {"charts": self.charts}}  # fmt: skip

    # --- comparison

    def _program(self, row: Row) -> str:
        """The name of a file without its folders; a command line with a space in full."""
        text = "" if self.program is None else units.clean(row[self.program])
        return text if " " in text else text.rpartition("/")[2]

    def _programs(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.measured:
            found.setdefault(self._program(row), []).append(row)
        return found

    def _best_row(self, rows: Sequence[Row]) -> Row:
        best = min if self.better == "less" else max
        return best(rows, key=lambda row: _number(row[self.metric]))

    def _values(self, key: str) -> list[str]:
        """The values of a key, in order of appearance."""
        return list(dict.fromkeys(_shown(key, row) for row in self.measured))

    def _choices(self) -> list[Choice]:
        found = []
        for key in self.varying:
            others = [k for k in (*self.varying, self.seed) if k is not None and k != key]
            by_case: dict[tuple[str, ...], dict[str, float]] = {}
            for row in self.measured:
                case = (self._program(row), *(_shown(other, row) for other in others))
                by_case.setdefault(case, {})[_shown(key, row)] = _number(row[self.metric])
            base, *rest = self._values(key)
            for value in rest:
                ratios = [
                    case[value] / case[base]
                    for case in by_case.values()
                    if case.get(base, 0) > 0 and case.get(value, 0) > 0
                ]
                if ratios:
                    found.append(Choice(key, value, base, ratios))
        return found

    def _largest(self) -> list[Choice]:
        """For each key the choice with the largest change; the largest first."""
        by_key: dict[str, Choice] = {}
        for choice in sorted(self.choices, key=lambda choice: -abs(math.log(choice.mean))):
            by_key.setdefault(choice.key, choice)
        return list(by_key.values())[:_SENTENCES]

    def _sentence(self, choice: Choice) -> str:
        return (
            f"{self._named(choice.key)} {choice.value} instead of {choice.base}: {self.head} "
            f"{_change(choice.mean)}{_spread(choice)}."
        )

    def _best(self) -> list[str]:
        """A sentence on the best row of each program."""
        lines = []
        for name, rows in self._programs().items():
            best = self._best_row(rows)
            value, of = self._value(best[self.metric]), f"{name}: " if name else ""
            if len(rows) == 1:
                lines.append(f"{of}{self.head} {value}.")
                continue
            varying = [k for k in self.varying if len({_shown(k, row) for row in rows}) > 1]
            case = ", ".join(f"{self._named(k)} {_shown(k, best)}" for k in varying)
            word = "lowest" if self.better == "less" else "highest"
            lines.append(f"{of}{word} {self.head} {value}{case and f', with {case}'}.")
        more = len(lines) - _SENTENCES
        return lines[:_SENTENCES] + ([f"And {more} more programs."] if more > 0 else [])

    def _named(self, key: str) -> str:
        return self.heads.get(key, key.replace("_", " "))

    def _value(self, value: object) -> str:
        number = _number(value)
        unit, _, per = self.column.unit.partition(" ")  # Such as ``ns per reference``.
        if unit in ("ns", "s"):
            return f"{units.duration(number * (1e9 if unit == 's' else 1))} {per}".strip()
        return units.size(number) if unit == "bytes" else units.digits(number, 4)

    # --- sections

    def _table(self) -> str:
        heads = ["choice", "instead of", "mean change", "lowest", "highest", "pairs"]
        rows = [
            [
                page.prose(f"{self._named(c.key)} {c.value}"),
                page.prose(c.base),
                *(page.prose(_change(r))
                  for r in (c.mean, min(c.ratios), max(c.ratios))),
                page.text(units.count(len(c.ratios))),
            ]
            for c in self.choices
        ]  # fmt: skip
        about = (
            f"<p>Rows of one program that differ in this choice only; {self.better} is better. "
            "Geometric mean, and the range over the pairs.</p>"
        )
        return about + page.table(heads, rows, f"Change of {self.head}")

    def _charts(self) -> str:
        """For each program, a chart of the metric over the key with the most values."""
        # Runs have no order, so they are on the axis only if nothing else varies.
        ordered = sorted(self.varying, key=lambda key: (key == "run", -len(self._values(key))))
        if not ordered or len(self._values(ordered[0])) > _PLACES:
            return ""
        across, *others = ordered
        few = [key for key in others if len(self._values(key)) <= _SERIES]
        series = "run" if "run" in few else next(iter(few), None)
        rest = [key for key in others if key != series]
        body = ""
        for name, rows in self._programs().items():
            # Draw only rows with the best row's values of the other keys. Means over those keys
            # would not be comparable, because not all combinations have rows.
            fixed = {key: _shown(key, self._best_row(rows)) for key in rest}
            rows = [r for r in rows if all(_shown(key, r) == fixed[key] for key in rest)]
            if len({_shown(across, row) for row in rows}) < 2:
                continue
            if len(self.charts) == _CHARTS:
                body += f"<p>Only {_CHARTS} programs are drawn.</p>"
                break
            identifier = f"rows-{len(self.charts)}"
            self.charts[identifier] = self._drawn(rows, across, series)
            over = ", ".join(f"{self._named(key)} {value}" for key, value in fixed.items())
            over = f"with {over}" if over else ""
            caption = ": ".join(filter(None, (name, over))) or f"By {self._named(across)}"
            label = f"{self.head} by {self._named(across)} {name}"
            body += page.chart(identifier, label, f"{caption}.")
        return f'<div class="several">{body}</div>' if body else ""

    def _drawn(self, rows: Sequence[Row], across: str, series: str | None) -> charts.Drawn:
        import altair as alt

        unit = self.column.unit.partition(" ")[0]
        factor = 1e9 if unit == "s" else 1
        groups: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            group = _shown(across, row), _shown(series, row)
            groups.setdefault(group, []).append(factor * _number(row[self.metric]))
        points: list[charts.Datum] = []
        for (value, name), times in groups.items():
            mean = math.fsum(times) / len(times)
            label = page.typeset(self._value(mean / factor))
            points.append({"x": page.typeset(value), "series": name, "value": mean, "label": label})
        given = dict.fromkeys(_shown(across, row) for row in self.measured)
        order = [page.typeset(value) for value in given]
        named = {"ns": charts.TIME_LABEL, "s": charts.TIME_LABEL, "bytes": charts.SIZE_LABEL}
        names = self._values(series) if series else [""]
        drawn = {name for _, name in groups}
        legend = alt.Legend(
            title=self._named(series), orient="top", columns=3, labelLimit=110,
            values=[name for name in names if name in drawn],
        ) if series else None  # fmt: skip
        base = alt.Chart(alt.NamedData("points"))
        is_numeric = all(value[:1].isdigit() for value in given)
        marked = base.mark_line(point=True, strokeWidth=2) if is_numeric else base.mark_bar()
        long = sum(map(len, order)) > 30
        chart = marked.encode(
            x=alt.X("x:O", sort=order, axis=alt.Axis(
                title=self._named(across), labelAngle=-30 if long else 0, labelLimit=140)),
            y=alt.Y("value:Q", scale=alt.Scale(zero=True), axis=alt.Axis(
                title=self.head if unit in named else self.column.axis,
                labelExpr=named.get(unit, charts.COUNT_LABEL), tickCount=6)),
            color=alt.Color("series:N", legend=legend, scale=alt.Scale(
                domain=names, range=palette.cycled(palette.SERIES, len(names)))),
            tooltip=charts.tooltips(
                x=self._named(across), **({"series": self._named(series)} if series else {}),
                label=self.head),
        )  # fmt: skip
        if series and not is_numeric:
            chart = chart.encode(xOffset=alt.XOffset("series:N", sort=names))
        return {"spec": charts.finish(chart, 260), "points": points}

    def _all(self) -> str:
        keys = [*([self.program] if self.program else []), *self.varying]
        heads = [*map(self._named, keys), self.head]
        listed = self.measured[:_ROWS]
        rows = [
            [
                *(page.prose(self._program(row) if key == self.program
                                         else _shown(key, row)) for key in keys),
                page.prose(self._value(row[self.metric])),
            ]
            for row in listed
        ]  # fmt: skip
        table = page.table(heads, rows, f"{self.head}, {self.better} is better")
        if len(listed) < len(self.rows):
            table += (
                f"<p>{len(listed)} of {len(self.rows)} rows; "
                f"for all, see {page.path(self.source)}.</p>"
            )
        return table if len(rows) <= 12 else page.details(f"{len(rows)} rows", table)


def _number(value: object) -> float:
    return float(str(value))


def _shown(key: str | None, row: Mapping[str, object]) -> str:
    return "" if key is None else units.clean(units.keyed(key, row.get(key)))


def _change(ratio: float) -> str:
    """A ratio in words: ``-3.1 %``, ``12 times``."""
    if ratio >= _FACTOR:
        return f"{units.digits(ratio)} times"
    return signed_percent(ratio - 1)


def _differs(result: Runs) -> str:
    """A table of the options that differ between runs, HTML; empty if none does."""
    options = {run.name: record(run).get("options", {}) for run in result.runs}
    names = list(dict.fromkeys(name for given in options.values() for name in given))
    names = [n for n in names if len({str(given.get(n)) for given in options.values()}) > 1]
    if not names:
        return ""
    rows = [
        [page.text(run), *(page.text(written(given.get(name, "-"))) for name in names)]
        for run, given in options.items()
    ]
    return page.table(["run", *(n.replace("_", " ") for n in names)], rows, "Options that differ")


def _spread(choice: Choice) -> str:
    """The range of the ratios, in words; empty if they agree."""
    low, high = min(choice.ratios), max(choice.ratios)
    if len(choice.ratios) == 1 or high / low < 1.005:
        return ""
    return f" ({_change(low)} to {_change(high)} over {len(choice.ratios)} pairs)"
