"""A drop-in that limits the memory of a systemd service that runs the program.

Sets: ``MemoryHigh=``, above which the service is reclaimed and slowed down, to the memory with
which it runs within ``--slowdown`` of having all; ``MemoryMax=``, where it is killed, a quarter
above all that it wanted. Both in MiB, rounded up.

Cannot: make it swap where there is no swap: above ``MemoryHigh=`` it is then only slowed down. Set
the page size: see ``madvise``.

Do not use: for the scope of a virtual machine, which would make the host swap the guest: give the
guest less instead. For a service with several programs, of which the trace has one.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._memory import explained, high, most

SUMMARY = "a drop-in with MemoryHigh= and MemoryMax="
SUFFIX = ".conf"


def emit(row: Row) -> str:
    """A drop-in for a service."""
    lines = [
        *(f"# {line}" for line in explained(row)),
        f"# Put it into /etc/systemd/system/{row['vm']}.service.d/; `systemctl daemon-reload`.",
        "[Service]",
        f"MemoryHigh={high(row)}M",
        f"MemoryMax={most(row)}M",
    ]
    return "\n".join(lines) + "\n"
