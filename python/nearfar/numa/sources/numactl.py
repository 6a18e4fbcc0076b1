"""The text of ``numactl -H``: sizes, processors and distances; no sockets, kinds or speeds."""

from __future__ import annotations

import re
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.node import Node

SUMMARY = "numactl -H"


def knows(path: Path, text: str) -> bool:
    """Whether it begins as numactl's does."""
    return re.match(r"available: \d+ nodes?", text) is not None


def read(path: Path, text: str) -> list[Node]:
    """Read every node that has memory."""
    sizes = {int(n): int(size) << 20 for n, size in re.findall(r"node (\d+) size: (\d+) MB", text)}
    cpus = {
        int(n): len(words.split()) for n, words in re.findall(r"node (\d+) cpus:([ \d]*)", text)
    }
    order: list[int] = []
    distances: dict[int, dict[int, int]] = {}
    table = text.partition("node distances:")[2].splitlines()
    for line in table:
        if line.split()[:1] == ["node"]:
            order = [int(word) for word in line.split()[1:] if word.isdigit()]
        elif found := re.match(r"\s*(\d+):((?:\s+\d+)+)\s*$", line):
            row = [int(word) for word in found[2].split()]
            if len(row) != len(order):
                raise NearfarError(f"{path}: node {found[1]} has {len(row)} distances; save again")
            distances[int(found[1])] = dict(zip(order, row, strict=True))
    if not sizes:
        raise NearfarError(f"{path}: no `node N size:` line; save the output of numactl -H again")
    return [
        Node(
            node=number,
            size=size,
            source=f"numactl -H ({path.name})",
            kind="dram" if cpus.get(number) else None,
            cpus=cpus.get(number, 0),
            distances=distances.get(number, {}),
        )
        for number, size in sizes.items()
        if size > 0
    ]
