"""``diff``: two runs of a study, row by row: better, worse or unchanged.

Rows are paired by the keys that the study declares (:class:`nearfar.schema.Rows`); over several
seeds, the mean difference has a confidence interval. docs/report.md has the rules.

>>> found = diff("before.run", "after.run")                     # doctest: +SKIP
>>> found.worse(0.03)                                           # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict, Unpack, cast

from nearfar.columns import integer, number, text
from nearfar.declared import diff as declared
from nearfar.errors import NearfarError, unknown
from nearfar.result import Result
from nearfar.run_folder import Run, open_run
from nearfar.schema import Option, Rows, complete, takes
from nearfar.sizes import list_of

if TYPE_CHECKING:
    import pyarrow

#: Confidence of an interval.
CONFIDENCE: Final = 0.95
#: Relative differences below this are rounding errors.
_ROUNDING: Final = 1e-12

#: A cell of a table, and a row of any study.
Value: TypeAlias = str | float | None
Row: TypeAlias = Mapping[str, Value]
#: A column whose values pair rows. A tuple has the value of its first column that is not null.
KeyColumn: TypeAlias = str | tuple[str, ...]
Key: TypeAlias = tuple[Value, ...]

#: Options of ``diff``; ``make declared`` writes them as ``nearfar.declared.diff``.
OPTIONS: Final = (
    Option(
        "metric",
        "str | Sequence[str] | None",
        "Metrics to compare, separated by commas.",
        shown="the study's first metric",
        metavar="NAMES",
    ),
)

#: The columns that follow the keys in a result.
TABLES: Final = {
    "rows": Rows(
        columns=(
            text("metric", "Name of the compared metric."),
            integer("pairs", "Number of seeds that both runs have."),
            number("a", "Mean of the metric in the first run.", title="A"),
            number("b", "Mean of the metric in the second run.", title="B"),
            number("difference", "Mean of b - a."),
            number(
                "relative",
                "`difference` as a share of a; null if a is 0.",
                "of a",
                nullable=True,
                title="change",
            ),
            number(
                "low",
                "Lower end of the 95 % interval of `relative` over seeds; null for one seed.",
                "of a",
                nullable=True,
                title="95 % interval",
            ),
            number(
                "high",
                "Upper end of the 95 % interval of `relative` over seeds; null for one seed.",
                "of a",
                nullable=True,
            ),
            text("verdict", "The second run against the first: `better`, `worse` or `unchanged`."),
        ),
        keys=("metric",),
        metrics={"relative": "less"},
    ),
}  # fmt: skip


class DiffRun(TypedDict):
    """The two runs."""

    a: str
    b: str
    study: str
    keys: list[str]
    metrics: dict[str, str]
    differs: Mapping[str, list[Value]]
    confidence: float


@dataclass(frozen=True)
class DiffResult(Result):
    """Two runs compared.

    Attributes:
        run: the two folders, the study, keys, metrics, and constants that differ.
        rows: a mapping for each key x metric: the keys, then ``nearfar.declared.diff.Row``.
        only_a, only_b: keys that the other run lacks; with ``metric`` if it lacks only that metric.
    """

    shown = "nearfar.report.diff:diff"
    chart = "nearfar.report.plots.diff:draw"
    plain = ("run", "rows", "only_a", "only_b")

    run: DiffRun
    rows: list[declared.Row]
    only_a: list[Row]
    only_b: list[Row]

    @property
    def table(self) -> pyarrow.Table:
        """The rows."""
        import pyarrow

        return pyarrow.Table.from_pylist(self.rows)

    def worse(self, above: float) -> list[declared.Row]:
        """Rows that are worse by more than ``above``, a share, worst first."""
        rows = [row for row in self.rows if row["verdict"] == "worse" and _size(row) > above]
        return sorted(rows, key=_size, reverse=True)


@takes(OPTIONS)
def diff(a: str | Path, b: str | Path, **options: Unpack[declared.Options]) -> DiffResult:
    """Compare two runs, or two sweeps, of one study.

    Args:
        a: folder of the first run, the base.
        b: folder of the second run.
        {options}

    Raises:
        NearfarError: the folders hold no runs, or runs of different studies; an unknown metric; no
            row in common.
    """
    metric = complete(OPTIONS, options)["metric"]
    first, second = open_run(a), open_run(b)
    if first.study.name != second.study.name:
        raise NearfarError(
            f"{first.path} is of {first.study.name}, {second.path} of {second.study.name}; "
            "compare runs of one study"
        )
    rows_a, rows_b = (run.result.table.to_pylist() for run in (first, second))
    keys, constants = _keys(first, second, rows_a, rows_b)
    chosen = choose(first.columns, metric)
    seed = first.columns.seed
    by_a, by_b = (
        _group(rows, keys, seed, run) for rows, run in ((rows_a, first), (rows_b, second))
    )
    common = [key for key in by_a if key in by_b]
    if not common:
        raise NearfarError(
            f"{first.path}, {second.path}: no row is in both runs (rows are paired by "
            f"{', '.join(map(_label, keys))}); compare runs with the same options"
        )
    names = [_label(key) for key in keys]
    rows: list[declared.Row] = []
    only_a, only_b = (_only(names, by_a, by_b), _only(names, by_b, by_a))
    for key in common:
        named = dict(zip(names, key, strict=True))
        for metric in chosen:
            in_a, in_b = ({s: row[metric] for s, row in by[key].items()} for by in (by_a, by_b))
            compared = compare(metric, in_a, in_b, first.columns.metrics[metric])
            if compared is not None:
                rows.append(cast("declared.Row", {**named, **compared}))
                continue
            # Only one run has a value: in the other, the case may be impossible.
            for values, only in ((in_a, only_a), (in_b, only_b)):
                if any(value is not None for value in values.values()):
                    only.append({**named, "metric": metric})
    run: DiffRun = {
        "a": str(a),
        "b": str(b),
        "study": first.study.name,
        "keys": names,
        "metrics": {name: first.columns.metrics[name] for name in chosen},
        "differs": constants,
        "confidence": CONFIDENCE,
    }
    return DiffResult(run, rows, only_a, only_b)


def _only(names: Sequence[str], mine: Iterable[Key], other: Container[Key]) -> list[Row]:
    """Keys of one run that the other lacks."""
    return [dict(zip(names, key, strict=True)) for key in mine if key not in other]


def choose(columns: Rows, metric: str | Sequence[str] | None) -> list[str]:
    """The requested metrics, the first by default.

    Raises:
        NearfarError: an unknown metric; the message names the nearest.
    """
    known = list(columns.metrics)
    wanted = list_of(metric or known[:1])
    for name in wanted:
        if name not in known:
            raise unknown("--metric: no metric", name, known, "there are:")
    return list(dict.fromkeys(wanted))


def compare(
    metric: str, a: Mapping[Value, Value], b: Mapping[Value, Value], better: str
) -> declared.Row | None:
    """A metric of two rows over their seeds; None if one has no value.

    Args:
        metric: its name.
        a, b: values by seed. Common seeds are paired; without any, the means are compared (Welch).
        better: ``less`` or ``more``.
    """
    in_a, in_b = (
        {seed: float(value) for seed, value in of.items() if value is not None} for of in (a, b)
    )
    if not in_a or not in_b:
        return None
    both = [seed for seed in in_a if seed in in_b]
    xs, ys = ([of[seed] for seed in both or of] for of in (in_a, in_b))
    mean_a, mean_b = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    difference = mean_b - mean_a
    reach = _reach(xs, ys, paired=bool(both))
    scale = abs(mean_a)
    relative = difference / scale if scale else None
    rounding = abs(difference) <= _ROUNDING * max(scale, abs(mean_b))
    within = reach is not None and abs(difference) <= reach
    return {
        "metric": metric,
        "pairs": len(both),
        "a": mean_a,
        "b": mean_b,
        "difference": difference,
        "relative": relative,
        "low": None if reach is None or not scale else (difference - reach) / scale,
        "high": None if reach is None or not scale else (difference + reach) / scale,
        "verdict": "unchanged"
        if rounding or within
        else "better"
        if (difference < 0) == (better == "less")
        else "worse",
    }


def _reach(xs: Sequence[float], ys: Sequence[float], paired: bool) -> float | None:
    """Half the confidence interval of the mean difference (Student's t; unpaired, Welch's).

    None for too few values.
    """
    import numpy as np
    from scipy import stats

    if paired:
        if len(xs) < 2:
            return None
        steps = np.subtract(ys, xs)
        error = float(np.std(steps, ddof=1)) / math.sqrt(len(steps))
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(steps) - 1)) * error
    if len(xs) < 2 or len(ys) < 2:
        return None
    parts = [float(np.var(v, ddof=1)) / len(v) for v in (xs, ys)]
    if not sum(parts):
        return 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(v) - 1) for part, v in zip(parts, (xs, ys), strict=True)
    )
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(sum(parts))


def flat(run: Run) -> tuple[list[Row], list[str]]:
    """The rows of a run, with keys and metrics only, and the names of the key columns."""
    keys = {_label(key): key for key in run.columns.keys}
    if run.columns.seed is not None and run.columns.seed in run.result.table.column_names:
        keys[run.columns.seed] = run.columns.seed
    rows: list[Row] = [
        {
            **{name: value_of(row, key) for name, key in keys.items()},
            **{name: row.get(name) for name in run.columns.metrics},
        }
        for row in run.result.table.to_pylist()
    ]
    return rows, list(keys)


def _size(row: declared.Row) -> float:
    """The size of a relative difference; infinite if the first run has 0."""
    return math.inf if row["relative"] is None else abs(row["relative"])


def value_of(row: Row, key: KeyColumn) -> Value:
    """The value of a key in a row; of several columns, the first that is not null, as text."""
    for name in [key] if isinstance(key, str) else key:
        value = row.get(name)
        if value is not None:
            if isinstance(key, str):
                return value
            return f"{value:g} B" if name.endswith("_bytes") else f"{100 * value:g}%"
    return None


def _label(key: KeyColumn) -> str:
    """The name of a key; of several columns, their prefix (``memory`` for ``memory_bytes``)."""
    return key if isinstance(key, str) else key[0].partition("_")[0]


def _keys(
    first: Run, second: Run, rows_a: Sequence[Row], rows_b: Sequence[Row]
) -> tuple[list[KeyColumn], dict[str, list[Value]]]:
    """The keys that pair rows, and the values of keys that are constant in each run but differ.

    These constants, such as the machine, are what the runs compare, so they do not pair rows.
    """
    listed = list(dict.fromkeys([*first.columns.keys, *second.columns.keys]))
    keys: list[KeyColumn] = []
    constants: dict[str, list[Value]] = {}
    for key in listed:
        in_a, in_b = ({value_of(row, key) for row in rows} for rows in (rows_a, rows_b))
        if len(in_a) == 1 and len(in_b) == 1 and in_a != in_b:
            constants[_label(key)] = [*in_a, *in_b]
        elif len(in_a) > 1 or len(in_b) > 1:
            keys.append(key)
    return keys, constants


def _group(
    rows: Sequence[Row], keys: Sequence[KeyColumn], seed: str | None, run: Run
) -> dict[Key, dict[Value, Row]]:
    """Rows by key and seed."""
    groups: dict[Key, dict[Value, Row]] = {}
    for row in rows:
        key = tuple(value_of(row, name) for name in keys)
        by_seed = groups.setdefault(key, {})
        which = row.get(seed) if seed else None
        if which in by_seed:
            raise NearfarError(
                f"{run.path}: two rows have the same keys: {', '.join(map(str, key))}"
            )
        by_seed[which] = row
    return groups
