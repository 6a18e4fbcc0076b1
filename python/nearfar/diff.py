"""``diff``: two runs of a study, row by row: better, worse or unchanged.

Rows are paired by what the study declares as keys (:class:`nearfar.result.Rows`); over seeds the
mean difference comes with its confidence interval. docs/report.md has the rules.

>>> found = diff("before.run", "after.run")                     # doctest: +SKIP
>>> found.worse(0.03)                                           # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from nearfar.declared import diff as declared
from nearfar.errors import NearfarError, unknown
from nearfar.result import Result
from nearfar.run_folder import Run, open_run
from nearfar.schema import Column, Option, Rows, complete, takes
from nearfar.sizes import list_of

#: How sure an interval is.
CONFIDENCE: Final = 0.95
#: Differences below this share are the last digits of the arithmetic.
_NOTHING: Final = 1e-12

Key = tuple[Any, ...]
Row = Mapping[str, Any]

#: What ``diff`` takes; ``make declared`` writes it as ``nearfar.declared.diff``.
OPTIONS: Final = (
    Option(
        "metric",
        "str | Sequence[str] | None",
        "Metrics of the study, separated by commas.",
        shown="its first",
        metavar="NAMES",
    ),
)

#: A metric of two rows, after the keys that pair them; written as the options are.
TABLES: Final = {
    "rows": Rows(
        columns=(
            Column("metric", "string", False, "", "The number compared."),
            Column("pairs", "int64", False, "", "Seeds that both have."),
            Column("a", "double", False, "", "Mean of the first run.", "A"),
            Column("b", "double", False, "", "Mean of the second run.", "B"),
            Column("difference", "double", False, "", "Mean of b - a."),
            Column("relative", "double", True, "of a", "The same as a share; null where a is 0.",
                   "change"),
            Column("low", "double", True, "of a", "Lower end of the 95 % interval of `relative` "
                   "over seeds; null for one seed.", "95 % interval"),
            Column("high", "double", True, "of a", "Its upper end."),
            Column("verdict", "string", False, "", "`better`, `worse` or `unchanged`."),
        ),
        keys=("metric",),
        metrics={"relative": "less"},
    ),
}  # fmt: skip


class DiffRun(TypedDict):
    """What was compared."""

    a: str
    b: str
    study: str
    keys: list[str]
    metrics: dict[str, str]
    differs: Mapping[str, Any]
    confidence: float


@dataclass(frozen=True)
class DiffResult(Result):
    """Two runs compared.

    Attributes:
        run: the two folders, the study, keys, metrics, and constants that differ.
        rows: a mapping for each key x metric: the keys, then ``nearfar.declared.diff.Row``.
        only_a, only_b: keys that the other run lacks; with ``metric``, where it lacks that number.
    """

    shown = "nearfar.report.diff:diff"
    chart = "nearfar.report.plots.diff:draw"
    plain = ("run", "rows", "only_a", "only_b")

    run: DiffRun
    rows: list[Row]
    only_a: list[Row]
    only_b: list[Row]

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        import pyarrow

        return pyarrow.Table.from_pylist(self.rows)

    def worse(self, above: float) -> list[Row]:
        """Rows that are worse by more than ``above``, a share, worst first."""
        rows = [row for row in self.rows if row["verdict"] == "worse" and _size(row) > above]
        return sorted(rows, key=_size, reverse=True)


@takes(OPTIONS)
def diff(a: str | Path, b: str | Path, **options: Unpack[declared.Options]) -> DiffResult:
    """Compare two runs, or two sweeps, of one study.

    Args:
        a: folder of the first run: what is compared with.
        b: folder of the second run.
        {options}

    Raises:
        NearfarError: no runs there, runs of different studies, no such metric, or no row in common.
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
            f"{first.path}, {second.path}: no row of one is a row of the other (by "
            f"{', '.join(map(_label, keys))}); compare runs with the same options"
        )
    names = [_label(key) for key in keys]
    rows: list[Row] = []
    only_a, only_b = (_only(names, by_a, by_b), _only(names, by_b, by_a))
    for key in common:
        named = dict(zip(names, key, strict=True))
        for metric in chosen:
            in_a, in_b = ({s: row[metric] for s, row in by[key].items()} for by in (by_a, by_b))
            compared = compare(metric, in_a, in_b, first.columns.metrics[metric])
            if compared is not None:
                rows.append({**named, **compared})
                continue
            # A number that only one of them has, such as the time of what is not possible.
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
    """The metrics asked for, the first by default.

    Raises:
        NearfarError: there is no such metric; the message names the nearest.
    """
    known = list(columns.metrics)
    if isinstance(metric, str):
        metric = list_of(metric)
    for name in metric or []:
        if name not in known:
            raise unknown("--metric: no metric", name, known, "there are:")
    return list(dict.fromkeys(metric)) if metric else known[:1]


def compare(
    metric: str, a: Mapping[Any, Any], b: Mapping[Any, Any], better: str
) -> declared.Row | None:
    """A metric of two rows over their seeds; None where one has no value at all.

    Args:
        metric: its name.
        a: value by seed; b: the same. Seeds of both are paired; without a common one the means are
            compared (Welch).
        better: ``less`` or ``more``.
    """
    a = {seed: float(value) for seed, value in a.items() if value is not None}
    b = {seed: float(value) for seed, value in b.items() if value is not None}
    if not a or not b:
        return None
    both = [seed for seed in a if seed in b]
    xs, ys = (
        ([a[seed] for seed in both], [b[seed] for seed in both])
        if both
        else (list(a.values()), list(b.values()))
    )
    mean_a, mean_b = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    difference = mean_b - mean_a
    reach = _reach(xs, ys, paired=bool(both))
    scale = abs(mean_a)
    relative = difference / scale if scale else None
    nothing = abs(difference) <= _NOTHING * max(scale, abs(mean_b))
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
        if nothing or within
        else "better"
        if (difference < 0) == (better == "less")
        else "worse",
    }


def _reach(xs: Sequence[float], ys: Sequence[float], paired: bool) -> float | None:
    """Half the width of the interval of the mean difference; None for too few values."""
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
    """Rows of a run with one column a key, and the names of these; metrics are kept as they are."""
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


def _size(row: Row) -> float:
    """How large a difference is; from nothing to something is more than any share."""
    return math.inf if row["relative"] is None else abs(float(row["relative"]))


# --- keys


def value_of(row: Row, key: str | tuple[str, ...]) -> Any:
    """The value of a key in a row; of several columns the first that is not null."""
    for name in [key] if isinstance(key, str) else key:
        if row.get(name) is not None:
            value = row[name]
            if isinstance(key, str):
                return value
            return f"{value:g} B" if name.endswith("_bytes") else f"{100 * value:g}%"
    return None


def _label(key: str | tuple[str, ...]) -> str:
    return key if isinstance(key, str) else key[0].partition("_")[0]


def _keys(
    first: Run, second: Run, rows_a: Sequence[Row], rows_b: Sequence[Row]
) -> tuple[list[str | tuple[str, ...]], dict[str, list[Any]]]:
    """What rows are paired by; and keys that have one value in each run, not the same one.

    These are what the two runs were made to compare, so they do not pair anything.
    """
    listed = list(dict.fromkeys([*first.columns.keys, *second.columns.keys]))
    keys: list[str | tuple[str, ...]] = []
    constants: dict[str, list[Any]] = {}
    for key in listed:
        in_a, in_b = ({value_of(row, key) for row in rows} for rows in (rows_a, rows_b))
        if len(in_a) == 1 and len(in_b) == 1 and in_a != in_b:
            constants[_label(key)] = [*in_a, *in_b]
        elif len(in_a) > 1 or len(in_b) > 1:
            keys.append(key)
    return keys, constants


def _group(
    rows: Sequence[Row], keys: Sequence[str | tuple[str, ...]], seed: str | None, run: Run
) -> dict[Key, dict[Any, Row]]:
    """Rows by key and seed."""
    found: dict[Key, dict[Any, Row]] = {}
    for row in rows:
        key = tuple(value_of(row, name) for name in keys)
        of_seed = found.setdefault(key, {})
        which = row.get(seed) if seed else None
        if which in of_seed:
            raise NearfarError(
                f"{run.path}: two rows of {', '.join(map(str, key))}; they cannot be told apart"
            )
        of_seed[which] = row
    return found
