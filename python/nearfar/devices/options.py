"""Options and columns of ``devices``.

``make declared`` generates ``nearfar.declared.devices`` from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nearfar.columns import byte_size, integer, number, share, text
from nearfar.declared import names, paging, size
from nearfar.schema import Option, Rows

_PAGING: Final = {option.name: option for option in paging.OPTIONS}
_SIZE: Final = {option.name: option for option in size.OPTIONS}

#: Devices that are not storages of a machine.
CXL_SSD: Final = "cxl-ssd"
DRAM_SSD: Final = "dram-ssd"

OPTIONS: Final = (
    Option(
        "machine",
        "MachineLike | None",
        "Host machine of the devices: a name or file.",
        shown=_PAGING["machine"].shown,
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "storage",
        "str | Sequence[str]",
        "Devices to compare: storages of the machine or of a built-in machine, `cxl-ssd` and "
        "`dram-ssd`.",
        default=f"zram,nvme,optane-ssd,cxl,{CXL_SSD},{DRAM_SSD}",
        metavar="NAMES",
    ),
    Option(
        "memory",
        "str",
        "Memory size at which devices are compared: a share of the peak resident set, or bytes.",
        default="75%",
        metavar="SIZE",
    ),
    replace(
        _PAGING["slowdown"],
        what="Accepted slowdown, compared with memory for the whole resident set.",
    ),
    _SIZE["zram_ratio"],
    Option(
        "cost",
        "str | None",
        "Prices of a GiB in any currency, such as dram=4,nvme=0.1; a device without a price gets "
        "no `cost`.",
        shown="no costs",
        metavar="NAME=PRICE,...",
    ),
    _PAGING["threads"],
    _PAGING["max_memory"],
)

ROWS: Final = Rows(
    columns=(
        text("storage", "The device.", title="device"),
        text(
            "access",
            "How the program accesses pages on the device: by `page fault` or, as memory, by "
            "`load`.",
        ),
        byte_size("memory_bytes", "The memory size of `--memory`, in bytes.", title="memory"),
        number(
            "total_ns",
            "Mean time of a reference with `memory_bytes`, without first touches; null if zram's "
            "compressed pages do not fit.",
            "ns per reference",
            nullable=True,
            title="time",
        ),
        share(
            "slowdown",
            "Slowdown compared with memory for the whole resident set; null if zram's compressed "
            "pages do not fit.",
            nullable=True,
        ),
        integer(
            "device_reads",
            "4 KiB pages read from the device after an eviction; null if zram's compressed pages "
            "do not fit.",
            "pages",
            nullable=True,
            title="reads",
        ),
        byte_size(
            "needed_bytes",
            "The smallest memory with a slowdown of at most `--slowdown`, including zram's "
            "compressed pages.",
            title="needed",
        ),
        byte_size(
            "device_bytes",
            "Memory on the device if the program has `needed_bytes`; for zram, before compression.",
            title="on device",
        ),
        number(
            "cost",
            "Price of `needed_bytes` of DRAM and `device_bytes` of the device (`--cost`); null "
            "if one of their prices is missing.",
            nullable=True,
        ),
    ),
    keys=("storage",),
    metrics={"total_ns": "less", "slowdown": "less", "needed_bytes": "less", "cost": "less"},
)

TABLES: Final = {"rows": ROWS}
