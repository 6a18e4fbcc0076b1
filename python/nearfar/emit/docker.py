"""An override file of Docker Compose that limits the memory of a service.

Sets: ``mem_limit``, above which the kernel kills the container, and with swap ``mem_reservation``,
to which the kernel reclaims if the host is short of memory. The values are those of
``systemd-memory``.

Cannot: reclaim at a limit while the host has memory, as ``memory.high`` does.

Do not use: with ``deploy.resources`` in another file for the same service; Compose refuses both.
"""

from __future__ import annotations

from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._memory import MemoryRow, heading, limits
from nearfar.emit._shell import config

SUMMARY = "a Docker Compose override with mem_limit"
SUFFIX = ".yaml"


def emit(row: MemoryRow) -> str:
    """An override for the service that has the name in the row's ``vm``."""
    found = limits(row)
    usage = "docker compose -f compose.yaml -f FILE up; docker run --memory takes the same values."
    lines = [
        "services:",
        f'  "{row["vm"]}":',
        f"    mem_limit: {found.most}m",
        *([] if found.high is None else [f"    mem_reservation: {found.high}m"]),
    ]
    return config([*heading(row), usage], lines)
