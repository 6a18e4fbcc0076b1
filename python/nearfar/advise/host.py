"""What the virtual machines of a host need together: memory, a pool of huge pages, swap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar import units
from nearfar.declared import advise as declared
from nearfar.sizes import bytes_of


@dataclass(frozen=True)
class Host:
    """The sums over the VMs of a machine.

    Attributes:
        machine: its name.
        vms: how many there are.
        memory_bytes: what they are given, together.
        bloat_bytes: what the page sizes advised add to that, as far as it is known.
        pools: pages of hugetlbfs to reserve, by page size in bytes.
        swapped_bytes: what does not fit into the VMs' memory at its most, by storage; of VMs whose
            memory was given as a part of what they want.
        dram_bytes: the machine's memory; None where its file does not say.
    """

    machine: str
    vms: int
    memory_bytes: int
    bloat_bytes: int
    pools: Mapping[int, int]
    swapped_bytes: Mapping[str, int]
    dram_bytes: int | None

    @property
    def missing_bytes(self) -> int:
        """Bytes that the machine lacks; 0 where all fits, or nobody knows."""
        if self.dram_bytes is None:
            return 0
        return max(self.memory_bytes + self.bloat_bytes - self.dram_bytes, 0)

    @property
    def sentence(self) -> str:
        """The sums in plain words."""
        size = units.size
        text = f"{self.vms} VMs with {size(self.memory_bytes)} of memory"
        if self.bloat_bytes:
            text += f", and {size(self.bloat_bytes)} more by larger pages"
        if self.dram_bytes is not None:
            whole = size(self.dram_bytes)
            text += (
                f": {size(self.missing_bytes)} more than the host's {whole}"
                if self.missing_bytes
                else f", of the host's {whole}"
            )
        for page, count in self.pools.items():
            text += f"; a pool of {count} huge pages of {size(page)}"
        for storage, swapped in self.swapped_bytes.items():
            text += f"; {size(swapped)} on {units.clean(storage)}"
        return f"{text}."


def hosts(result: Mapping[str, Any]) -> list[Host]:
    """The hosts of a fleet, in the order of its VMs; none of other advice, whose rows are
    alternatives.

    Args:
        result: the dict that ``nearfar advise --format json`` prints.
    """
    rows: Sequence[declared.Row] = result["rows"]
    if result["run"]["fleet"] is None:
        return []
    machines = dict.fromkeys(row["machine"] for row in rows)
    return [
        _host(name, result["run"]["machines"][name], [r for r in rows if r["machine"] == name])
        for name in machines
    ]


def _host(name: str, described: Mapping[str, Any], rows: Sequence[declared.Row]) -> Host:
    pools: dict[int, int] = {}
    swapped: dict[str, int] = {}
    for row in rows:
        page = row["settable_page_bytes"]
        if row["mechanism"] == "hugetlb":
            pools[page] = pools.get(page, 0) + math.ceil(row["memory_bytes"] / page)
        elif row["memory_fraction"]:
            # What is in huge pages of a pool is never swapped.
            over = round(row["memory_bytes"] / row["memory_fraction"]) - row["memory_bytes"]
            if over > 0:
                swapped[row["storage"]] = swapped.get(row["storage"], 0) + over
    sizes = [
        bytes_of(str(node["size"]["value"]))
        for node in described.get("node", {}).values()
        if node["kind"] == "dram" and "size" in node
    ]
    known = [size for size in sizes if size is not None]
    return Host(
        machine=name,
        vms=len(rows),
        memory_bytes=sum(row["memory_bytes"] for row in rows),
        bloat_bytes=sum(max(row["bloat_bytes"] or 0, 0) for row in rows),
        pools=dict(sorted(pools.items())),
        swapped_bytes=swapped,
        dram_bytes=sum(known) if known else None,
    )
