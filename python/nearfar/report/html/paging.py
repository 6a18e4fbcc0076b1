"""The page of the paging study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from nearfar import paging_answers as answers
from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import paging as declared
from nearfar.info import Content, HeatMap
from nearfar.memory_curve import Memory, MemoryCurve, allowed_slowdown
from nearfar.paging import PagingResult, too_few_frames
from nearfar.report import palette
from nearfar.report.cells import optional, signed_percent
from nearfar.report.html import charts, heat, page
from nearfar.report.html import memory as memory_chart
from nearfar.report.tables import change
from nearfar.trace import facts

#: Colours of the parts of a time in the papers' model (``--view paper``), which the page's colour
#: scheme sets.
_MODELLED: Final = {"translation_ns": "var(--translation)", "data_ns": "var(--data)"}
#: Colours of ``findings.PARTS``, the parts of a time with ``--view machine``.
_SPENT: Final = (
    "#8a8f99",
    *(
        palette.OKABE_ITO[c]
        for c in ("sky", "blue", "green", "orange", "vermillion", "purple", "yellow")
    ),
)
_GLOSSARY = (
    ("page", "The unit in which memory is mapped, faulted in and evicted."),
    (
        "memory size",
        "Near memory that the program may use; a percentage is of its peak resident set, or of its "
        "footprint if the trace does not say when memory is freed.",
    ),
    ("peak resident set", "The largest memory of the program at any time, in pages of 4 KiB."),
    ("footprint", "All memory that the program touched, in pages of 4 KiB."),
    ("page fault", "A reference to a page that is not in near memory: it is read from storage."),
    ("fault rate", "Page faults divided by references."),
    ("TLB", "The processor's cache of address translations; a miss costs a walk of page tables."),
    ("translation time", "Time per reference to translate its address."),
    ("data time", "Time per reference to reach its data, including storage if it faults."),
    ("R²", "Share of the points' variation that the fit explains; 1 is all of it."),
    ("RMSE", "Typical distance of a simulated point from the curve, in units of the rate."),
    ("leave-one-out error", "The RMSE at page sizes that were left out of the fit."),
)


class PagingPage(page.Page[PagingResult]):
    """The paging study: the best page, its times and rates, the fits.

    Args:
        result: the result.
        heatmap: the trace's heat map.
        info: the summary of the trace.

    Raises:
        NearfarError: the shape of the heat map does not match its bins.
    """

    kicker = "nearfar: paging study"
    glossary = _GLOSSARY
    hidden = ("too_few_frames",)
    csv = True

    def __init__(
        self, result: PagingResult, heatmap: HeatMap | None = None, info: Content | None = None
    ) -> None:
        """Make the script's data."""
        # With several machines, storages are renamed to ``machine/storage``, except in ``saved``.
        super().__init__(findings.with_machine_names(result), result.run)
        self.saved, self.heatmap, self.info = result, heatmap, info
        self.model = model(self.result)
        trace = result.run.get("trace", "")
        self.title = f"Page size for {trace} - nearfar"
        self.heading = f"How big should the pages of <code>{page.name(trace)}</code> be?"
        first = self.model["cells"].get(self.model["initial"])
        self.headline = first["sentence"] if first else ""
        self.scripts = ("common.js", "paging.js")

    def _lead(self) -> str:
        lines = map(page.prose, answers.answers(self.result))
        lead = f'<p class="answers">{"<br>".join(lines)}</p>'
        for line in too_few_frames(self.result.run):
            lead += f'<p class="note">{page.prose(line[0].upper() + line[1:])}.</p>'
        memories = findings.memories(self.result)
        if not memories:
            return super()._lead() + lead
        chosen = memories.index(findings.answered_memory(self.result))
        return (
            f'{lead}<div class="controls">'
            + _select("memory", "Memory", [_memory_label(m) for m in memories], chosen)
            + _select("storage", "Storage", findings.storages(self.result), 0)
            + "</div>"
            + super()._lead()
        )

    def _sections(self) -> list[str]:
        result, parts = self.result, []
        if findings.memories(result):
            series = "Fault rate against page size, a series for each memory size"
            single = f"TLB miss rate against page size{findings.of_first_machine(result)}"
            curves = answers.memory_curves(result)
            parts = [
                *([_memory_section(result, curves)] if curves else []),
                _times(result),
                _grid(result),
                _rates(result, "faults", "Page faults", "fault_rate", series),
                _rates(result, "tlb", "TLB misses", "tlb_miss_rate", single),
            ]
        if self.heatmap is not None:
            parts.append(heat.section(self.heatmap))
        if result.fits:
            title = f"Fitted curves{findings.of_first_machine(result)}"
            parts.append(page.section("fits", title, _fits(result), wide=True))
        return parts

    def _provenance(self) -> str:
        if self.info is None:
            return super()._provenance()
        rows = ((name, page.prose(value)) for name, value in facts(self.info))
        return f"{super()._provenance()}<h3>The trace</h3>{page.definitions(rows)}"

    def _data(self) -> dict[str, object]:
        return {"result": self.saved.to_dict(), "model": self.model}


def _memory_section(result: PagingResult, curves: Sequence[MemoryCurve]) -> str:
    pages = units.size(answers.curve_page(result))
    most = units.size(curves[0].whole.bytes)
    caption = f"With pages of {pages}; 1 is the time with {most}."
    return memory_chart.section(curves, "How much memory", caption)


def _memory_label(memory: Memory) -> str:
    if memory.fraction is None:
        return memory.label
    return f"{memory.label} ({units.size(memory.bytes)})"


def _select(identifier: str, label: str, options: list[str], chosen: int) -> str:
    inner = "".join(
        f'<option value="{i}"{" selected" if i == chosen else ""}>{page.prose(option)}</option>'
        for i, option in enumerate(options)
    )
    return (
        f'<label for="{identifier}">{page.text(label)}</label>'
        f'<select id="{identifier}" autocomplete="off">{inner}</select>'
    )


def _check(identifier: str, label: str, on: bool) -> str:
    return (
        f'<label class="check"><input type="checkbox" id="{identifier}" autocomplete="off"'
        f"{' checked' if on else ''}> {page.text(label)}</label>"
    )


class Cell(TypedDict):
    """The data of a memory size and storage: the finding, and a row for each page size."""

    sentence: str
    rows: list[charts.Datum]


class Times(charts.Drawn):
    """The chart of times, and the columns of its parts with their heads."""

    parts: list[tuple[str, str]]


class Model(TypedDict):
    """The script's data; ``initial`` is the key of the cell that is shown first."""

    initial: str
    cells: dict[str, Cell]
    charts: dict[str, charts.Drawn]


def model(result: PagingResult) -> Model:
    """The script's data. All texts are made here, so that page and tables agree."""
    memories, storages = findings.memories(result), findings.storages(result)
    best = findings.best_pages(result)
    rows: dict[tuple[Memory, str], list[declared.Row]] = {}
    for row in sorted(result.rows, key=lambda row: row["page_bytes"]):
        rows.setdefault((findings.memory_of(row), row["storage"]), []).append(row)
    parts = _parts(result)
    cells: dict[str, Cell] = {
        f"{m},{s}": {
            "sentence": page.typeset(best[memory, storage].sentence),
            "rows": [
                _time_row(row, best[memory, storage], list(parts)) for row in rows[memory, storage]
            ],
        }
        for m, memory in enumerate(memories)
        for s, storage in enumerate(storages)
        if (memory, storage) in rows
    }
    drawn: dict[str, charts.Drawn] = {}
    if findings.page_sizes(result):
        drawn = {
            "times": times(result),
            "faults": _rate_chart(result, "fault", "fault_rate", len(memories)),
            "tlb": _rate_chart(result, "tlb", "tlb_miss_rate", 1),
        }
    if curves := answers.memory_curves(result):
        limit = allowed_slowdown(result.run, declared.OPTIONS)
        drawn["enough"] = memory_chart.drawn(curves, limit, memory_chart.STORAGES)
    initial = f"{memories.index(findings.answered_memory(result)) if memories else 0},0"
    return {"initial": initial, "cells": cells, "charts": drawn}


def _parts(result: PagingResult) -> dict[str, str]:
    """The columns that add up to the time of a reference, and their colours."""
    machine_view = bool(result.rows) and result.rows[0].get("cpu_ns") is not None
    return dict(zip(findings.PARTS, _SPENT, strict=True)) if machine_view else _MODELLED


def times(result: PagingResult) -> Times:
    """The chart of times, without its data."""
    parts = _parts(result)
    heads = {name: declared.ROWS.head(name) for name in parts}
    colours = None if parts is _MODELLED else list(parts.values())
    labels = [page.typeset(units.size(p)) for p in findings.page_sizes(result)]
    return {
        "spec": charts.times(labels, heads, colours),
        "parts": list(heads.items()),
        "heads": [
            declared.ROWS.head("page_bytes"),
            *heads.values(),
            declared.ROWS.head("total_ns"),
            "vs 4 KiB",
        ],
    }


def _time_row(row: declared.Row, best: findings.Best, parts: Sequence[str]) -> charts.Datum:
    versus = ""
    if best.usual is not None and best.usual["total_ns"]:
        changed = signed_percent(row["total_ns"] / best.usual["total_ns"] - 1)
        versus = "the same" if row["page_bytes"] == findings.USUAL_PAGE else changed
    times: dict[str, float] = {name: row[name] for name in (*parts, "total_ns")}  # type: ignore[literal-required]
    return {
        "label": page.typeset(units.size(row["page_bytes"])),
        "best": row["page_bytes"] == best.page_bytes,
        "versus_label": page.typeset(versus),
        **{name: page.number(time) for name, time in times.items()},
        **{f"{name}_label": page.typeset(units.duration(time)) for name, time in times.items()},
    }


def _rate_chart(
    result: PagingResult, quantity: str, key: findings.Rate, series_count: int
) -> charts.Drawn:
    """The chart of a rate. Its data's ``series`` is the index of the memory size; 0 for TLB."""
    axis, of_memory = declared.ROWS.column(key).axis, quantity == "fault"
    spec = charts.rates(findings.page_sizes(result), series_count, axis, of_memory)
    memories = findings.memories(result)
    fitted: dict[tuple[int, float | None], float] = {}
    curves: list[charts.Datum] = []
    for fit in result.fits:
        memory = findings.memory_of_fit(fit)
        if fit["quantity"] != quantity or memory not in (None, *memories):
            continue
        series = 0 if memory is None else memories.index(memory)
        for size, _, predicted in fit["points"]:
            if predicted is not None:
                fitted[series, size] = predicted
        curves += [
            {
                "page": size,
                "value": page.number(value),
                "series": str(series),
                "verdict": fit["verdict"],
            }
            for size, value in fit["curve"]
        ]
    measured: dict[tuple[int, int], float] = {}
    for row in result.rows:
        series = memories.index(findings.memory_of(row)) if of_memory else 0
        measured.setdefault((series, row["page_bytes"]), row[key])
    points: list[charts.Datum] = [
        {
            "page": size,
            "value": page.number(value),
            "series": str(series),
            "series_label": page.typeset(_memory_label(memories[series])),
            "page_label": page.typeset(units.size(size)),
            "value_label": units.rate(value),
            "fitted_label": units.rate(fitted[series, size]) if (series, size) in fitted else "-",
        }
        for (series, size), value in sorted(measured.items())
    ]
    return {"spec": spec, "points": points, "curves": curves}


def _times(result: PagingResult) -> str:
    body = (
        page.legend((colour, declared.ROWS.head(name)) for name, colour in _parts(result).items())
        + page.chart(
            "times",
            "Time per reference against page size, its parts stacked",
            "The dashed line is the best page's time; 4 KiB is the page most systems use.",
        )
        + '<p class="checks">'
        + _check("zoom", "Cut tall bars off at four times the best", True)
        + "</p>"
        + page.details("The numbers", '<div id="times-table"></div>')
    )
    return page.section("times", "Time per reference", body)


def _grid(result: PagingResult) -> str:
    """The best page of every memory size and storage; a click on a cell shows its times."""
    memories, storages = findings.memories(result), findings.storages(result)
    pages = findings.page_sizes(result)
    colours = dict(zip(pages, palette.ramp(len(pages), 0.0, 1.0), strict=True))
    best = findings.best_pages(result)
    rows = []
    for m, memory in enumerate(memories):
        cells = [page.prose(memory.label)]
        for s, storage in enumerate(storages):
            found = best.get((memory, storage))
            if found is None:
                cells.append("-")
                continue
            back = colours[found.page_bytes]
            shown = change(found)
            size = page.typeset(units.size(found.page_bytes))
            name = f"{memory.phrase}, {storage}: {size}"
            cells.append(
                f'<button type="button" class="cell" data-memory="{m}" data-storage="{s}" '
                f'aria-label="{page.text(name)} {page.text(shown)}" aria-pressed="false" '
                f'style="background:{back};color:{palette.ink(back)}">'
                f"<b>{page.text(size)}</b><small>{page.prose(shown)}</small></button>"
            )
        rows.append(cells)
    body = (
        "<p>The best page, and its time per reference against 4&nbsp;KiB. "
        "Choose a cell to see its bars.</p>"
        + page.table(
            [declared.ROWS.head("memory_bytes"), *storages],
            rows,
            "Best page by memory size and storage",
        )
    )
    return page.section("best", "Best page", body)


def _rates(result: PagingResult, name: str, title: str, key: findings.Rate, label: str) -> str:
    memories = findings.memories(result)
    faults = key == "fault_rate"
    legend = ""
    if faults:
        shown = findings.spread(memories, 5)
        inner = "".join(
            f'<label class="check"><input type="checkbox" class="series" value="{i}" '
            f'autocomplete="off"{" checked" if m in shown else ""}> '
            f'<svg class="shape" data-series="{i}" '
            f'data-shape="{palette.SHAPES[i % len(palette.SHAPES)]}" viewBox="0 0 16 16" '
            f'aria-hidden="true"></svg> {page.prose(m.label)}</label>'
            for i, m in enumerate(memories)
        )
        buttons = (
            '<button type="button" id="series-all">All</button> '
            '<button type="button" id="series-none">None</button>'
        )
        legend = (
            f'<fieldset class="series"><legend>Memory</legend>{inner}'
            f"<span>{buttons}</span></fieldset>"
        )
    toggles = (
        '<p class="checks">'
        + _check(f"{name}-points", "Simulated points", True)
        + _check(f"{name}-curves", "Fitted curves", _trusted(result, name))
        + _check(f"{name}-log", "Logarithmic rate", True)
        + "</p>"
    )
    measured = {(findings.memory_of(row), row["page_bytes"]): row[key] for row in result.rows}
    # TLB misses are shown for the largest memory, which has a row of every page size.
    columns = memories if faults else memories[-1:]
    rows = [
        [page.prose(units.size(p))] + [optional(measured.get((m, p))) for m in columns]
        for p in findings.page_sizes(result)
    ]
    labels = [page.typeset(m.label) for m in columns] if faults else [declared.ROWS.head(key)]
    headers = [declared.ROWS.head("page_bytes"), *labels]
    caption = _rate_caption(result, measured, faults)
    body = (
        page.chart(name, label, caption)
        + legend
        + toggles
        + page.details("The numbers", page.table(headers, rows, label))
    )
    return page.section(name, title, body)


def _rate_caption(
    result: PagingResult, measured: Mapping[tuple[Memory, int], float], faults: bool
) -> str:
    memories = findings.memories(result)
    memory = findings.middle_memory(result) if faults else memories[-1]
    pages = findings.page_sizes(result)
    if memory is None:
        return ""
    line = {p: measured[memory, p] for p in pages if (memory, p) in measured}
    lowest = min(line, key=lambda p: (line[p], p))
    first, last = min(line), max(line)
    where = f"At {memory.phrase} the" if faults else "The"
    text = (
        f"{where} rate is {units.rate(line[first])} with pages of {units.size(first)} and "
        f"{units.rate(line[last])} with {units.size(last)}; it is lowest, "
        f"{units.rate(line[lowest])}, with {units.size(lowest)}."
    )
    dashes = "Fitted curves are solid where the fit is good, dashed where fair, dotted where bad."
    return f"{text} {dashes}" if result.fits else text


def _trusted(result: PagingResult, name: str) -> bool:
    """Whether curves are shown at first: if at least one fit is not bad."""
    quantity = "fault" if name == "faults" else "tlb"
    return any(fit["verdict"] != "bad" for fit in result.fits if fit["quantity"] == quantity)


def _fits(result: PagingResult) -> str:
    rows = []
    signs = {"good": "\u2713", "fair": "~", "bad": "\u2717"}
    for fit in result.fits:
        lines = " ".join(
            f"<span>{page.text(name)} = {page.text(findings.interval(coefficient))}</span>"
            for name, coefficient in fit["coefficients"].items()
        )
        memory, reason = findings.memory_of_fit(fit), fit["reason"]
        # A result loaded from a file may have an unknown verdict.
        known = fit["verdict"] if fit["verdict"] in signs else "bad"
        rows.append(
            [
                page.text(findings.QUANTITIES[fit["quantity"]]),
                page.text("any" if memory is None else page.typeset(memory.label)),
                f'<span class="verdict {known}">{signs[known]} {page.text(fit["verdict"])}</span>'
                + (f"<br><small>{page.text(reason)}</small>" if reason else ""),
                f"<i>{page.text(fit['formula'])}</i><br>{lines}",
                *map(optional, (fit["r2"], fit["rmse"], fit["loo_error"])),
            ]
        )
    quality = ("R\u00b2", "RMSE", "leave-one-out error")
    memory_head = declared.ROWS.head("memory_bytes")
    headers = ["rate", memory_head, "verdict", "coefficients", *quality]
    fits = result.fits
    bad = sum(fit["verdict"] == "bad" for fit in fits)
    text = (
        f"{bad} of {len(fits)} fits are bad: do not choose a page size by their curves. "
        "The simulated points do not depend on them."
        if bad
        else f"None of the {len(fits)} fits is bad."
    )
    unit = page.text(findings.page_unit(fits))
    note = f'<p class="{"warning" if bad else "plain"}">{page.text(text)}</p>'
    table = page.table(headers, rows, "Fitted models and how well they fit")
    symbols = f"<p>p is the page size in {unit}; confidence intervals in brackets.</p>"
    return note + page.details("The models", symbols + table)
