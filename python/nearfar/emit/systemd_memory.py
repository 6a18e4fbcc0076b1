"""A drop-in that limits the memory of the systemd service that runs the program.

Sets: ``MemoryMax=``, above which the kernel kills the service, to the recorded peak resident set
plus a quarter and room for kernel memory; with swap also ``MemoryHigh=``, above which the kernel
reclaims and throttles, to the memory with an accepted ``--slowdown``. In MiB, rounded up.

Cannot: set the page size. Without swap space, ``MemoryHigh=`` only throttles the service.

Do not use: for the scope of a virtual machine, because the host would swap the guest: give the
guest less memory instead. For a service with several programs, if the trace has only one.
"""

from __future__ import annotations

from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._memory import MemoryRow, heading, limits
from nearfar.emit._shell import config

SUMMARY = "a systemd drop-in with MemoryHigh= and MemoryMax="
SUFFIX = ".conf"


def emit(row: MemoryRow) -> str:
    """A drop-in for a service."""
    found = limits(row)
    usage = f"Install in /etc/systemd/system/{row['vm']}.service.d/; `systemctl daemon-reload`."
    lines = [
        "[Service]",
        *([] if found.high is None else [f"MemoryHigh={found.high}M"]),
        f"MemoryMax={found.most}M",
    ]
    return config([*heading(row), usage], lines)
