"""Shell lines that limit the memory of a control group, until it is removed.

Sets: ``memory.high`` and ``memory.max`` (version 2), to what ``systemd-memory`` sets. Where the
memory controller is of version 1, ``memory.soft_limit_in_bytes``, which counts only while the whole
host is short, and ``memory.limit_in_bytes``. The group is made if it is not there.

Cannot: put processes into it: write their numbers to its ``cgroup.procs``. Limit a group of version
2 whose parent does not have ``memory`` in ``cgroup.subtree_control``; it then says so.

Do not use: below a group that systemd manages: it writes its own (``systemd-memory``).
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._memory import MIB, explained, high, most
from nearfar.emit._memory import NEEDS as NEEDS
from nearfar.emit._shell import script

SUMMARY = "shell lines that limit a control group"
SUFFIX = ".sh"


def emit(row: Row) -> str:
    """A script; its argument is a group, below the folder of the memory controller."""
    below, above = high(row) * MIB, most(row) * MIB
    body = [
        f"group=${{1:-{row['vm']}}}",
        "if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then",
        '  mkdir -p "/sys/fs/cgroup/memory/$group"',
        '  cd "/sys/fs/cgroup/memory/$group"',
        f"  echo {below} > memory.soft_limit_in_bytes",
        f"  echo {above} > memory.limit_in_bytes",
        "else",
        '  mkdir -p "/sys/fs/cgroup/$group"',
        '  cd "/sys/fs/cgroup/$group"',
        '  [ -e memory.high ] || { echo "$group: write +memory to ../cgroup.subtree_control" >&2; '
        "exit 1; }",
        f"  echo {below} > memory.high",
        f"  echo {above} > memory.max",
        "fi",
    ]
    return script([*explained(row), "sh FILE [GROUP]"], body)
