"""Evaluates advice over many rows of :mod:`nearfar.advise`: regret against the goals.

Regret: simulated time of the chosen page size / that of the best - 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypedDict

import numpy as np

from nearfar.declared import advise as declared
from nearfar.errors import NearfarError

#: Goals of ``--evaluate``: median and 95th percentile of regret, with all ``--sizes`` and fewer.
GOALS: Final = {"all": (0.02, 0.05), "few": (0.05, 0.10)}

NO_REGRET: Final = (
    "--evaluate: compares a model with the simulation, but --view machine has no model; "
    "use --view paper"
)


class Group(TypedDict):
    """Regret over the rows of a group: ``all``, or a ``MACHINE/STORAGE``.

    ``median``, ``p95`` and ``worst`` are of the model's page (``model_regret``). ``papers``: rows
    predicted by the papers' formulas. ``exceed``: rows above the goal at the 95th percentile.
    """

    group: str
    rows: int
    median: float
    p95: float
    worst: float
    advised_median: float
    advised_p95: float
    advised_worst: float
    papers: int
    exceed: int
    holds: bool


class Exceeding(TypedDict):
    """A row above the goal at the 95th percentile."""

    vm: str
    workload: str
    memory_fraction: float | None
    machine: str
    storage: str
    model_page_bytes: int
    best_page_bytes: int
    model_regret: float


class Evaluation(TypedDict):
    """The goals, regret by group, and the rows that exceed the goals, worst first."""

    goal_median: float
    goal_p95: float
    summary: list[Group]
    exceeding: list[Exceeding]


def evaluate(rows: Iterable[declared.Row], sizes: str = "all") -> Evaluation:
    """Regret over all rows and by machine and storage, and the rows that exceed the goals.

    The goals are for the model's page (``model_regret``). The advised page is 4 KiB if the
    predicted gain is below ``min_gain``, which intentionally adds up to about that much regret.

    Raises:
        NearfarError: the rows are of ``--view machine``, which has no model.
    """
    listed = list(rows)
    median, high = GOALS["all" if sizes == "all" else "few"]
    groups: dict[str, list[declared.Row]] = {"all": listed}
    for row in listed:
        groups.setdefault(f"{row['machine']}/{row['storage']}", []).append(row)
    summary: list[Group] = []
    for name, members in groups.items():
        model = np.array([_regret(row) for row in members])
        advised = np.array([row["regret"] for row in members])
        middle, p95 = float(np.median(model)), float(np.quantile(model, 0.95))
        summary.append(
            {
                "group": name,
                "rows": len(members),
                "median": middle,
                "p95": p95,
                "worst": float(model.max()),
                "advised_median": float(np.median(advised)),
                "advised_p95": float(np.quantile(advised, 0.95)),
                "advised_worst": float(advised.max()),
                "papers": sum(row["model"] == "papers" for row in members),
                "exceed": int((model > high).sum()),
                "holds": bool(middle <= median and p95 <= high),
            }
        )
    worst = sorted((row for row in listed if _regret(row) > high), key=lambda row: -_regret(row))
    return {
        "goal_median": median,
        "goal_p95": high,
        "summary": summary,
        "exceeding": [
            {
                "vm": row["vm"],
                "workload": row["workload"],
                "memory_fraction": row["memory_fraction"],
                "machine": row["machine"],
                "storage": row["storage"],
                # The page of `model_regret`; never null here.
                "model_page_bytes": row["judged_page_bytes"] or row["model_page_bytes"],
                "best_page_bytes": row["best_page_bytes"],
                "model_regret": _regret(row),
            }
            for row in worst
        ],
    }


def _regret(row: declared.Row) -> float:
    if row["model_regret"] is None:
        raise NearfarError(NO_REGRET)
    return row["model_regret"]
