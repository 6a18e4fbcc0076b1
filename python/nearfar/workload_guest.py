"""Workloads in guests: the options of ``nearfar capture`` that run one in a virtual machine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nearfar.strict import Json

#: About how much slower a program is in a captured guest than when it is captured by itself; time
#: limits and pauses are multiplied by it.
SLOWER: Final = 10
#: Time limit of a client in seconds: a client of a program that failed to start would wait forever.
_PATIENCE: Final = 1200
#: 2G: the guest unpacks its packages into memory. Its tasks become threads of the trace. As in the
#: capture of a program, only memory that is touched during the capture counts. QEMU runs
#: `rep movsb` and `rep stosb` a byte at a time, so the kernel and glibc are set up without them.
_OPTIONS: Final = (
    *("--vm-image", "debian", "--memory", "2G", "--by-task", "--no-resident"),
    *("--append", "clearcpuid=erms,fsrm"),
)
_ENVIRONMENT: Final = {
    "HOME": "/work",
    "TMPDIR": "/work",
    "PYTHONHASHSEED": "0",
    "GLIBC_TUNABLES": ":".join(
        f"glibc.cpu.x86_rep_{name}_threshold={1 << 30}" for name in ("movsb", "stosb")
    ),
}


def in_guest(workload: Json, folder: Path) -> list[str]:
    """The options and the command of ``nearfar capture``.

    Args:
        workload: a :class:`nearfar.workload.Workload` as a dictionary.
        folder: its working folder, with its inputs.
    """
    packages = ",".join(workload["packages"])
    options = [*_OPTIONS, "--packages", packages, "--put", f"{folder}=/work"]
    return [*options, "--", "sh", "-c", script(workload)]


def script(workload: Json) -> str:
    """The shell script that runs a workload in its guest, with its display and its clients."""
    given = _ENVIRONMENT | workload["environment"]
    lines = [f"export {key}={shlex.quote(value)}" for key, value in given.items()]
    if workload["display"]:
        lines += [
            "Xvfb :0 -screen 0 1280x1024x24 -nolisten tcp >/dev/null 2>&1 &",
            "until [ -e /tmp/.X11-unix/X0 ]; do sleep 1; done",
            "export DISPLAY=:0",
        ]
    name, *rest = workload["command"]
    # Find the path, because the guest's shell has built-in programs of the same names.
    file = f'"$at"/{shlex.quote(name)}'
    lines.append(
        f"program=$(IFS=:; for at in $PATH; do [ ! -x {file} ] || {{ echo {file}; break; }}; done)"
    )
    stdin = shlex.quote(workload["stdin"] or os.devnull)
    program = f'"$program" {shlex.join(rest)} <{stdin} >/dev/null'
    if not workload["client"]:
        return "\n".join([*lines, program])
    lines += [f"{program} &", "job=$!"]
    if workload["ready"]:
        ready = shlex.quote(workload["ready"])
        lines.append(f"until [ -e {ready} ]; do kill -0 $job || exit 1; sleep 1; done")
    clients = [f"timeout {_PATIENCE} {_client(words)}" for words in workload["client"]]
    # Discard output: the console is slow.
    lines += [f"{client} >/dev/null || exit 1" for client in clients]
    return "\n".join([*lines, "wait $job"])


def _client(words: Sequence[str]) -> str:
    """A command of a client, with longer waits; ``<`` and a file name redirect standard input."""
    slower = [
        str(int(word) * SLOWER) if before in ("sleep", "--delay") else word
        for before, word in zip(["", *words], words, strict=False)
    ]
    return " ".join(word if word == "<" else shlex.quote(word) for word in slower)
