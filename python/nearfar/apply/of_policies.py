"""Predictions for settings of huge pages, compared with measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nearfar.declared import apply as declared
from nearfar.thp import thp

#: Compares a prediction with a summary of measurements.
Compare = Callable[[Sequence[declared.SummaryRow]], list[declared.PredictionRow]]


def predicted(trace: Path, policy: str, acting: Mapping[int, str], threads: int) -> Compare:
    """Predict the effect of a policy, against the present setting.

    Args:
        trace: of the command.
        policy: as for ``nearfar thp``.
        acting: the present setting of each page size (:func:`nearfar.apply.setting.acting`).
        threads: of the study.
    """
    now = "+".join(
        f"{size >> 10}K={word}" for size, word in acting.items() if word in ("always", "madvise")
    )
    policies = list(dict.fromkeys([now or "never", policy]))
    found = thp(trace, policy=policies, threads=threads)
    by_name = {row["policy"]: row for row in found.rows}
    base, page = by_name[policies[0]], by_name[policy]

    def rows(summary: Sequence[declared.SummaryRow]) -> list[declared.PredictionRow]:
        seconds = [row["total_ns"] * row["references"] / 1e9 for row in (base, page)]
        return [
            prediction_row(
                "seconds",
                (seconds[0], seconds[1]),
                (summary, "seconds"),
                ("ratio", "predicted is time without waiting for files, input and other programs"),
            ),
            prediction_row(
                "peak_rss_bytes",
                (base["peak_bytes"], page["peak_bytes"]),
                (summary, "peak_rss_bytes"),
                ("direction", "predicted is private memory; measured has files too"),
            ),
            prediction_row(
                "faults",
                (base["faults"], page["faults"]),
                (summary, "minor_faults"),
                ("ratio", "predicted are faults on private memory; measured has files too"),
            ),
            prediction_row(
                "stalls",
                (base["stalls"], page["stalls"]),
                (summary, "huge_allocations"),
                (
                    "direction",
                    "predicted are faults of more than 100 us; measured are allocations of "
                    "large pages by all programs",
                ),
            ),
        ]

    return rows


def prediction_row(
    quantity: str,
    values: tuple[float, float],
    measured: tuple[Sequence[declared.SummaryRow], str | None],
    comparison: tuple[str, str],
) -> declared.PredictionRow:
    """A predicted quantity and the nearest measured one.

    Args:
        quantity: its name.
        values: predicted for ``base`` (base pages, or the present setting) and for ``page``.
        measured: the summary, and the nearest quantity in it.
        comparison: how the two can be compared (``ratio``, ``direction``, ``no``), and why.
    """
    (base, page), (summary, nearest), (comparable, why) = values, measured, comparison
    found = next((row for row in summary if row["quantity"] == nearest), None)
    return {
        "quantity": quantity,
        "base": base,
        "page": page,
        "ratio": page / base if base else None,
        "measured": nearest,
        "measured_base": found and found["base"],
        "measured_page": found and found["page"],
        "measured_ratio": found and found["ratio"],
        "comparable": comparable,
        "why": why,
    }
