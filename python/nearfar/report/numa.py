"""Results of the ``numa`` study as text tables. Every function takes what is printed as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import numa_alloc, numa_plan, numa_run
from nearfar.report.fitted import KEY, Table

Rows = Sequence[Mapping[str, Any]]


def numa(result: Mapping[str, Any]) -> RenderableType:
    """The answer to the question that a result is of."""
    questions = {"alloc": alloc, "run": run, "pair": pair, "plan": plan}
    return questions[result["run"]["question"]](result["rows"])


def _headline(*sentences: str) -> Text:
    return Text(" ".join(sentences), style="bold")


def _least(rows: Rows, key: str) -> tuple[float, str]:
    """The least value, and the modes that have it."""
    least = min(row[key] for row in rows)
    return least, ", ".join(row["mode"] for row in rows if row[key] <= least * (1 + 1e-9))


def alloc(rows: Rows) -> RenderableType:
    """Times and where the bytes landed; below it why what could not be done could not."""
    sentences = []
    for size in dict.fromkeys(row["size_bytes"] for row in rows):
        done = [row for row in rows if row["size_bytes"] == size and row["possible"]]
        if done:
            seconds, modes = _least(done, "seconds")
            sentences.append(f"{units.size(size)}: quickest with {modes}, {_seconds(seconds)}.")
        else:
            sentences.append(f"{units.size(size)}: no mode has room.")
    shown = Table("Allocate and clear")
    places = ("local_dram_bytes", "remote_dram_bytes", "local_far_bytes", "remote_far_bytes")
    heads = numa_alloc.ROWS.heads("mode", "size_bytes", "seconds", "gb_per_second", *places)
    _columns(shown, *heads)
    for row in rows:
        done = row["possible"]
        shown.add_row(
            row["mode"],
            units.size(row["size_bytes"]),
            _seconds(row["seconds"]) if done else "impossible",
            f"{row['gb_per_second']:.2f}" if done else "",
            *(_gib(row[place]) if done else "" for place in places),
        )
    lines = [
        f"{row['mode']}, {units.size(row['size_bytes'])}: {row['why_not']}."
        for row in rows
        if not row["possible"]
    ]
    return Group(_headline(*sentences), Text(""), shown, *map(Text, lines))


def run(rows: Rows) -> RenderableType:
    """What a program sees under each mode."""
    seen = [row for row in rows if row["possible"] and row["latency_ns"] is not None]
    answer = "No mode has room, or nothing was accessed."
    if seen:
        latency, modes = _least(seen, "latency_ns")
        answer = f"Least latency with {modes}: {latency:.0f} ns."
    shown = Table("Memory accesses")
    places = ("local_dram_share", "remote_dram_share", "local_far_share", "remote_far_share")
    known = ("mode", "latency_ns", "gb_per_second", "bound_by", *places, "cache_hit_rate")
    _columns(shown, *numa_run.ROWS.heads(*known))
    for row in rows:
        if not row["possible"]:
            shown.add_row(row["mode"], "no room")
            continue
        if row["latency_ns"] is None:
            shown.add_row(row["mode"], "no access")
            continue
        hits = row["cache_hit_rate"]
        shown.add_row(
            row["mode"],
            f"{row['latency_ns']:.0f} ns",
            f"{row['gb_per_second']:.2f}",
            row["bound_by"],
            *(_percent(row[place]) for place in places),
            "" if hits is None else _percent(hits),
        )
    return Group(_headline(answer), Text(""), shown)


def pair(rows: Rows) -> RenderableType:
    """How two virtual machines fare."""
    slow = [row[f"slowdown_{guest}"] for row in rows for guest in "ab"]
    answer = f"Together they are {min(slow):.2f}x to {max(slow):.2f}x as slow as alone."
    shown = Table("Two virtual machines in memory mode")
    _columns(shown, "places in the cache", "hits alone", "hits together", "slowdown")
    for row in rows:
        place = "shuffled" if row["shuffled"] else f"{_percent(row['overlap'])} shared"
        shown.add_row(
            place,
            " / ".join(_percent(row[f"alone_hit_rate_{guest}"]) for guest in "ab"),
            " / ".join(_percent(row[f"together_hit_rate_{guest}"]) for guest in "ab"),
            " / ".join(f"{row[f'slowdown_{guest}']:.2f}x" for guest in "ab"),
        )
    return Group(_headline(answer), Text(""), shown)


def plan(rows: Rows) -> RenderableType:
    """The candidates, the chosen one marked, and what it gains over plain Linux."""
    shown = Table("Ways to place it")
    figures = ("latency_ns", "gb_per_second", "bound_by", "clear_seconds")
    _columns(shown, "", *numa_plan.ROWS.heads("mode", "nodes", "weights", *figures))
    for row in rows:
        lists = (",".join(map(str, row[key])) for key in ("nodes", "weights"))
        if not row["possible"]:
            shown.add_row("", row["mode"], *lists, "no room")
            continue
        shown.add_row(
            "*" if row["chosen"] else "",
            row["mode"],
            *lists,
            f"{row['latency_ns']:.0f} ns",
            f"{row['gb_per_second']:.2f}",
            row["bound_by"],
            _seconds(row["clear_seconds"]),
        )
    usual = next(row for row in rows if row["possible"])
    best = next(row for row in rows if row["chosen"])
    text = best["mode"]
    if best is usual:
        text += ": nothing is better than what Linux does by itself"
    else:
        text += (
            f": against {usual['mode']} latency {-100 * best['latency_gain']:+.0f} %, "
            f"bandwidth {100 * best['bandwidth_gain']:+.0f} %"
        )
    if not best["enough"]:
        text += "; the bandwidth asked for cannot be had"
    return Group(_headline(text + "."), Text(""), shown)


def nodes(rows: Rows) -> RenderableType:
    """Nodes as they are described."""
    shown = Table("Memory nodes")
    _columns(shown, "node", "kind", "size", "CPUs", "socket", "read", "bandwidth", "from")
    for row in rows:
        latency, rate = row["read_latency"], row["read_bandwidth"]
        shown.add_row(
            str(row["node"]),
            row["kind"],
            units.size(row["size"]),
            str(row["cpus"]),
            str(row["socket"]),
            "" if latency is None else f"{latency} ns",
            "" if rate is None else f"{rate / 1e9:.1f} GB/s",
            row["source"],
        )
    return shown


def _columns(shown: Table, first: str, *others: str) -> None:
    shown.add_column(first, importance=KEY)
    for place, name in enumerate(others):
        shown.add_column(name, justify="right", importance=1 if place else KEY)


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 0.01 else f"{value * 1e3:.3g} ms"


def _gib(value: int) -> str:
    return f"{value / 2**30:,.1f} GiB" if value else "-"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value else "-"
