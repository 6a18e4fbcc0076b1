"""Results of the ``numa`` study as text tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import numa_alloc, numa_pair, numa_plan, numa_run
from nearfar.numa import Node, NumaResult, Row
from nearfar.report.fitted import KEY, Table


def numa(result: NumaResult[Row]) -> RenderableType:
    """The view of a result, by its question."""
    by_question: dict[str, Callable[[Any], RenderableType]] = {
        "alloc": alloc, "run": run, "pair": pair, "plan": plan
    }  # fmt: skip
    return by_question[result.run["question"]](result.rows)


#: Columns with the bytes in each kind of memory, and with their shares.
_Place = Literal["local_dram_bytes", "remote_dram_bytes", "local_far_bytes", "remote_far_bytes"]
_Share = Literal["local_dram_share", "remote_dram_share", "local_far_share", "remote_far_share"]
PLACES: Final[tuple[_Place, ...]] = get_args(_Place)
_SHARES: Final[tuple[_Share, ...]] = get_args(_Share)


def _lowest(values: Mapping[str, float]) -> tuple[float, str]:
    """The lowest value, and the modes that have it."""
    lowest = min(values.values())
    return lowest, ", ".join(m for m, value in values.items() if value <= lowest * (1 + 1e-9))


def alloc(rows: Sequence[numa_alloc.Row]) -> RenderableType:
    """Times and where the bytes are, then why a case is impossible or leaves out nodes."""
    sentences = []
    for size in dict.fromkeys(row["size_bytes"] for row in rows):
        times = {
            row["mode"]: row["seconds"]
            for row in rows
            if row["size_bytes"] == size and row["seconds"] is not None
        }
        if times:
            seconds, modes = _lowest(times)
            sentences.append(f"{units.size(size)}: quickest with {modes}, {_seconds(seconds)}.")
        else:
            sentences.append(f"{units.size(size)}: no mode has room.")
    heads = numa_alloc.ROWS.heads("mode", "size_bytes", "seconds", "gb_per_second", *PLACES)
    shown = _table("Allocate and clear", *heads)
    for row in rows:
        if row["seconds"] is None:
            shown.add_row(row["mode"], units.size(row["size_bytes"]), "impossible")
            continue
        shown.add_row(
            row["mode"],
            units.size(row["size_bytes"]),
            _seconds(row["seconds"]),
            f"{row['gb_per_second']:.2f}",
            *(_gib(row[place]) for place in PLACES),
        )
    lines = [
        f"{row['mode']}, {units.size(row['size_bytes'])}: {row['why_not'] or row['note']}."
        for row in rows
        if row["why_not"] or row["note"]
    ]
    return _view(" ".join(sentences), shown, *map(Text, lines))


def run(rows: Sequence[numa_run.Row]) -> RenderableType:
    """The latency and bandwidth of a program in each mode."""
    latencies = {
        row["mode"]: row["latency_ns"]
        for row in rows
        if row["possible"] and row["latency_ns"] is not None
    }
    answer = "No mode has room, or nothing was accessed."
    if latencies:
        latency, modes = _lowest(latencies)
        answer = f"Lowest latency with {modes}: {latency:.0f} ns."
    known = ("mode", "latency_ns", "gb_per_second", "bound_by", *_SHARES, "cache_hit_rate")
    shown = _table("Memory accesses", *numa_run.ROWS.heads(*known))
    for row in rows:
        if not row["possible"] or row["latency_ns"] is None:
            shown.add_row(row["mode"], "no access" if row["possible"] else "no room")
            continue
        hits = row["cache_hit_rate"]
        shown.add_row(
            row["mode"],
            f"{row['latency_ns']:.0f} ns",
            f"{row['gb_per_second']:.2f}",
            row["bound_by"] or "",
            *(_percent(row[share]) for share in _SHARES),
            "" if hits is None else _percent(hits),
        )
    return _view(answer, shown)


def pair(rows: Sequence[numa_pair.Row]) -> RenderableType:
    """The slowdown of two virtual machines that share a cache."""
    slow = [slowdown for row in rows for slowdown in (row["slowdown_a"], row["slowdown_b"])]
    answer = (
        f"Together the virtual machines are {min(slow):.2f}x to {max(slow):.2f}x as slow as alone."
    )
    heads = ("places in the cache", "hits alone", "hits together", "slowdown")
    shown = _table("Two virtual machines in memory mode", *heads)
    for row in rows:
        overlap = row["overlap"]
        shown.add_row(
            "shuffled" if overlap is None else f"{100 * overlap:.1f} % shared",
            f"{_percent(row['alone_hit_rate_a'])} / {_percent(row['alone_hit_rate_b'])}",
            f"{_percent(row['together_hit_rate_a'])} / {_percent(row['together_hit_rate_b'])}",
            f"{row['slowdown_a']:.2f}x / {row['slowdown_b']:.2f}x",
        )
    return _view(answer, shown)


def plan(rows: Sequence[numa_plan.Row]) -> RenderableType:
    """The candidates, the chosen one marked, and its gain over plain Linux."""
    names = (
        "mode", "nodes", "weights", "latency_ns", "gb_per_second", "bound_by", "clear_seconds"
    )  # fmt: skip
    shown = _table("Possible placements", "", *numa_plan.ROWS.heads(*names))
    for row in rows:
        lists = [",".join(map(str, row["nodes"])), ",".join(map(str, row["weights"]))]
        if not row["possible"]:
            shown.add_row("", row["mode"], *lists, "no room")
            continue
        shown.add_row(
            "*" if row["chosen"] else "",
            row["mode"],
            *lists,
            f"{row['latency_ns']:.0f} ns",
            f"{row['gb_per_second']:.2f}",
            row["bound_by"] or "",
            _seconds(row["clear_seconds"] or 0),
        )
    linux = next(row for row in rows if row["possible"])  # the kernel's default is first
    best = next(row for row in rows if row["chosen"])
    text = best["mode"]
    if best is linux:
        text += ": nothing is better than what Linux does by itself"
    else:
        text += (
            f": against {linux['mode']} latency {-100 * (best['latency_gain'] or 0):+.0f} %, "
            f"bandwidth {100 * (best['bandwidth_gain'] or 0):+.0f} %"
        )
    if not best["enough"]:
        text += "; the requested bandwidth is not possible"
    if len(best["dram_nodes"]) > 1 and not best["far_nodes"]:
        text += ". All nodes are DRAM, one memory tier: Linux demotes nothing between them"
    return _view(f"{text}.", shown)


def nodes(rows: Sequence[Node]) -> RenderableType:
    """Memory nodes as the machine describes them."""
    heads = ("node", "kind", "size", "CPUs", "socket", "read latency", "read bandwidth", "source")
    shown = _table("Memory nodes", *heads)
    for row in rows:
        latency, rate = row.read_latency, row.read_bandwidth
        shown.add_row(
            str(row.node),
            row.kind or "",
            units.size(row.size),
            str(row.cpus),
            str(row.socket),
            "" if latency is None else f"{latency} ns",
            "" if rate is None else f"{rate / 1e9:.1f} GB/s",
            row.source,
        )
    return shown


def _view(headline: str, *parts: RenderableType) -> RenderableType:
    return Group(Text(headline, style="bold"), Text(""), *parts)


def _table(title: str, first: str, second: str, *others: str) -> Table:
    table = Table(title)
    table.add_column(first, importance=KEY)
    table.add_column(second, justify="right", importance=KEY)
    table.add_columns(others, justify="right")
    return table


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 0.01 else f"{value * 1e3:.3g} ms"


def _gib(value: int) -> str:
    return f"{value / 2**30:,.1f} GiB" if value else "-"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value else "-"
