"""A drop-in that limits the memory of the systemd service that runs the program.

Sets: ``MemoryHigh=``, above which the kernel reclaims and throttles the service, to the memory with
which it is at most ``--slowdown`` slower than with all; ``MemoryMax=``, above which the kernel
kills it, to a quarter more than it used when it was captured. Both in MiB, rounded up.

Cannot: swap without swap space: above ``MemoryHigh=`` the service is then only throttled. Set the
page size: see ``madvise``.

Do not use: for the scope of a virtual machine, because the host would swap the guest: give the
guest less memory instead. For a service with several programs, if the trace has only one.
"""

from __future__ import annotations

from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._memory import MemoryRow, heading, high, maximum

SUMMARY = "a drop-in with MemoryHigh= and MemoryMax="
SUFFIX = ".conf"


def emit(row: MemoryRow) -> str:
    """A drop-in for a service."""
    lines = [
        *(f"# {line}" for line in heading(row)),
        f"# Install in /etc/systemd/system/{row['vm']}.service.d/; `systemctl daemon-reload`.",
        "[Service]",
        f"MemoryHigh={high(row)}M",
        f"MemoryMax={maximum(row)}M",
    ]
    return "\n".join(lines) + "\n"
