"""A made-up result of ``nearfar run``."""

from __future__ import annotations

from typing import Any

from nearfar import live

MIB = 1 << 20
BUDGET = 8 * MIB


def ran(**more: Any) -> live.Outcome:
    """A run with half of the program's memory fast; ``more`` overrides values."""
    counters = dict.fromkeys(live.counters(), 0) | {"faults": 1200, "promotions": 340, "aborts": 1}
    options = {"fast": "50%", "far": "zstd", "policy": "ssp", "epf": "all"}
    usual: dict[str, Any] = {
        "run": {
            "study": "run",
            "command": "nearfar run --fast 50% -- sort big.txt",
            "options": options,
            "version": "1",
            "program": ["sort", "big.txt"],
            "kernel": "6.18",
        },
        "command": ["sort", "big.txt"],
        "options": options,
        "counters": counters,
        "images": 1,
        "fast_bytes": int(7.5 * MIB),
        "far_pages_bytes": 20 * MIB,
        "window_bytes": 0,
        "far_bytes": 3 * MIB,
        "seconds": 4.0,
        "user_seconds": 2.0,
        "system_seconds": 0.25,
        "manager_seconds": 0.5,
        "budget_bytes": BUDGET,
        "far_size_bytes": 16 * BUDGET,
        "far_latency_ns": 0,
        "exit_code": 0,
        "why": None,
        "alone_seconds": 2.0,
        "alone_exit_code": 0,
        "alone_bytes": 16 * MIB,
    }
    return live.Outcome(**{**usual, **more})
