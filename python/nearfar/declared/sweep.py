"""Options and rows of ``nearfar sweep``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar sweep``, by name."""

    workers: int
    threads: int
    parts: int
    dask: str | None
    dask_tls_ca: str | None
    dask_tls_cert: str | None
    dask_tls_key: str | None


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
        "parts",
        type="int",
        what="Parts of each cell, for different workers: page sizes of paging, seeds of tiering; the result is the same. 0 = on Dask as many as keep its workers busy, else 1.",
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
    Option(
        "dask_tls_ca",
        type="str | None",
        what="Certificate of the authority that the scheduler's must be signed by (PEM); with --dask-tls-cert and --dask-tls-key.",
        shown="no TLS",
        metavar="FILE",
    ),
    Option(
        "dask_tls_cert",
        type="str | None",
        what="Client certificate (PEM).",
        shown="no TLS",
        metavar="FILE",
    ),
    Option(
        "dask_tls_key",
        type="str | None",
        what="Key of the client certificate (PEM).",
        shown="no TLS",
        metavar="FILE",
    ),
)
