"""The model's value for each statement of paper 004 (aliusM; ``papers/004/statements.toml``).

The model of docs/numa.md computes table 2 from table 1 and published latencies
(``machines/optane-4node.toml``). It is not fitted to the nine times of table 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nearfar.numa import TABLE_2, AllocRow, alloc, pair, run

#: Memory modules (DIMMs) per node of the paper's machine.
_MODULES: Final = 3


def measures(all_modules: bool = False) -> dict[str, tuple[float, str]]:
    """The simulated value of each statement by its key, with a note.

    Args:
        all_modules: whether a core writes to all interleaved modules at once, instead of only the
            one that holds its page.
    """

    def cell(mode: str, size: int) -> AllocRow:
        return alloc(f"{size}G", mode=mode, all_modules=all_modules).rows[0]

    values: dict[str, tuple[float, str]] = {}
    for kind, node in (("pmem", 4), ("dram", 0)):
        for pattern in ("sequential", "random"):
            for way, writes in (("read", 0.0), ("write", 1.0)):
                seen = run(
                    "1G", mode="kmem-dax", nodes=[node], threads=24,
                    pattern=pattern, writes=writes,
                ).rows[0]  # fmt: skip
                note = f"node {node}, 24 threads, divided by its {_MODULES} modules"
                values[f"{kind}-{pattern}-{way}"] = (_known(seen["gb_per_second"]) / _MODULES, note)
    for (mode, size), published in TABLE_2.items():
        row = cell(mode, size)
        seconds = _known(row["seconds"])
        residual = 100 * (seconds / published - 1)
        slowest = {entry["bound_by"] for entry in row["landed"] if entry["bytes"]}
        note = f"residual {residual:+.1f} %; bound by {', '.join(sorted(slowest))}"
        values[f"{mode}-{size}"] = (seconds, note)
    impossible = cell("memory-mode", 3000)
    values["memory-mode-3000"] = (float(impossible["possible"]), str(impossible["why_not"]))
    residuals = [
        abs(values[f"{mode}-{size}"][0] / published - 1)
        for (mode, size), published in TABLE_2.items()
    ]
    values["mean-residual"] = (sum(residuals) / len(residuals), f"largest {max(residuals):.3f}")
    return values | _pairs() | {key: measure(values, cell) for key, measure in _TEXT.items()}


def _known(value: float | None) -> float:
    """The value of a possible allocation or run."""
    assert value is not None
    return value


Values = dict[str, tuple[float, str]]
Cell = Callable[[str, int], AllocRow]


def _like_far_dram(_: Values, __: Cell) -> tuple[float, str]:
    """Bandwidth of the own socket's persistent memory, over that of the other socket's DRAM."""

    def ratio(threads: int, pattern: str, writes: float) -> float:
        pmem, far_dram = (
            _known(
                run(
                    "1G", mode=mode, nodes=nodes, threads=threads, pattern=pattern, writes=writes
                ).rows[0]["gb_per_second"]
            )
            for mode, nodes in (("interleave", [4, 5]), ("kmem-dax", [2]))
        )
        return pmem / far_dram

    others = {
        "random loads": ratio(24, "random", 0.0),
        "sequential stores": ratio(24, "sequential", 1.0),
        "sequential loads of one thread": ratio(1, "sequential", 0.0),
        "random loads of one thread": ratio(1, "random", 0.0),
    }
    shown = ", ".join(f"{what} {value:.2f}" for what, value in others.items())
    return ratio(24, "sequential", 0.0), f"other accesses: {shown}"


def _alius_faster(values: Values, _: Cell) -> tuple[float, str]:
    sizes = (80, 700, 1000, 2000)
    ratios = {size: values[f"memory-mode-{size}"][0] / values[f"alius-{size}"][0] for size in sizes}
    smallest = min(ratios, key=lambda size: ratios[size])
    return ratios[smallest], f"at {smallest} GB"


def _dram_only(values: Values, cell: Cell) -> tuple[float, str]:
    alone = _known(cell("local", 80)["seconds"])
    return values["alius-80"][0] / alone, "local: only DRAM is memory"


def _no_benefit(values: Values, _: Cell) -> tuple[float, str]:
    """In memory mode: seconds per GB of 80 GB, which fit the DRAM cache, over those of 700 GB."""
    ratio = values["memory-mode-80"][0] / 80 / (values["memory-mode-700"][0] / 700)
    return ratio, "the cache is full of dirty lines at the start"


def _remote(values: Values, _: Cell) -> tuple[float, str]:
    """Seconds of the last 1000 GB, partly on the other socket, over those of the 1000 GB before."""
    at = {size: values[f"alius-{size}"][0] for size in (1000, 2000, 3000)}
    return (at[3000] - at[2000]) / (at[2000] - at[1000]), "in table 2 of the paper: 2.07"


def _pairs() -> Values:
    values = {}
    rows = pair("48G", "48G", overlap=[1.0, 0.0]).rows
    for key, row in zip(("pair", "pair-apart"), rows, strict=False):
        together, alone = row["together_hit_rate_a"], row["alone_hit_rate_a"]
        note = f"hit rate {alone:.2f} alone, {together:.2f} together"
        values[key] = (row["slowdown_a"], note)
    return values


#: Statements in the text of the paper, not in its tables.
_TEXT: Final[dict[str, Callable[[Values, Cell], tuple[float, str]]]] = {
    "like-far-dram": _like_far_dram,
    "alius-faster": _alius_faster,
    "dram-only": _dram_only,
    "no-benefit": _no_benefit,
    "remote-pmem": _remote,
}
