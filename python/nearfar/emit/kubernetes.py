"""A patch that sets the memory of a Kubernetes container.

Sets: ``limits.memory``, above which the kernel kills the container, to the value of
``systemd-memory``; ``requests.memory``, by which the scheduler chooses a node, to the memory that
the program needs, or with swap on the node to the ``MemoryHigh=`` of ``systemd-memory``.

Cannot: set huge pages; set ``memory.high``, which the kubelet does with the feature MemoryQoS.

Do not use: for a pod without controller, whose resources cannot be patched.
"""

from __future__ import annotations

import re

from nearfar.emit._memory import MIB, MemoryRow, heading, limits
from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._shell import config

SUMMARY = "a Kubernetes patch with requests and limits"
SUFFIX = ".yaml"


def emit(row: MemoryRow) -> str:
    """A patch for the container that is named after the row's ``vm``."""
    found = limits(row)
    name = re.sub("[^a-z0-9]+", "-", row["vm"].lower()).strip("-")[:63] or "container"
    request = min(found.high or -(-row["memory_bytes"] // MIB), found.most)
    usage = [
        "kubectl patch deployment NAME --patch-file FILE",
        "The name is that of the container.",
    ]
    lines = [
        "spec:",
        "  template:",
        "    spec:",
        "      containers:",
        f'        - name: "{name}"',
        "          resources:",
        "            requests:",
        f"              memory: {request}Mi",
        "            limits:",
        f"              memory: {found.most}Mi",
    ]
    return config([*heading(row), *usage], lines)
