"""Compares where a kernel placed pages with the model of ``nearfar numa``."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar import numa

#: Largest difference that counts as agreement, a share of the allocation. The model allocates every
#: page; the kernel keeps watermarks in each zone, and free pages on per-CPU lists.
TOLERANCE = 0.01
#: The model's mode for each kernel policy, if their names differ.
_MODES = {"default": "kmem-dax", "bind": "kmem-dax"}
_PAGE = 4096


@dataclass(frozen=True)
class Agreement:
    """A comparison: the item, both results as text, their largest difference, its tolerance."""

    item: str
    kernel: str
    model: str
    apart: float
    within: float = TOLERANCE

    @property
    def holds(self) -> bool:
        """Whether kernel and model agree."""
        return self.apart <= self.within


def agreements(record: dict[str, Any]) -> list[Agreement]:
    """Compare fallback orders and the pages of programs in a record with the model."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / f"{record['machine']}.toml"
        first = (record["cases"] or record["vmalloc"])[0]
        machine.write_text(described(record, first["free"]))
        orders = numa.topology(str(machine))["fallback"]
        for node, (kernel, model) in enumerate(zip(record["fallback"], orders, strict=True)):
            sides = (" ".join(map(str, side)) for side in (kernel, model))
            found.append(Agreement(f"fallback of node {node}", *sides, float(kernel != model)))
        for case in record["cases"]:
            machine.write_text(described(record, case["free"]))
            found += case_agreements(str(machine), case)
    return found


def table(record: dict[str, Any], found: list[Agreement]) -> list[str]:
    """Lines of text: item, kernel's result, model's result, difference."""
    cells = [(one.item, one.kernel, one.model, f"{one.apart:.2%}", one.holds) for one in found]
    wide = [max(len(row[column]) for row in cells) for column in range(3)]
    how = ", nodes without cores added later" if record["added"] else ""
    how = f", persistent memory: {record['variant']}" if "variant" in record else how
    lines = [f"{record['machine']}{how}: Linux {record['kernel']}, {record['qemu']}"]
    for item, kernel, model, apart, holds in cells:
        sides = f"{item:<{wide[0]}}  {kernel:<{wide[1]}}  {model:<{wide[2]}}"
        lines.append(f"  {sides}  {apart:>6}{'' if holds else '  APART'}")
    return lines


def described(record: dict[str, Any], free: list[int], *, device: bool = False) -> str:
    """A machine file with the nodes of the emulated machine and its ``free`` pages.

    Nodes without cores that are present at boot are ordinary memory to the kernel: kind ``dram``.
    The model reserves 64 bytes of ``struct page`` for each page, on its node or, for added memory,
    on the nearest DRAM; sizes include them. ``device``: added nodes need none.
    """
    nodes = numa.topology(record["machine"])["nodes"]
    later = [node["node"] for node in nodes if record["added"] and not node["cpus"]]
    hosts = [node["node"] for node in nodes if node["node"] not in later]
    structs = [0] * len(nodes)
    for node in () if device else later:
        near = min(hosts, key=lambda host: record["distances"][node][host])
        structs[near] += -(-free[node] // 64)
    lines = [
        'description = "The emulated machine"',
        "[topology]",
        "nodes = [" + ", ".join(f'"n{node}"' for node in range(len(nodes))) + "]",
    ]
    for key, value in (
        ("sockets", [node["socket"] for node in nodes]),
        ("cpus", [min(node["cpus"], 1) for node in nodes]),
        ("distances", record["distances"]),
    ):
        lines.append(f'{key} = {{ value = {value}, source = "the emulated machine" }}')
    for node, pages in enumerate(free):
        size = pages
        while node in hosts and size - -(-size // 64) - structs[node] < pages:
            size += 1
        lines += [
            f"[node.n{node}]",
            f'kind = "{nodes[node]["kind"] if node in later else "dram"}"',
            f'size = {{ value = "{size * _PAGE}B", source = "free pages and their structures" }}',
        ]
        for place in ("local", "remote"):
            lines.append(f"[node.n{node}.{place}]")
            lines.append('read_latency = { value = "100ns", source = "not used" }')
            for key in ("read_bandwidth", "write_bandwidth"):
                lines.append(f'{key} = {{ value = "10GB/s", source = "not used" }}')
    lines += ["[cost]", 'page_allocation = { value = "100ns", source = "not used" }']
    return "\n".join(lines) + "\n"


def case_agreements(machine: str, case: dict[str, Any], mode: str | None = None) -> list[Agreement]:
    """Compare pages by node after every step of an allocation, and the nodes of its first pages.

    ``mode``: of the model; None for that of the case's policy.
    """
    count = len(case["free"])
    mode = mode or _MODES.get(case["policy"], case["policy"])

    def landed(pages: list[int]) -> list[list[int]]:
        """The model's pages on each node, for each number of allocated pages."""
        rows = numa.alloc(
            [number * _PAGE for number in pages],
            machine=machine,
            mode=[mode],
            allocator="user",
            nodes=case["nodes"],
            weights=case["weights"],
            from_=case["origin"],
        ).rows
        found = [{part["node"]: part["bytes"] // _PAGE for part in r["landed"]} for r in rows]
        return [[row[node] for node in range(count)] for row in found]

    # A step of the path: allocated pages so far, then those on each node.
    steps = [step[0] for step in case["path"]]
    model = landed(steps)
    apart = max(
        abs(ours - theirs)
        for row, step in zip(model, case["path"], strict=True)
        for ours, theirs in zip(row, step[1:], strict=True)
    )
    share = apart / case["pages"]
    sides = (_percent(row, case["pages"]) for row in (case["path"][-1][1:], model[-1]))
    found = [Agreement(f"{case['name']}: pages", *sides, share)]
    # The kernel interleaves by address: the node of the first page depends on its number.
    most = len(case["first"])
    period = sum(case["weights"]) or len(case["nodes"]) or 1
    cumulative = landed(list(range(1, period + 1)))
    before = [[0] * count, *cumulative]
    steps_of = zip(before, cumulative, strict=False)
    pattern = [next(n for n in range(count) if now[n] > was[n]) for was, now in steps_of]
    ours = [pattern[(case["start"] + page) % period] for page in range(most)]
    sides = (" ".join(map(str, row[:16])) for row in (case["first"], ours))
    wrong = sum(a != b for a, b in zip(ours, case["first"], strict=True))
    return [*found, Agreement(f"{case['name']}: first pages", *sides, wrong / most)]


def _percent(pages: list[int], total: int) -> str:
    return " ".join(f"{100 * number / total:.1f}" for number in pages)
