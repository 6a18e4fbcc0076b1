"""What ``sweep`` takes.

``make declared`` writes it as types and data, ``nearfar.declared.sweep``.
"""

from __future__ import annotations

from typing import Final

from nearfar.schema import Option

OPTIONS: Final = (
    Option(
        "workers",
        "int",
        "Processes; 0 = one per core. A Dask cluster has its own.",
        default=0,
        metavar="COUNT",
    ),
    Option(
        "threads",
        "int",
        "Threads of the engine over all processes, 0 = one per core; with --dask in each cell, "
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
    Option(
        "dask_tls_ca",
        "str | None",
        "Certificate of the authority that the scheduler's must be signed by (PEM); with "
        "--dask-tls-cert and --dask-tls-key.",
        shown="no TLS",
        metavar="FILE",
    ),
    Option(
        "dask_tls_cert",
        "str | None",
        "Client certificate (PEM).",
        shown="no TLS",
        metavar="FILE",
    ),
    Option(
        "dask_tls_key",
        "str | None",
        "Key of the client certificate (PEM).",
        shown="no TLS",
        metavar="FILE",
    ),
)
