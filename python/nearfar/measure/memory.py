"""Measures clock, caches, memory nodes, TLBs and page walks, for sections of a machine file."""

from __future__ import annotations

import time
from typing import Final

from nearfar import _engine
from nearfar.measure.bench import LARGE, LINE, PAGE, STRIDE, Bench, Loads, Section, Sourced
from nearfar.measure.documented import Documented
from nearfar.measure.samples import Samples, size_text, time_text
from nearfar.measure.system import TlbLevel
from nearfar.numa.node import Node
from nearfar.units import digits, size

#: Numbers of parallel chains of loads to try.
_CHAINS: Final = (8, 12, 16, 24, 32, 48, 64)
#: Bytes that all chains together access before they move on; a TLB covers them.
_CHAINS_WINDOW: Final = 1 << 20
#: Bytes over which page walks are measured, far beyond the reach of a TLB; and in a quick run.
_WALKED, _QUICK_WALKED = 512 << 20, 64 << 20
#: Runs that measure the size of the last cache.
_CAPACITY_RUNS: Final = 3
#: Tries of a measurement that other programs may disturb.
_TRIES: Final = 8
#: Source of values that depend on the program more than on the processor.
_ASSUMED: Final = (
    "assumption: with it, --view machine comes near the run times of eleven programs on Zen 4"
)


def cpu(bench: Bench, known: Documented | None) -> tuple[Section, float]:
    """``[cpu]`` without ``fill_buffers``, and nanoseconds per cycle."""
    system = bench.system
    with bench.pinned():
        rounds = round(bench.batch / 10)
        cycle = bench.repeat(lambda: min(_engine.measure_cycles(rounds, bench.batches)))
    rates = Samples(tuple(1 / run for run in cycle.runs))
    source = bench.source("cpu.clock", rates, "GHz", "dependent additions, one per cycle")
    section: Section = {
        "clock": Sourced(f"{digits(1000 * rates.median, 4)}MHz", source),
        "cores": Sourced(system.cores, "/sys/devices/system/cpu"),
        "sockets": Sourced(system.sockets, "/sys/devices/system/cpu"),
        "ipc": Sourced(3, _ASSUMED),
        "dependent_misses": Sourced(0.1, _ASSUMED),
    }
    if known is not None:
        section["reorder_window"] = Sourced(known.window, known.guide)
    else:
        bench.notes.append("cpu.reorder_window: left out: unknown processor")
    return section, cycle.median


def caches(bench: Bench, memory: Samples) -> Section:
    """``[cache.NAME]`` for each level. ``memory``: latency of a load from memory."""
    sections: Section = {}
    first_hit: Sourced | None = None
    smaller = 0
    levels = sorted(bench.system.caches.items(), key=lambda pair: pair[1].size)
    levels = [(name, cache) for name, cache in levels if name != "l1i"]
    for name, cache in levels:
        bench.say(f"cache {name}")
        with bench.pinned():
            if not smaller:
                lines = cache.size // 2 // LINE
                hit = bench.repeat(Loads(bench, lines, stride=LINE, window=cache.size).run)
            else:
                # More than the previous level holds.
                lines = min(2 * smaller, cache.size * 3 // 4) // LINE
                hit = _hit(bench, lines, memory)
        how = f"dependent loads over {size(lines * LINE)}"
        hit_time = bench.time(f"cache.{name}.hit_time", hit, how)
        section = sections[name] = _cache(bench, name, hit_time)
        if name == "l1d":
            first_hit = hit_time
        if (name, cache) == levels[-1] and smaller:
            _capacity(bench, section, name, lines, (hit.median * memory.median) ** 0.5)
        smaller = cache.size
    if "l1i" in bench.system.caches and first_hit is not None:
        hit_time = Sourced(first_hit.value, "assumption: as the data cache")
        sections["l1i"] = _cache(bench, "l1i", hit_time)
    if not sections:
        bench.notes.append(
            "cache: left out: neither the kernel nor the processor reports caches; ssd needs "
            "[cache.l1d], and --view machine needs all levels"
        )
    return sections


def _hit(bench: Bench, lines: int, memory: Samples) -> Samples:
    """Latency of a cache level: the best of several tries, as other programs may evict lines."""
    best = bench.repeat(Loads(bench, lines).run)
    for _ in range(_TRIES):
        if best.median < memory.median / 2 and not best.noisy:
            break
        time.sleep(0.1)
        other = bench.repeat(Loads(bench, lines).run)
        best = min(best, other, key=lambda samples: samples.median)
    return best


def _capacity(bench: Bench, section: Section, name: str, lines: int, bound: float) -> None:
    """Measure the usable part of the last-level cache, which others may share.

    Args:
        bench: of the measurement.
        section: of the cache; gets the measured size if it is smaller than the reported one.
        name: of the cache.
        lines: a number of lines that fits.
        bound: time of a load in nanoseconds above which it misses the cache.
    """
    cache = bench.system.caches[name]

    def holds(count: int) -> bool:
        with bench.pinned():
            loads = Loads(bench, count)
            # Lines that another program evicts return in a later try.
            return any(loads.run() < bound for _ in range(_TRIES))

    # Never the whole cache: lines are spread unevenly over the sets.
    limit = cache.size * 3 // 4 // LINE
    ways = cache.ways or 1
    step = max(cache.size // 32 // LINE // ways, 1) * ways

    def fitting() -> int:
        """The number of lines that fit, divided by ``step``, by bisection."""
        low, high = lines, limit
        while high - low > step:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return max(low // step, 1)

    if lines >= limit or holds(limit):
        return
    steps = Samples(tuple(fitting() for _ in range(1 if bench.quick else _CAPACITY_RUNS)))
    how = (
        "from the number of lines at which loads become as slow as memory; others may share the "
        f"{size(cache.size)} that the kernel reports"
    )
    mebibytes = steps.scaled(step * LINE / (1 << 20))
    source = bench.source(f"cache.{name}.size", mebibytes, "MiB", how)
    section["size"] = Sourced(size_text(round(steps.median) * step * LINE), source)
    bench.notes.append(f"cache.{name}.size: the kernel reports {size(cache.size)}; {source}")


def _cache(bench: Bench, name: str, hit_time: Sourced) -> Section:
    cache = bench.system.caches[name]
    section: Section = {"size": Sourced(size_text(cache.size), cache.source)}
    if cache.ways is not None:
        section["ways"] = Sourced(cache.ways, cache.source)
    section["line"] = Sourced(size_text(cache.line), cache.source)
    section["hit_time"] = hit_time
    if cache.cores > 1:
        section["shared_by"] = Sourced(cache.cores, cache.source)
    return section


def beyond_caches(bench: Bench) -> int:
    """Bytes far beyond the caches, if memory allows."""
    largest = max((cache.size for cache in bench.system.caches.values()), default=32 << 20)
    wanted = max(4 * largest, 64 << 20)
    # The lines are ``STRIDE`` apart, so they span more memory than their own bytes.
    room = bench.system.available // 8 * LINE // STRIDE
    return max(min(wanted, room) // LARGE, 4) * LARGE


def nodes(bench: Bench) -> tuple[Section, Samples]:
    """``[node.NAME]`` for each node, and the first one's local latency (100 ns without nodes)."""
    system = bench.system
    sections: Section = {}
    first: Samples | None = None
    for node in system.nodes:
        name = node_name(bench, node)
        kind = node.kind or "dram"
        section: Section = {"kind": kind, "size": Sourced(size_text(node.size), node.source)}
        local = _nearest(bench, node)
        latency, section["local"] = _timing(bench, f"node.{name}.local", node, local)
        first = first or latency
        ours = [other for other in system.nodes if system.node_cpus.get(other.node)]
        others = [other for other in ours if other.socket != node.socket]
        if others:
            _, section["remote"] = _timing(bench, f"node.{name}.remote", node, others[0].node)
        sections[name] = section
    return sections, first or Samples((100.0,))


def node_name(bench: Bench, node: Node) -> str:
    """Name of the section of a node."""
    return "dram" if len(bench.system.nodes) == 1 else f"node{node.node}"


def _nearest(bench: Bench, node: Node) -> int:
    """The node whose processors are nearest."""
    hosts = [host for host, cpus in bench.system.node_cpus.items() if cpus]
    return min(hosts, key=lambda host: (host != node.node, node.distances.get(host, 255), host))


def _timing(bench: Bench, key: str, node: Node, host: int) -> tuple[Samples, Section]:
    """Latency and bandwidth of a node from the processors of ``host``."""
    bench.say(key)
    bytes_ = beyond_caches(bench)
    bound = node.node if len(bench.system.nodes) > 1 else None
    with bench.pinned(host) as pinned:
        loads = Loads(bench, bytes_ // LINE, node=bound)
        latency = bench.repeat(loads.run)
        del loads
        how = f"dependent loads over {size(bytes_)}"
        section: Section = {"read_latency": bench.time(f"{key}.read_latency", latency, how)}
        cpus = bench.system.node_cpus.get(host) or bench.system.cpus
        several = [cpu for cpu in cpus if cpu in bench.system.one_per_core] or [pinned]
        for threads, prefix in ((several, ""), ([pinned], "thread_")):
            each = max(min(bytes_, bench.system.available // 8 // len(threads)) // LARGE, 2) * LARGE
            for access in ("read", "write"):
                rates = _engine.measure_bandwidth(
                    access, threads, bytes=each, node=bound, rounds=bench.runs
                )
                name = f"{prefix}{access}_bandwidth"
                how = f"one thread in order, {size(each)}"
                if len(threads) > 1:
                    how = f"{len(threads)} threads in order, {size(each)} each"
                section[name] = bench.rate(f"{key}.{name}", Samples(tuple(rates)), how)
    return latency, section


def fill_buffers(bench: Bench, latency: Samples) -> Sourced:
    """Number of loads from memory that a core has in flight."""
    bench.say("parallel loads")
    bytes_ = beyond_caches(bench)
    best: Samples | None = None
    chains = 0
    with bench.pinned(bench.system.nodes[0].node):
        for several in _CHAINS:
            loads = Loads(bench, bytes_ // LINE, chains=several, window=_CHAINS_WINDOW)
            runs = bench.repeat(loads.run)
            del loads
            if best is None or runs.median < best.median:
                best, chains = runs, several
    assert best is not None
    in_flight = Samples(tuple(latency.median / run for run in best.runs))
    how = f"latency / time of a load in {chains} parallel chains"
    source = bench.source("cpu.fill_buffers", in_flight, "loads", how)
    return Sourced(max(round(in_flight.median), 1), source)


def tlb(bench: Bench, known: Documented | None, cycle: float) -> Section:
    """``[tlb]``; empty if the processor does not report its TLBs. ``cycle``: nanoseconds."""
    processor = bench.system.processor
    if not processor or not processor["first"]:
        bench.notes.append(
            "tlb: left out: the processor does not report its TLBs; paging and advise need "
            "[tlb.first] with entries and hit_time"
        )
        return {}
    one_cycle = Sourced(time_text(cycle), "assumption: one cycle, at the measured clock")
    section: Section = {"first": _level(processor["first"], one_cycle)}
    if processor["instruction"]:
        section["instruction"] = _level(processor["instruction"], one_cycle)
    coalesced = known.coalesced if known else None
    if coalesced and known:
        section["coalesced"] = Sourced(size_text(coalesced), known.guide)
    second = processor["second"]
    source = "cpuid"
    # Use the vendor's guide if ``cpuid`` lacks the level or agrees. Large pages share the entries.
    if known and known.second and (not second or second["small"]["entries"] == known.second[0]):
        entries, ways = known.second
        second = {"small": {"entries": entries, "ways": ways}, "large": None}
        source = known.guide
    if second is None:
        bench.notes.append(
            "tlb.second: left out: the processor does not report it (a hypervisor may hide it); "
            "its hits count as walks"
        )
        return section
    bench.say("second-level TLB")
    entries = second["small"]["entries"]
    first = processor["first"]["small"]["entries"] * (coalesced or PAGE) // PAGE
    # More than the first level covers, but within the second.
    pages = max(entries // 2, min(2 * first, entries * 3 // 4))
    hit = _translation_ns(bench, pages)
    how = f"a load in each of {pages} pages of 4 KiB, minus a load from as many lines in few pages"
    hit_time = bench.time("tlb.second.hit_time", hit, how)
    if hit.median <= 0:
        bench.notes.append("tlb.second.hit_time: lost in noise; assumed to be one cycle")
        hit_time = Sourced(time_text(cycle), "assumption: one cycle; measured, lost in noise")
    section["second"] = _level(second, hit_time, source)
    return section


def _level(level: TlbLevel, hit_time: Sourced, source: str = "cpuid") -> Section:
    section: Section = {}
    for prefix, entries in (("", level["small"]), ("large_", level["large"])):
        if entries:
            section[f"{prefix}entries"] = Sourced(entries["entries"], source)
            if entries["ways"]:
                section[f"{prefix}ways"] = Sourced(entries["ways"], source)
    section["hit_time"] = hit_time
    return section


def _translation_ns(bench: Bench, count: int) -> Samples:
    """The time that translation adds to loads of one line in each of ``count`` small pages.

    The baseline is as many lines in few pages, which are in the same cache level.
    """
    with bench.pinned(bench.system.nodes[0].node):
        spread = Loads(bench, count, stride=PAGE, window=count * PAGE, pages="small")
        return bench.difference(spread, Loads(bench, count))


def _entries(tlb: Section, level: str) -> int:
    """The entries of a level of ``[tlb]``; 0 without such a level."""
    section = tlb.get(level)
    entries = section["entries"] if isinstance(section, dict) else None
    count = entries.value if isinstance(entries, Sourced) else 0
    assert isinstance(count, int)
    return count


def walks(bench: Bench, tlb: Section, known: Documented | None) -> Sourced | None:
    """``[cost] page_walk`` at 4 KiB, unless it is lost in noise; adds ``walk`` to ``tlb``."""
    system = bench.system
    bench.say("page walks")
    wanted = _QUICK_WALKED if bench.quick else _WALKED
    bytes_ = max(min(wanted, system.available // 8) // LARGE, 4) * LARGE
    lines = bytes_ // STRIDE
    with bench.pinned(system.nodes[0].node):
        within = Loads(bench, lines)
        in_small = Loads(bench, lines, window=bytes_, pages="small")
        in_large = Loads(bench, lines, window=bytes_)
        small, large = bench.difference(in_small, within), bench.difference(in_large, within)
    how = f"random loads over {size(bytes_)} in pages of 4 KiB, minus loads that a TLB covers"
    cost = bench.time("cost.page_walk", small, how) if small.median > 0 else None
    if cost is None:
        bench.notes.append("cost.page_walk: left out: lost in noise")
    what = f"random loads over {size(bytes_)} in pages of 2 MiB, minus loads that a TLB covers"
    bench.notes.append(f"{what}: {large.described('ns')}; in pages of 4 KiB: cost.page_walk")
    if system.levels is None or known is None:
        bench.notes.append("tlb.walk: left out: this processor is unknown; --view machine needs it")
        return cost
    second = _entries(tlb, "second")
    if known.upper_directories is not None:
        # The guides give no separate number of cached page-directory entries.
        where = (
            "assumption: half of the second-level TLB, which holds pages and directories; "
            f"{known.guide}"
        )
        directories = Sourced(max((second or _entries(tlb, "first")) // 2, 1), where)
        upper = Sourced(known.upper_directories, known.guide)
    else:
        where = (
            f"assumption: {known.guide.partition(',')[0]} documents paging-structure caches, not "
            f"their sizes"
        )
        directories, upper = Sourced(32, where), Sourced(4, where)
    walk: Section = {
        "levels": Sourced(system.levels, "/proc/cpuinfo, bits of virtual addresses"),
        "directories": directories,
        "upper_directories": upper,
    }
    tlb["walk"] = walk
    if system.is_virtual and second:
        # If the host also uses large pages, the second-level TLB covers all of them: a load costs
        # about a hit. The threshold is the geometric mean of a hit and a walk.
        hit = max(_translation_ns(bench, second // 2).median, 0.1)
        value = "2MiB" if large.median < (hit * max(small.median, hit)) ** 0.5 else "4KiB"
        source = (
            f"from the cost of walks, because a guest cannot read it: {what}: "
            f"{large.described('ns')}; in pages of 4 KiB {digits(small.median)} ns, {bench.where}"
        )
        walk["host_page"] = Sourced(value, f"measured, {source}")
        bench.notes.append(f"tlb.walk.host_page: {value}, from the cost of walks")
    return cost


def topology(bench: Bench) -> Section:
    """``[topology]``; a machine file needs distances above 10 between nodes."""
    nodes = bench.system.nodes
    source = nodes[0].source
    rows = [[10 if a is b else max(a.distances.get(b.node, 20), 11) for b in nodes] for a in nodes]
    return {
        "nodes": [node_name(bench, node) for node in nodes],
        "sockets": Sourced([node.socket or 0 for node in nodes], source),
        "cpus": Sourced([node.cpus for node in nodes], source),
        "distances": Sourced(rows, source),
    }
