"""Total needs of the virtual machines on a host: memory, pools of huge pages, swap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearfar import units
from nearfar.declared import advise as declared
from nearfar.sizes import bytes_of

if TYPE_CHECKING:
    from nearfar.advise import AdviseRun


@dataclass(frozen=True)
class Host:
    """Sums over the VMs of a machine.

    Attributes:
        machine: its name.
        vms: the number of VMs.
        memory_bytes: guest memory if ``--set-memory`` sized the guest, else program memory.
        guests: whether ``--set-memory`` sized every guest.
        bloat_bytes: memory that the advised page sizes add to programs, where known; 0 for a VM
            with guest memory, which includes it.
        pools: pages of hugetlbfs to reserve, by page size in bytes.
        swapped_bytes: peak resident set beyond the VM's memory, by storage; only VMs whose memory
            was given as a share.
        dram_bytes: the machine's memory; None if its file does not have it.
    """

    machine: str
    vms: int
    memory_bytes: int
    guests: bool
    bloat_bytes: int
    pools: Mapping[int, int]
    swapped_bytes: Mapping[str, int]
    dram_bytes: int | None

    @property
    def missing_bytes(self) -> int:
        """Bytes that the machine lacks; 0 if ``dram_bytes`` is None."""
        if self.dram_bytes is None:
            return 0
        return max(self.memory_bytes + self.bloat_bytes - self.dram_bytes, 0)

    @property
    def sentence(self) -> str:
        """The sums in words."""
        size = units.size
        vms = "1 VM" if self.vms == 1 else f"{self.vms} VMs"
        text = f"{vms} with {size(self.memory_bytes)} of memory"
        if not self.guests:
            text += " for programs (--set-memory adds memory for their systems)"
        if self.bloat_bytes:
            text += f", and {size(self.bloat_bytes)} more because of larger pages"
        if self.dram_bytes is not None:
            dram = size(self.dram_bytes)
            text += (
                f": {size(self.missing_bytes)} more than the host's {dram}"
                if self.missing_bytes
                else f", of the host's {dram}"
            )
        for page, count in self.pools.items():
            text += f"; {count} huge pages of {size(page)} reserved"
        for storage, swapped in self.swapped_bytes.items():
            text += f"; {size(swapped)} swapped to {units.clean(storage)}"
        return f"{text}."


def hosts(run: AdviseRun, rows: Sequence[declared.Row]) -> list[Host]:
    """The hosts of a fleet, in the order of its VMs; empty without a fleet file, because the rows
    are then alternatives."""
    if run["fleet"] is None:
        return []
    names = dict.fromkeys(row["machine"] for row in rows)
    return [_host(name, run, [row for row in rows if row["machine"] == name]) for name in names]


def _host(name: str, run: AdviseRun, rows: Sequence[declared.Row]) -> Host:
    pools: dict[int, int] = {}
    swapped: dict[str, int] = {}
    for row in rows:
        page = row["settable_page_bytes"]
        if row["mechanism"] == "hugetlb":
            pools[page] = pools.get(page, 0) + math.ceil(_vm_memory(row) / page)
        elif row["memory_fraction"]:
            # Huge pages of a pool are never swapped.
            over = round(row["memory_bytes"] / row["memory_fraction"]) - row["memory_bytes"]
            if over > 0:
                swapped[row["storage"]] = swapped.get(row["storage"], 0) + over
    sizes = [
        bytes_of(str(node["size"]["value"]))
        for node in run["machines"][name].get("node", {}).values()
        if node["kind"] == "dram" and "size" in node
    ]
    known = [size for size in sizes if size is not None]
    return Host(
        machine=name,
        vms=len(rows),
        memory_bytes=sum(map(_vm_memory, rows)),
        guests=all(row["guest_memory_bytes"] for row in rows),
        # Larger pages can also lower the peak: negative bloat does not reduce the host's sum.
        bloat_bytes=sum(
            max(row["bloat_bytes"] or 0, 0) for row in rows if not row["guest_memory_bytes"]
        ),
        pools=dict(sorted(pools.items())),
        swapped_bytes=swapped,
        dram_bytes=sum(known) if known else None,
    )


def _vm_memory(row: declared.Row) -> int:
    """The memory of a VM: guest memory if it is set, else program memory."""
    return row["guest_memory_bytes"] or row["memory_bytes"]
