"""Check that the records of a trace lie in the memory that its events map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from capturing import KERNEL, info, records, regions

Range = tuple[int, int]


class Space:
    """The mapped ranges of a process, in order, none empty, none overlapping."""

    def __init__(self, ranges: list[Range] | None = None, heap: Range = (0, 0)) -> None:
        self.ranges = list(ranges or [])
        self.heap = heap

    def unmap(self, start: int, end: int) -> list[Range]:
        """Unmap a range; returns the parts of it that were mapped."""
        removed, kept = [], []
        for first, last in self.ranges:
            if last <= start or end <= first:
                kept.append((first, last))
                continue
            removed.append((max(first, start), min(last, end)))
            kept += [(first, start)] * (first < start) + [(end, last)] * (end < last)
        self.ranges = kept
        return removed

    def map(self, start: int, end: int) -> None:
        self.unmap(start, end)
        if start < end:
            self.ranges = sorted([*self.ranges, (start, end)])

    def outside(self, addresses: Any) -> Any:
        """Which of the addresses lie in no range."""
        starts = np.array([first for first, _ in self.ranges], dtype=np.uint64)
        ends = np.array([0] + [last for _, last in self.ranges], dtype=np.uint64)
        place = np.searchsorted(starts, addresses, side="right")
        return addresses >= ends[place]


def up(address: int) -> int:
    """The address, rounded up to a page."""
    return (address + 4095) // 4096 * 4096


def apply(spaces: dict[int, Space], event: dict[str, Any], process: int) -> None:
    space = spaces.setdefault(process, Space())
    start, end = event["addr"], event["addr"] + event["length"]
    match event["event"]:
        case "map":
            space.map(start, end)
        case "unmap":
            space.unmap(start, end)
        case "brk":
            space.unmap(*space.heap)
            space.heap = (start, up(end))
            space.map(*space.heap)
        case "move":
            moved = space.unmap(start, end)
            assert moved and sum(b - a for a, b in moved) == end - start, event
            space.unmap(event["to"], event["to"] + event["length"])
            for a, b in moved:
                space.map(a - start + event["to"], b - start + event["to"])
        case "fork" | "vfork":
            assert event["to"] not in spaces, event
            spaces[event["to"]] = Space(space.ranges, space.heap)
        case "exec":
            spaces[process] = Space()
        case "exit":
            del spaces[process]


def stray(trace: Path) -> list[tuple[int, str, int, int]]:
    """User-space records of addresses that no earlier event has mapped.

    Returns number, kind, address and thread of each process's first such record between two events.
    """
    table = records(trace)
    addresses = table["addr"].to_numpy()
    threads = table["thread"].to_numpy()
    process_of = {thread["index"]: thread["process"] for thread in info(trace)["threads"]}
    spaces: dict[int, Space] = {}
    found: list[tuple[int, str, int, int]] = []

    processes = np.array([process_of[index] for index in range(len(process_of))])[threads]
    below = addresses < KERNEL

    def check(first: int, last: int) -> None:
        for process in np.unique(processes[first:last]).tolist():
            mine = below[first:last] & (processes[first:last] == process)
            places = first + np.flatnonzero(mine)
            space = spaces.get(process, Space())
            outside = space.outside(addresses[places])
            for at in places[outside][:1].tolist():
                kind = table["kind"][at].as_py()
                found.append((at, kind, hex(addresses[at]), int(threads[at])))

    at = 0
    for event in regions(trace):
        assert at <= event["at"], event
        if at < event["at"]:
            check(at, event["at"])
        at = event["at"]
        apply(spaces, event, process_of[event["thread"]])
    check(at, len(addresses))
    return found
