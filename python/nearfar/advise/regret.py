"""How good advice is over many rows of :mod:`nearfar.advise`: regret against the goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

#: Goals of ``--evaluate`` (regret at the median, at the 95th percentile): fitted on all sizes, on
#: fewer.
GOALS: Final = {"all": (0.02, 0.05), "few": (0.05, 0.10)}


def evaluate(rows: Iterable[Mapping[str, Any]], sizes: str = "all") -> dict[str, Any]:
    """Regret over many rows: in all and by storage, against the goals; which rows exceed them.

    ``regret`` is that of the advice, threshold included; ``model_regret`` that of the page the
    model would take without one. The goals are for the model's page: what a threshold costs is not
    the model's doing, and is at most its share.

    Returns:
        ``summary``: a mapping a group (``all`` and each ``MACHINE/STORAGE``) with ``rows``,
        ``median``, ``p95``, ``worst`` of the model's page, ``advised_median``, ``advised_p95``,
        ``advised_worst``, ``papers`` (rows that used the papers' forms), ``exceed`` (rows above the
        goal at the 95th percentile) and ``holds``; ``exceeding``: those rows, worst first.
    """
    listed = list(rows)
    median, high = GOALS["all" if sizes == "all" else "few"]
    groups: dict[str, list[Mapping[str, Any]]] = {"all": listed}
    for row in listed:
        groups.setdefault(f"{row['machine']}/{row['storage']}", []).append(row)
    summary = []
    for name, members in groups.items():
        model = np.array([row["model_regret"] for row in members])
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
    kept = ("vm", "workload", "memory_fraction", "machine", "storage", "model_page_bytes")
    worst = sorted(
        (row for row in listed if row["model_regret"] > high), key=lambda row: -row["model_regret"]
    )
    return {
        "goal_median": median,
        "goal_p95": high,
        "summary": summary,
        "exceeding": [
            {k: row[k] for k in (*kept, "best_page_bytes", "model_regret")} for row in worst
        ],
    }
