"""The page of ``nearfar advise``: a row for each VM; choosing one shows its curve and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from nearfar import units
from nearfar.advise import AdviseResult
from nearfar.advise.architectures import MECHANISMS
from nearfar.advise.host import hosts
from nearfar.advise.one_vm import Advice
from nearfar.declared import advise as declared
from nearfar.paging_findings import USUAL_PAGE
from nearfar.report import palette
from nearfar.report.advise import confidence, confidence_head, memory
from nearfar.report.cells import signed_percent
from nearfar.report.html import charts, page
from nearfar.report.html.explain import sizes

_SIGNS = {"good": "\u2713", "fair": "~", "poor": "\u2717", "unknown": "?"}

#: The last columns of the table of advice.
_LAST: Final = (
    "settable_page_bytes", "workload", "storage", "predicted_ns", "simulated_ns",
    "baseline_4k_ns", "regret",
)  # fmt: skip
#: Heads of the table of a curve, in the order of ``advise.js``.
_HEADS: Final = declared.CURVE_ROWS.heads(
    "page_bytes", "predicted_ns", "simulated_ns", "translation_ns", "data_ns", "fitted"
)
_GLOSSARY = (
    (
        "page",
        "The advised page size: that with the lowest predicted time, if it gains enough; "
        "else 4 KiB.",
    ),
    ("set", "The nearest size that can be set on this architecture."),
    ("predicted", "Time per reference by the model, from the page sizes simulated for it."),
    ("simulated", "Time per reference by simulation of the whole trace."),
    ("gain", "Share of the 4 KiB page's predicted time that the advised page saves."),
    ("regret", "How much longer the advised page takes than the simulation's best."),
    ("fit", "Confidence in the advice, from the error of the model at held-out page sizes."),
    ("gain error", "With --view machine: the possible error of the predicted gain."),
    (
        "limit",
        "What a reference with the advised page mainly waits for, beyond a TLB hit and one memory "
        "access. With --view machine: the largest part of the time.",
    ),
)


class AdvisePage(page.Page[AdviseResult]):
    """Advice for one or many VMs."""

    title = "Page sizes - nearfar"
    kicker = "nearfar: advise"
    heading = "Which page size should each virtual machine be given?"
    limit = 200
    row_name = "VMs"
    glossary = _GLOSSARY
    scripts = ("common.js", "advise.js")

    def __init__(self, result: AdviseResult) -> None:
        """Write the headline."""
        rows = result.rows
        super().__init__(result, result.run, len(rows))
        traces = {row["trace"] for row in rows}
        self.one_trace = len(traces) == 1 and result.run.get("fleet") is None
        self.headline = summary(rows, "cases" if self.one_trace else "virtual machines")
        self.more = [f"Host {host.machine}: {host.sentence}" for host in hosts(result.run, rows)]
        if self.one_trace:
            self.heading = f"How big should the pages of <code>{page.name(*traces)}</code> be?"

    def _sections(self) -> list[str]:
        rows = self.result.rows
        title = "Advice" if self.one_trace else "Virtual machines"
        caption = f"Advised page size{'' if self.one_trace else ' of each virtual machine'}"
        fleet = page.section("fleet", title, _table(rows, caption), wide=True)
        if not rows:
            return [fleet]
        chart = page.chart(
            "curve",
            "Predicted and simulated time per reference against page size",
            "Line: predicted. Circles: simulated, at page sizes of the fit; crosses: at "
            "other sizes. Dashed: 4 KiB, advised, best.",
        )
        numbers = page.details("The numbers", '<div id="curve-table"></div>')
        parts = [
            fleet,
            page.section("curve", "Time per reference by page size", chart + numbers),
            page.section("why", "Why", '<div id="why-text" aria-live="polite"></div>'),
        ]
        found = [row for row in rows if row["regions"]]
        if found:
            body = "".join(
                f"<h3>{page.text(row['vm'])}</h3>{sizes(row['regions'])}" for row in found
            )
            parts.append(page.section("regions", "Which page size, by region", body, wide=True))
        return parts

    def _provenance(self) -> str:
        # Machine files are long: only their names are shown. The saved result has all of them.
        run = self.result.run
        return page.run_facts({**run, "machines": list(run.get("machines", {}))})

    def _data(self) -> dict[str, object]:
        rows = self.result.rows
        sizes = sorted({point["page_bytes"] for row in rows for point in row["curve"]})
        drawn = {"curve": {"spec": charts.advice(sizes or [USUAL_PAGE]), "heads": _HEADS}}
        model = {"vms": list(map(_vm, rows)), "charts": drawn}
        return {"result": self.result.to_dict(), "model": model}


def summary(rows: Sequence[Advice], what: str) -> str:
    """One sentence about all rows; ``what`` names them, such as "virtual machines"."""
    if not rows:
        return "There are no virtual machines."
    if len(rows) == 1:
        return _sentence(rows[0])
    other = [row for row in rows if row["advised_page_bytes"] != USUAL_PAGE]
    count = f"{len(rows)} {what}"
    if not other:
        return f"{count}: 4 KiB for all, as no other page size gains enough."
    mean = sum(row["gain"] for row in other) / len(other)
    best = max(other, key=lambda row: row["gain"])
    kind = "larger" if all(row["advised_page_bytes"] > USUAL_PAGE for row in other) else "other"
    return (
        f"{len(other)} of {count} should use {kind} pages and save {units.percent(mean)} of the "
        f"time per reference on average, {units.percent(best['gain'])} at most "
        f"({units.clean(best['vm'])})."
    )


def _sentence(row: Advice) -> str:
    size = units.size(row["advised_page_bytes"])
    if row["advised_page_bytes"] == USUAL_PAGE:
        return f"{size}, as no other page size gains enough."
    return f"{size} saves {units.percent(row['gain'])} of the time with {units.size(USUAL_PAGE)}."


def _table(rows: Sequence[Advice], caption: str) -> str:
    pages = sorted({row["advised_page_bytes"] for row in rows})
    colours = dict(zip(pages, palette.ramp(len(pages), 0.0, 1.0), strict=True)) if pages else {}
    guest = ["guest_memory_bytes"] if any(row["guest_memory_bytes"] for row in rows) else []
    cells = []
    for index, (row, last_cells) in enumerate(
        zip(rows, page.cells(declared.ROWS, _LAST, rows), strict=True)
    ):
        back = colours[row["advised_page_bytes"]]
        word = confidence(row)
        known = word if word in _SIGNS else "unknown"
        sign = f"{_SIGNS[known]} " if row["confidence"] else ""
        cells.append(
            [
                f'<button type="button" class="pick" data-vm="{index}" aria-pressed="false">'
                f"{page.text(row['vm'])}</button>",
                f'<span class="size" style="background:{back};color:{palette.ink(back)}">'
                f"{page.prose(units.size(row['advised_page_bytes']))}</span>",
                page.prose(units.percent(row["gain"])),
                *(page.prose(units.size(row["guest_memory_bytes"] or 0)) for _ in guest),
                page.prose(memory(row)),
                f'<span class="verdict {known}">{sign}{page.prose(word)}</span>',
                *last_cells,
            ]
        )
    # A phone shows only the first columns without scrolling.
    first = declared.ROWS.heads("vm", "advised_page_bytes", "gain", *guest, "memory_bytes")
    last = declared.ROWS.heads(*_LAST)
    choose = "<p>Choose a row to see its curve and reasons.</p>" if len(rows) > 1 else ""
    return choose + page.table([*first, confidence_head(rows), *last], cells, caption)


class Curve(TypedDict):
    """The data of the chart of one VM."""

    name: str
    curve: list[charts.Datum]
    marks: list[charts.Datum]


def curve(row: Advice) -> Curve:
    """The data of the chart of one VM; marks at the same size share a label."""
    marks: dict[int, list[str]] = {}
    named = (("4 KiB", USUAL_PAGE), ("advised", row["advised_page_bytes"]))
    for name, size in (*named, ("best", row["best_page_bytes"])):
        marks.setdefault(size, []).append(name)
    return {
        "name": units.clean(row["vm"]),
        "curve": [_point(point) for point in row["curve"]],
        "marks": [
            {"page": size, "place": i, "text": " = ".join(names)}
            for i, (size, names) in enumerate(sorted(marks.items()))
        ],
    }


def _vm(row: Advice) -> Mapping[str, object]:
    """The chart's data and the texts of one VM, for the script."""
    facts = [
        ("limit", row["limit"]),
        ("model", f"{row['model']}: {row['model_reason']}"),
        ("set", f"{units.size(row['settable_page_bytes'])}, {MECHANISMS[str(row['mechanism'])]}"),
        ("best simulated", f"{units.size(row['best_page_bytes'])}: "
                           f"{units.duration(row['best_ns'])}"),
    ]  # fmt: skip
    if row["confidence"] is not None:
        facts += [
            ("simulated for the model", ", ".join(map(units.size, row["fitted_page_bytes"]))),
            ("extra time with the settable size", signed_percent(row["settable_price"])),
        ]
    return {
        **curve(row),
        "why": page.typeset(units.clean(row["why"])),
        "facts": [[name, page.typeset(units.clean(value))] for name, value in facts],
    }


def _point(point: declared.CurveRow) -> charts.Datum:
    return {
        "page": point["page_bytes"],
        "page_label": page.typeset(units.size(point["page_bytes"])),
        "predicted": page.number(point["predicted_ns"]),
        "simulated": page.number(point["simulated_ns"]),
        "fitted": "fitted size" if point["fitted"] else "other size",
        "predicted_label": page.typeset(units.duration(point["predicted_ns"])),
        "simulated_label": page.typeset(units.duration(point["simulated_ns"])),
        "translation_label": page.typeset(units.duration(point["translation_ns"])),
        "data_label": page.typeset(units.duration(point["data_ns"])),
    }
