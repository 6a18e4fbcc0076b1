"""A made-up result of ``nearfar watch``."""

from __future__ import annotations

from typing import Any

import nearfar
from nearfar.declared import watch as declared
from nearfar.watch import WatchResult

MIB = 1 << 20


def row(**more: Any) -> declared.Row:
    """A row that says 16 (15 to 20) of 64 MiB are needed; ``more`` overrides values."""
    usual: dict[str, Any] = dict.fromkeys(column.name for column in declared.ROWS.columns)
    usual |= {
        "vm": "redis", "method": "accessed", "why_method": "accessed bits", "machine": "nvme",
        "storage": "zram", "memory_bytes": 16 * MIB, "low_bytes": 15 * MIB,
        "high_end_bytes": 20 * MIB, "slowdown": 0.05, "faults": 5000.0,
        "anonymous_bytes": 15 * MIB, "file_bytes": MIB, "resident_bytes": 64 * MIB,
        "peak_bytes": 70 * MIB, "locked_bytes": 0, "swapped_bytes": 48 * MIB,
        "zram_bytes": 24 * MIB, "high_bytes": 30 * MIB, "max_bytes": 96 * MIB, "seconds": 60.0,
        "cost": 0.01, "processes": 2,
    }  # fmt: skip
    return declared.Row(**{**usual, **more})  # type: ignore[typeddict-item]


def watched(**more: Any) -> WatchResult:
    """A result with :func:`row`, and working sets of four windows."""
    windows = [
        declared.WindowsRow(
            seconds=10.0**step, anonymous_bytes=size * MIB, file_bytes=MIB, faults=faults,
            slowdown=faults / 1e5,
        )
        for step, size, faults in ((-1, 4, 90000.0), (0, 12, 9000.0), (1, 20, 900.0), (2, 40, 0.0))
    ]  # fmt: skip
    run: Any = {
        "study": "watch", "command": "nearfar watch 1234", "machine": "nvme",
        "options": {"slowdown": "5%"}, "version": nearfar.__version__,
    }  # fmt: skip
    return WatchResult(run, [row(**more)], windows)
