"""The ``ssd`` study: a DRAM-interface SSD as memory, and what to do while it moves a page.

Paper 002 (UMD). The engine replays a trace on the machine once for each policy and each size of the
device's DRAM (docs/ssd.md); this module packages the result.

>>> result = ssd("app.trace", dram=["100M", "150M"])            # doctest: +SKIP
>>> result.best(dram_bytes=100 << 20)["epf"]                    # doctest: +SKIP
'all'
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

from nearfar import _engine
from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.result import FolderResult
from nearfar.schema import Rows
from nearfar.sizes import parse_bytes

#: What a study runs with unless told otherwise.
EPF = ("none", "all", "smart:50us")
DRAM = ("100M", "150M")
MACHINE = "umd"
PRECONDITION = (0.6, 0.5)
OVERWRITE = "once"
ATOMIC = "kernel"
FIRST_TOUCH = "new"
WINDOW = 1 << 20


@dataclass(frozen=True)
class SsdResult(FolderResult):
    """What an ssd study found.

    Attributes:
        run: how it was made: trace, machine, options, version; no times of day.
        rows: one mapping per size of DRAM x policy (docs/ssd.md names the keys).
        details: for each row the state of the flash at the start, histograms of predicted and
            actual service times and of the error, and a timeline of the threads.
        wall_seconds: how long it took; kept out of everything that must be the same every time.
    """

    run: dict[str, Any]
    rows: list[dict[str, Any]]
    details: list[dict[str, Any]]
    wall_seconds: float = field(compare=False, default=0.0)

    page = "nearfar.report.html.ssd:SsdPage"
    chart = "nearfar.report.plots.ssd:draw"
    columns: ClassVar[Rows] = Rows(
        keys=("dram_bytes", "epf"),
        metrics={
            "seconds": "less",
            "embedded_faults": "less",
            "embedded_fault_rate": "less",
            "passed_share": "less",
            "cpu_idle": "less",
            "cpu_stall": "less",
            "cpu_switch": "less",
            "actual_us_mean": "less",
            "prediction_error_us_mean": "less",
            "flash_reads": "less",
            "flash_programs": "less",
            "gc_collections": "less",
            "write_amplification": "less",
        },
        seed="seed",
    )

    @classmethod
    def restore(cls, run: dict[str, Any], tables: Mapping[str, Any]) -> SsdResult:
        """The result again that :meth:`write` wrote."""
        kept = dict(run)
        details, seconds = kept.pop("details"), kept.pop("wall_seconds")
        return cls(kept, tables["result"].to_pylist(), details, seconds)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {"run": self.run, "rows": self.rows, "details": self.details}

    def _run(self) -> dict[str, Any]:
        return {**self.run, "details": self.details, "wall_seconds": round(self.wall_seconds, 3)}

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        import pyarrow

        return pyarrow.Table.from_pylist(self.rows)

    def best(self, *, dram_bytes: int | None = None) -> dict[str, Any]:
        """Answer the row of least time among those of a size of DRAM.

        Raises:
            NearfarError: no row is of that size.
        """
        rows = [row for row in self.rows if dram_bytes in (None, row["dram_bytes"])]
        if not rows:
            raise NearfarError("best: no such size of DRAM in this result")
        return min(rows, key=lambda row: row["seconds"])


def ssd(
    trace: str | Path,
    *,
    machine: machines.MachineLike = MACHINE,
    dram: Sequence[str | int] = DRAM,
    epf: Sequence[str] = EPF,
    disk: str | None = None,
    precondition: tuple[float, float] = PRECONDITION,
    overwrite: str = OVERWRITE,
    sleep_granularity_ns: int | None = None,
    atomic: str = ATOMIC,
    first_touch: str = FIRST_TOUCH,
    background: tuple[str | int, float] | None = None,
    window: int = WINDOW,
    seed: int = 1,
    threads: int = 0,
    progress: Callable[[int], None] | None = None,
) -> SsdResult:
    """Run the ssd study.

    Args:
        trace: a trace folder.
        machine: a machine, or name or path of its file, with ``[flash]``, ``[cpu]`` and ``[cost]``.
        dram: sizes of the device's DRAM: bytes, or text such as ``100M``.
        epf: policies: ``none``, ``all``, ``smart:TIME``.
        disk: storage of the machine that files are read from; None: they are there at first touch,
            at the cost of a page fault without I/O.
        precondition: share of the device written in order, share then written at random.
        overwrite: which pages of that: ``once``, each once in random order; ``drawn``, any page
            each time.
        sleep_granularity_ns: threads wake at multiples of it; the machine's timer slack by
            default.
        atomic: references in sections in which a thread may not sleep: ``none``, ``kernel``, or
            kinds joined by ``+``, such as ``kernel-load``.
        first_touch: what the flash holds of a page touched for the first time: ``new``, nothing;
            ``stored``, old content, which the device reads once no frame is free.
        background: in the DRAM at the start, older than all that the program touches and not used
            again: how much, and what share of it was written to.
        window: instructions that a thread may run ahead of the others in the trace.
        seed: of the random writes of the preconditioning.
        threads: cells simulated at a time; 0 for one a core. It changes no result.
        progress: called now and then with the references done in all cells.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    described = machines.load(machine)
    path = Path(trace)
    sizes = [parse_bytes(size, "--dram") if isinstance(size, str) else size for size in dram]
    if window < 1:
        raise NearfarError("--window: give at least 1 instruction, such as 1000000")
    left, written = background or (0, 0.0)
    if isinstance(left, str):
        left = parse_bytes(left, "--background")
    began = time.monotonic()
    answer = json.loads(
        _engine.ssd(
            path,
            described,
            epf=list(epf),
            dram_bytes=sizes,
            disk=disk,
            sequential=precondition[0],
            random=precondition[1],
            overwrite=overwrite,
            seed=seed,
            sleep_granularity_ns=sleep_granularity_ns,
            atomic=atomic,
            first_touch=first_touch,
            background_bytes=left,
            background_written=written,
            window=window,
            threads=threads,
            progress=progress,
        )
    )
    options = {
        "dram_bytes": sizes,
        "epf": list(epf),
        "disk": disk,
        "precondition": list(precondition),
        "overwrite": overwrite,
        "sleep_granularity_ns": sleep_granularity_ns,
        "atomic": atomic,
        "first_touch": first_touch,
        "background": [left, written] if background else None,
        "window": window,
        "seed": seed,
    }
    text = (path / "trace.json").read_bytes()
    info = json.loads(text)
    run = {
        "study": "ssd",
        "command": _command(path, described.flags, options),
        "trace": str(path),
        "trace_json_sha256": hashlib.sha256(text).hexdigest(),
        "traced": shlex.join(info["source"]["command"]) or info["source"]["detail"],
        "trace_complete": info["complete"],
        "sampled_trace": info["source"]["sampled"],
        "machine": described.name,
        "machine_description": described.to_dict(),
        "options": options,
        "version": _engine.__version__,
    }
    return SsdResult(run, answer["rows"], answer["details"], time.monotonic() - began)


def policies() -> list[tuple[str, str, str]]:
    """Policies for embedded page faults: name, how it is written, a line on each."""
    return _engine.ssd_policies()


def warnings(result: SsdResult) -> list[str]:
    """What a reader of the result should know: lines of plain text."""
    from nearfar.paging import trace_warnings

    lines = trace_warnings(result.run)
    first = result.details[0]["conditioned"]
    if not first["collecting"]:
        lines.append("the flash was not filled so far that it must collect: see --precondition")
    if not any(row["embedded_faults"] for row in result.rows):
        lines.append("the program fits the device's DRAM: no embedded page fault at any size")
    return lines


def _command(path: Path, machine: Sequence[str], options: Mapping[str, Any]) -> str:
    words = ["nearfar", "ssd", os.fspath(path), *machine]
    words += ["--dram", ",".join(str(size) for size in options["dram_bytes"])]
    words += ["--epf", ",".join(options["epf"])]
    if options["disk"] is not None:
        words += ["--disk", options["disk"]]
    words += ["--precondition", ",".join(f"{share:.15g}" for share in options["precondition"])]
    words += ["--overwrite", options["overwrite"]]
    if options["sleep_granularity_ns"] is not None:
        words += ["--sleep-granularity", f"{options['sleep_granularity_ns']}ns"]
    words += ["--atomic", options["atomic"], "--first-touch", options["first_touch"]]
    if options["background"] is not None:
        left, written = options["background"]
        words += ["--background", f"{left},{written:.15g}"]
    words += ["--window", str(options["window"]), "--seed", str(options["seed"])]
    return shlex.join(words)
