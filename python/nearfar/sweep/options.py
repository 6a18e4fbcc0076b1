"""Options of ``sweep``.

``make declared`` generates ``nearfar.declared.sweep`` from them.
"""

from __future__ import annotations

from typing import Final

from nearfar.schema import Option

OPTIONS: Final = (
    Option(
        "workers",
        "int",
        "Worker processes; 0 = one per core; ignored with --dask.",
        default=0,
        metavar="COUNT",
    ),
    Option(
        "threads",
        "int",
        "Threads of all processes together, 0 = one per core; with --dask, threads of each cell, "
        "0 = one.",
        default=0,
        metavar="COUNT",
    ),
    Option(
        "dask",
        "str | None",
        "Address of a Dask scheduler, or its scheduler file.",
        shown="none",
        metavar="ADDRESS",
    ),
)
