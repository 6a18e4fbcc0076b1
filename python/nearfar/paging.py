"""The ``paging`` study: TLB misses, page faults and access time over page size and memory size.

Papers 000 and 001. The engine simulates every page size and memory size in one pass over the trace
(docs/paging.md); this module prices, fits and packages the result.

>>> result = paging("app.trace", machine="optane-ssd")      # doctest: +SKIP
>>> result.best(memory_fraction=0.5)["page_bytes"]          # doctest: +SKIP
16384
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nearfar import _engine, units
from nearfar import machine as machines
from nearfar import paging_findings as findings
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.result import Columns, FolderResult
from nearfar.sizes import parse_memory, parse_page_sizes

#: What a study runs with unless told otherwise.
PAGE_SIZES = "512,1K,...,2M"
MEMORY = "10%,...,100%"
TLB = "64"
MACHINE = machines.USUAL

#: Points of a fitted curve that go into results, between the smallest and largest page size.
_CURVE = 49


@dataclass(frozen=True)
class PagingResult(FolderResult):
    """What a paging study found.

    Attributes:
        run: how it was made: trace, machine, options, version; no times of day.
        rows: one mapping per page size x memory size x storage (docs/paging.md names the keys).
        fits: the models of the TLB miss rate and of the fault rate at each memory size.
        wall_seconds: how long it took; kept out of everything that must be the same every time.
    """

    run: dict[str, Any]
    rows: list[dict[str, Any]]
    fits: list[dict[str, Any]]
    wall_seconds: float = field(compare=False, default=0.0)

    page = "nearfar.report.html.paging:PagingPage"
    chart = "nearfar.report.plots.paging:draw"
    columns: ClassVar[Columns] = Columns(
        keys=("storage", ("memory_fraction", "memory_bytes"), "page_bytes"),
        metrics={
            "total_ns": "less",
            "translation_ns": "less",
            "data_ns": "less",
            "tlb_miss_rate": "less",
            "fault_rate": "less",
            "tlb_misses": "less",
            "faults": "less",
            "dirty_evictions": "less",
        },
    )

    @classmethod
    def restore(cls, run: dict[str, Any], tables: Mapping[str, Any]) -> PagingResult:
        """The result again that :meth:`write` wrote."""
        kept = dict(run)
        fits, seconds = kept.pop("fits"), kept.pop("wall_seconds")
        return cls(kept, tables["result"].to_pylist(), fits, seconds)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {"run": self.run, "rows": self.rows, "fits": self.fits}

    def _run(self) -> dict[str, Any]:
        return {**self.run, "fits": self.fits, "wall_seconds": round(self.wall_seconds, 3)}

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        import pyarrow

        return pyarrow.Table.from_pylist(self.rows, schema=_arrow_schema())

    def best(
        self, *, storage: str | None = None, memory_fraction: float | None = None
    ) -> dict[str, Any]:
        """Answer the row of least total time among those of a storage and memory size.

        Raises:
            NearfarError: no row is of that storage and memory size.
        """
        rows = [
            row
            for row in self.rows
            if storage in (None, row["storage"])
            and memory_fraction in (None, row["memory_fraction"])
        ]
        if not rows:
            raise NearfarError("best: no such storage or memory fraction in this result")
        return min(rows, key=lambda row: (row["total_ns"], row["page_bytes"]))

    def html(self, heatmap: dict[str, Any] | None = None) -> str:
        """Draw a self-contained page of the result."""
        return self._html(heatmap=heatmap)

    def _repr_html_(self) -> str:
        """Show the best pages in a notebook."""
        lines = []
        for (memory, storage), best in findings.best_pages(self.to_dict()).items():
            cells = (storage, memory.label, units.size(best.page_bytes))
            lines.append("<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in cells) + "</tr>")
        head = "<tr><th>storage</th><th>memory</th><th>best page</th></tr>"
        return f"<table>{head}{''.join(lines)}</table>"


def paging(
    trace: str | Path,
    *,
    page_sizes: str | Sequence[int] = PAGE_SIZES,
    memory: str = MEMORY,
    tlb: str = TLB,
    replacement: str = "clock",
    clock_insert: str = "set",
    machine: machines.MachineLike = MACHINE,
    storage: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    filter: str = "none",  # noqa: A002
    write_back: bool = False,
    sample: float | None = None,
    threads: int = 0,
    max_memory: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> PagingResult:
    """Run the paging study.

    Args:
        trace: a trace folder.
        page_sizes: bytes, powers of two; text may use ``4K`` and ``...`` for doublings.
        memory: ``10%`` of the 4 KiB footprint or bytes; ``...`` for equal steps.
        tlb: entries (``64``), entries x ways (``64x4``), two levels (``64+1536x12``); LRU.
        replacement: ``clock``, ``lru`` or ``linux``.
        clock_insert: ``set`` or ``clear``: the accessed bit of a page just loaded by CLOCK.
        machine: name or path of a machine file, or a machine.
        storage: storages of the machine to price; all by default.
        kinds: kinds of references that count; all by default.
        filter: which references there are: ``none`` (all), ``cache`` (those that miss the CPU
            caches of the machine) or ``cache-write-backs`` (:mod:`nearfar.filter`).
        write_back: charge a write for each eviction of a dirty page.
        sample: simulate only this part of the pages (0 to 1); rows then carry a standard error.
        threads: 0 for one a core.
        max_memory: bytes the simulation should keep to, by going over the trace more than once;
            12 GiB by default. It changes no result.
        progress: called now and then with the records done.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    from nearfar.fit import fit_rows

    sizes = parse_page_sizes(page_sizes) if isinstance(page_sizes, str) else list(page_sizes)
    memories = parse_memory(memory)
    if clock_insert not in ("set", "clear"):
        raise NearfarError(f"--clock-insert: {clock_insert!r} is neither set nor clear")
    described = machines.load(machine)
    path = Path(trace)
    began = time.monotonic()
    with view(path, filter, described, progress) as seen:
        answer = json.loads(
            _engine.paging(
                seen.path,
                described,
                page_sizes=sizes,
                memory=[(float(m.value), m.is_fraction) for m in memories],
                tlb=tlb,
                replacement=replacement,
                clock_insert_set=clock_insert == "set",
                kinds=list(kinds) if kinds is not None else None,
                storages=list(storage) if storage is not None else None,
                write_back=write_back,
                threads=threads,
                sample=sample,
                max_memory=max_memory,
                progress=progress,
            )
        )
    rows: list[dict[str, Any]] = answer["rows"]
    fits = [_fit_dict(fit, sizes) for fit in fit_rows(rows)]
    options = {
        "page_sizes": sizes,
        "memory": memory,
        "tlb": tlb,
        "replacement": replacement,
        "clock_insert": clock_insert,
        "storage": list(storage) if storage is not None else None,
        "kinds": list(kinds) if kinds is not None else None,
        "filter": filter,
        "write_back": write_back,
        "sample": sample,
    }
    text = (path / "trace.json").read_bytes()
    info = json.loads(text)
    run = {
        "study": "paging",
        "command": _command(path, described.flags, options),
        "trace": str(path),
        "trace_json_sha256": hashlib.sha256(text).hexdigest(),
        "traced": shlex.join(info["source"]["command"]) or info["source"]["detail"],
        "trace_complete": info["complete"],
        "sampled_trace": info["source"]["sampled"],
        "machine": described.name,
        "machine_description": described.to_dict(),
        "options": options,
        "view": seen.sentence,
        "references": answer["records"],
        "footprint_bytes": answer["footprint_bytes"],
        "version": _engine.__version__,
    }
    return PagingResult(run, rows, fits, time.monotonic() - began)


def warnings(result: PagingResult) -> list[str]:
    """What a reader of the result should know: lines of plain text."""
    lines = trace_warnings(result.run)
    fewest = min(row["frames"] for row in result.rows)
    if fewest < 8:
        lines.append(
            f"some memories hold only {fewest} page(s) of the largest sizes: those rows thrash "
            "and say little about a larger program"
        )
    return lines


def trace_warnings(run: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the trace of a run."""
    lines = []
    if not run["trace_complete"]:
        lines.append(f"{run['trace']}: the trace is incomplete; this is what it holds so far")
    if run["sampled_trace"]:
        lines.append(f"{run['trace']}: a sampled trace; reuse, and so every rate, is not exact")
    return lines


def _fit_dict(fit: Any, sizes: Sequence[int]) -> dict[str, Any]:
    """Lay out a fit as results carry it: coefficients with their intervals, points and curve."""
    plain: dict[str, Any] = fit.to_dict()
    intervals = plain["intervals"] or {}
    fitted = plain["fitted"] or [None] * len(plain["measured"])
    curve: list[list[float]] = []
    if fit.coefficients:
        low, high = min(sizes), max(sizes)
        steps = [low * (high / low) ** (i / (_CURVE - 1)) for i in range(_CURVE)]
        curve = [[p, float(rate)] for p, rate in zip(steps, fit.predict(steps), strict=True)]
    kept = ("quantity", "model", "formula", "page_unit", "memory_bytes", "memory_fraction")
    quality = ("confidence", "r2", "adjusted_r2", "rmse", "loo_mean_relative", "verdict", "reason")
    return {
        **{key: plain[key] for key in kept},
        "coefficients": {
            name: {"value": value, "low": low, "high": high}
            for name, value in plain["coefficients"].items()
            for low, high in [intervals.get(name, (None, None))]
        },
        **{key: plain[key] for key in quality},
        "loo_error": plain["loo_rmse"],
        "points": [
            list(point)
            for point in zip(plain["page_bytes"], plain["measured"], fitted, strict=True)
        ],
        "curve": curve,
    }


def _command(path: Path, machine: Sequence[str], options: dict[str, Any]) -> str:
    words = ["nearfar", "paging", os.fspath(path), *machine]
    words += ["--page-sizes", ",".join(str(size) for size in options["page_sizes"])]
    words += ["--memory", options["memory"], "--tlb", options["tlb"]]
    words += ["--replacement", options["replacement"]]
    if options["clock_insert"] != "set":
        words += ["--clock-insert", options["clock_insert"]]
    for name in ("storage", "kinds"):
        if options[name] is not None:
            words += [f"--{name}", ",".join(options[name])]
    if options["filter"] != "none":
        words += ["--filter", options["filter"]]
    if options["write_back"]:
        words.append("--write-back")
    if options["sample"] is not None:
        words += ["--sample", str(options["sample"])]
    return shlex.join(words)


def _arrow_schema() -> Any:
    import pyarrow

    whole, real, text = pyarrow.int64(), pyarrow.float64(), pyarrow.string()
    columns = {
        "page_bytes": whole,
        "memory_bytes": whole,
        "memory_fraction": real,
        "frames": whole,
        "references": whole,
        "tlb_misses": whole,
        "tlb_miss_rate": real,
        "tlb_second_hits": whole,
        "faults": whole,
        "fault_rate": real,
        "fault_rate_error": real,
        "pages": whole,
        "dirty_evictions": whole,
        "storage": text,
        "translation_ns": real,
        "data_ns": real,
        "total_ns": real,
    }
    return pyarrow.schema(list(columns.items()))


def _escape(text: object) -> str:
    import html

    return html.escape(str(text))
