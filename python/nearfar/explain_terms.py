"""The terms of the time of a reference, for ``explain``.

With ``--view machine`` the terms are columns of the row. Otherwise a row has only their sums, and
this module computes the terms again: equations 1 to 3 of paper 000 (``papers/README.md``), as the
engine does (``crates/study/src/paging/table.rs``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.declared import paging as paging_declared
from nearfar.machine import Machine
from nearfar.regions import Explained

#: Kinds of faults, and events that cost time.
Kind = Literal["zero_fills", "file_reads", "swap_ins", "file_rereads"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Event = Literal["tlb_misses", "tlb_second_hits", "faults", "mapped", Kind]
#: Parts of the time of ``--view machine`` that belong to T_A (translation); the others are T_D.
_TRANSLATION: Final = ("tlb_ns", "walk_ns")


@dataclass(frozen=True)
class Term:
    """A term of the model.

    Attributes:
        part: ``T_A`` (translation) or ``T_D`` (data); formula: as in the paper.
        rate: events per reference; each_ns: the time of one event.
        event: the column that counts it for each region and piece of code; None without one.
    """

    name: str
    part: str
    formula: str
    rate: float
    each_ns: float
    event: Event | None = None

    def row(self, total_ns: float) -> declared.TermsRow:
        """The term as a part of ``total_ns``."""
        ns = self.rate * self.each_ns
        return {
            "term": self.name,
            "part": self.part,
            "formula": self.formula,
            "rate": self.rate,
            "each_ns": self.each_ns,
            "ns": ns,
            "share": ns / total_ns,
            "kernel_share": None,
            "usual_ns": None,
            "saved_ns": None,
            "gain": None,
        }


def model_terms(
    machine: Machine,
    row: paging_declared.Row,
    total: declared.TotalRow,
    lifetimes: bool,
    write_back: bool,
) -> list[Term]:
    """The terms of a row.

    Args:
        machine: the machine of the run.
        row: its row.
        total: counts of a second simulation, for what the row does not count.
        lifetimes: whether pages are freed at the end of their lifetimes.
        write_back: whether evictions of written pages take time.
    """
    access, size, pages = machine.access_times(), units.size(row["page_bytes"]), [row["page_bytes"]]
    (read,) = machine.io_ns(row["storage"], pages)
    second = row["tlb_second_hits"] / row["references"]
    terms = [
        Term("TLB lookup", "T_A", "t_TLB", 1.0, access.tlb_ns),
        Term("second TLB level", "T_A", "h t_STLB", second, access.stlb_ns or 0.0,
             "tlb_second_hits"),
        Term("TLB misses", "T_A", "e t_DRAM", row["tlb_miss_rate"], access.dram_ns, "tlb_misses"),
        Term("memory access", "T_D", "t_DRAM", 1.0, access.dram_ns),
    ]  # fmt: skip
    if lifetimes:
        kernel = machine.fault_times()
        zeros = kernel.fault_ns + kernel.zero_ns * row["page_bytes"]
        device, each = f"(t_fault + t_IO({size}))", kernel.fault_ns + read
        faults: list[tuple[Event, str, str, float]] = [
            ("zero_fills", "zero fills", f"z (t_fault + t_zero({size}))", zeros),
            ("file_reads", "file reads", f"f {device}", each),
            ("swap_ins", "swap-ins", f"s {device}", each),
            ("file_rereads", "file rereads", f"r {device}", each),
            ("mapped", "page cache hits", "m t_fault", kernel.fault_ns),
        ]
    else:
        faults = [("faults", "page faults", f"d t_IO({size})", read)]
    for event, name, formula, ns in faults:
        # No row counts page cache hits (``mapped``). Rows of older versions also lack the kinds of
        # faults.
        known = None if event == "mapped" else row.get(event)
        rate = (total[event] if known is None else known) / row["references"]
        terms.append(Term(name, "T_D", formula, rate, ns, event))
    if write_back:
        (write,) = machine.write_ns(row["storage"], pages)
        dirty = row["dirty_evictions"] / row["references"]
        terms.append(Term("write-backs", "T_D", f"w t_write({size})", dirty, write))
    return terms


def rows_of(
    terms: Iterable[Term], total_ns: float, counts: Explained, *, of_vm: bool
) -> list[declared.TermsRow]:
    """The terms as rows, without kinds of events that did not occur.

    Args:
        terms: the terms.
        total_ns: the time of a reference.
        counts: counts of the run, for the kernel's share.
        of_vm: whether the trace is of a virtual machine.
    """
    always = (None, "tlb_misses", "faults")
    rows = []
    for term in terms:
        if term.rate or term.event in always:
            row = term.row(total_ns)
            # Terms without an event have rate 1, so the kernel's share of references applies.
            # Write-backs are the exception: the kernel's part of them is not counted.
            count = term.event or ("references" if term.rate == 1 else None)
            if of_vm and count is not None:
                row["kernel_share"] = _share(counts["kernel"][count], counts["total"][count])
            rows.append(row)
    return rows


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def cost_ns(place: declared.TotalRow, terms: Sequence[Term]) -> float:
    """Nanoseconds that events cost; ``place``: counts of a region, a range or a piece of code."""
    # First T_A, then T_D, as in the engine: the order affects the rounding of the sum.
    return sum(
        sum(place[term.event] * term.each_ns for term in terms if term.event and term.part == part)
        for part in ("T_A", "T_D")
    )


def machine_terms(
    row: paging_declared.Row, usual: paging_declared.Row | None, shares: Mapping[str, float | None]
) -> list[declared.TermsRow]:
    """The parts of the time of a row with ``--view machine``, and those of 4 KiB pages.

    Args:
        row: the row.
        usual: the row of 4 KiB pages; None if that is ``row`` or there is none.
        shares: the kernel's share by part (:func:`kernel_shares`).
    """
    terms: list[declared.TermsRow] = []
    for part in findings.PARTS:
        ns, usual_ns, saved = row.get(part) or 0.0, None, None
        if usual is not None:
            usual_ns = usual.get(part) or 0.0
            saved = 0.0 if math.isclose(usual_ns, ns, rel_tol=1e-12) else usual_ns - ns
        terms.append(
            {
                "term": paging_declared.ROWS.head(part),
                "part": "T_A" if part in _TRANSLATION else "T_D",
                "formula": None,
                "rate": None,
                "each_ns": None,
                "ns": ns,
                "share": ns / row["total_ns"],
                "kernel_share": shares.get(part),
                "usual_ns": usual_ns,
                "saved_ns": saved,
                "gain": None if usual is None or saved is None else saved / usual["total_ns"],
            }
        )
    return terms


def kernel_shares(counts: Explained, instructions: int) -> dict[str, float | None]:
    """The kernel's share of the parts of the time with ``--view machine``, where it is counted.

    Args:
        counts: counts of the simulation.
        instructions: of the whole trace.
    """
    kernel, total = counts["kernel"], counts["total"]
    without_device = _share(kernel["minor_fault_ps"], total["minor_fault_ps"])
    return {
        "cpu_ns": _share(counts["kernel_instructions"], instructions),
        "tlb_ns": _share(kernel["tlb_ps"], total["tlb_ps"]),
        "walk_ns": _share(kernel["walk_ps"], total["walk_ps"]),
        "fault_ns": without_device,
        "start_ns": without_device,
        # Here, ``swap_ins`` are all faults that read a device.
        "io_ns": _share(kernel["swap_ins"], total["swap_ins"]),
    }
