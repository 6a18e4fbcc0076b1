"""Options and rows of ``nearfar sweep``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar sweep``, by name."""

    workers: int
    threads: int
    dask: str | None


OPTIONS: Final = (
    Option(
        "workers",
        type="int",
        what="Processes; 0 = one per core. A Dask cluster has its own.",
        default=0,
        metavar="COUNT",
    ),
    Option(
        "threads",
        type="int",
        what="Threads of the engine over all processes, 0 = one per core; with --dask in each cell, 0 = one.",
        default=0,
        metavar="COUNT",
    ),
    Option(
        "dask",
        type="str | None",
        what="Address of a Dask scheduler, or its scheduler file.",
        shown="none",
        metavar="ADDRESS",
    ),
)
