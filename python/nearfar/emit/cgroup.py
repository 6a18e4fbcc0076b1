"""Shell lines that limit the memory of a control group, until the group is removed.

Sets: ``memory.high`` and ``memory.max`` (version 2), as the emitter ``systemd-memory`` does. With
version 1: ``memory.soft_limit_in_bytes``, which the kernel enforces only while the host is short
of memory, and ``memory.limit_in_bytes``. Creates the group if needed.

Cannot: add processes to the group. Cannot limit a version 2 group whose parent lacks ``memory`` in
``cgroup.subtree_control``; the script then says so.

Do not use: below a group that systemd manages, because systemd overwrites the limits. Use
``systemd-memory`` there.
"""

from __future__ import annotations

from nearfar.emit._memory import MIB, MemoryRow, heading, limits
from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._shell import script

SUMMARY = "shell lines that limit a control group"
SUFFIX = ".sh"


def emit(row: MemoryRow) -> str:
    """A script. Its argument is a group's path below the root of the memory controller, by default
    the name of the program (column ``vm``)."""
    found = limits(row)
    hard = found.most * MIB
    soft = None if found.high is None else found.high * MIB
    body = [
        f"group=${{1:-{row['vm']}}}",
        "if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then",
        '  mkdir -p "/sys/fs/cgroup/memory/$group"',
        '  cd "/sys/fs/cgroup/memory/$group"',
        *([] if soft is None else [f"  echo {soft} > memory.soft_limit_in_bytes"]),
        f"  echo {hard} > memory.limit_in_bytes",
        "else",
        '  mkdir -p "/sys/fs/cgroup/$group"',
        '  cd "/sys/fs/cgroup/$group"',
        '  [ -e memory.high ] || { echo "$group: write +memory to ../cgroup.subtree_control" >&2; '
        "exit 1; }",
        *([] if soft is None else [f"  echo {soft} > memory.high"]),
        f"  echo {hard} > memory.max",
        "fi",
    ]
    usage = [
        "sh FILE [GROUP]; then start a program in it:",
        "sh -c 'echo $$ > /sys/fs/cgroup/GROUP/cgroup.procs; exec PROGRAM'",
    ]
    return script([*heading(row), *usage], body)
