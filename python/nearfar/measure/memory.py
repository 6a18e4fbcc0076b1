"""Clock, caches, memory nodes, TLBs and page walks, by loads that are timed."""

from __future__ import annotations

import time
from typing import Any, Final

from nearfar import _engine
from nearfar.measure.bench import APART, LARGE, LINE, PAGE, Bench, Loads, Sourced
from nearfar.measure.documented import Documented
from nearfar.measure.samples import Samples, fastest, size_text, time_text
from nearfar.numa.node import Node
from nearfar.units import digits, size

#: Chains of loads at once, among which is the most that a core can have under way.
_CHAINS: Final = (8, 12, 16, 24, 32, 48, 64)
#: Bytes that all chains together visit before the next as many, within reach of a TLB.
_AT_ONCE: Final = 1 << 20
#: Bytes over which page walks are measured, far beyond the reach of a TLB; and in a quick run.
_WALKED, _QUICK_WALKED = 512 << 20, 64 << 20
#: How often the size of the last cache is found.
_CAPACITIES: Final = 3
#: How often something is tried that others may disturb.
_MOMENTS: Final = 8

Section = dict[str, Any]


def cpu(bench: Bench, known: Documented | None) -> tuple[Section, float]:
    """``[cpu]`` without ``fill_buffers``, and nanoseconds of a cycle."""
    system = bench.system
    with bench.pinned():
        rounds = round(bench.batch / 10)
        cycle = bench.repeat(lambda: fastest(_engine.measure_cycles(rounds, bench.batches)))
    rates = Samples(tuple(1 / run for run in cycle.runs))
    how = "additions that wait for each other, one a cycle"
    source = bench.source("cpu.clock", rates, "GHz", how)
    clock = Sourced(f"{digits(1000 * rates.median, 4)}MHz", source)
    section: Section = {
        "clock": clock,
        "cores": Sourced(system.cores, "/sys/devices/system/cpu"),
        "sockets": Sourced(system.sockets, "/sys/devices/system/cpu"),
    }
    section |= {"ipc": Sourced(3, ASSUMED), "dependent_misses": Sourced(0.1, ASSUMED)}
    if known is not None:
        section["reorder_window"] = Sourced(known.window, known.guide)
    else:
        bench.notes.append("cpu.reorder_window: left out: this processor is not in our table")
    return section, cycle.median


#: Of what depends on the program more than on the processor.
ASSUMED: Final = "assumption: near the run times of eleven programs on Zen 4, by --view machine"


def caches(bench: Bench, memory: Samples) -> Section:
    """``[cache.NAME]`` for each level; ``memory`` is the latency of what is behind them."""
    found: Section = {}
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
                # More than the level before holds.
                lines = min(2 * smaller, cache.size * 3 // 4) // LINE
                hit = _hit(bench, lines, memory)
        how = f"loads that wait for each other, of {size(lines * LINE)}"
        found[name] = _cache(bench, name, bench.time(f"cache.{name}.hit_time", hit, how))
        if (name, cache) == levels[-1] and smaller:
            _capacity(bench, found[name], name, lines, (hit.median * memory.median) ** 0.5)
        smaller = cache.size
    if "l1i" in bench.system.caches and "l1d" in found:
        hit_time = found["l1d"]["hit_time"].value
        found["l1i"] = _cache(bench, "l1i", Sourced(hit_time, "assumption: as the data cache"))
    if not found:
        bench.notes.append(
            "cache: left out: neither the kernel nor the processor says what caches there are; "
            "ssd needs [cache.l1d], and time on this machine needs all levels"
        )
    return found


def _hit(bench: Bench, lines: int, memory: Samples) -> Samples:
    """Latency of a shared level, in a moment in which others leave some of it."""
    best = bench.repeat(Loads(bench, lines).run)
    for _ in range(_MOMENTS):
        if best.median < memory.median / 2 and not best.noisy:
            break
        time.sleep(0.1)
        other = bench.repeat(Loads(bench, lines).run)
        best = min(best, other, key=lambda samples: samples.median)
    return best


def _capacity(bench: Bench, section: Section, name: str, lines: int, bound: float) -> None:
    """How much of the last level this machine has, where others have the rest.

    ``lines`` are held; what takes longer than ``bound`` is not.
    """
    cache = bench.system.caches[name]

    def holds(count: int) -> bool:
        with bench.pinned():
            loads = Loads(bench, count)
            # What another program evicts comes back.
            return any(loads.run() < bound for _ in range(_MOMENTS))

    # All of it would not fit: lines do not spread evenly over its sets.
    most = cache.size * 3 // 4 // LINE
    ways = cache.ways or 1
    step = max(cache.size // 32 // LINE // ways, 1) * ways

    def held() -> int:
        """In steps, by bisection."""
        least, more = lines, most
        while more - least > step:
            middle = (least + more) // 2
            least, more = (middle, more) if holds(middle) else (least, middle)
        return max(least // step, 1)

    if lines >= most or holds(most):
        return
    found = Samples(tuple(held() for _ in range(1 if bench.quick else _CAPACITIES)))
    how = (
        "by which number of loads takes as long as from memory; others may share the "
        f"{size(cache.size)} that the kernel says"
    )
    mebibytes = found.scaled(step * LINE / (1 << 20))
    source = bench.source(f"cache.{name}.size", mebibytes, "MiB", how)
    section["size"] = Sourced(size_text(round(found.median) * step * LINE), source)
    bench.notes.append(f"cache.{name}.size: {size(cache.size)} by the kernel; {source}")


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
    """Bytes of lines of which no cache holds much, as far as there is memory."""
    largest = max((cache.size for cache in bench.system.caches.values()), default=32 << 20)
    wanted = max(4 * largest, 64 << 20)
    room = bench.system.available // 8 * LINE // APART
    return max(min(wanted, room) // LARGE, 4) * LARGE


def nodes(bench: Bench) -> tuple[Section, Samples]:
    """``[node.NAME]`` for each node, and the latency of the first from its own processors."""
    system = bench.system
    found: Section = {}
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
        found[name] = section
    return found, first or Samples((100.0,))


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
    with bench.pinned(host) as one:
        loads = Loads(bench, bytes_ // LINE, node=bound)
        latency = bench.repeat(loads.run)
        del loads
        how = f"loads that wait for each other, of {size(bytes_)}"
        section: Section = {"read_latency": bench.time(f"{key}.read_latency", latency, how)}
        cpus = bench.system.node_cpus.get(host) or bench.system.cpus
        several = [cpu for cpu in cpus if cpu in bench.system.one_a_core] or [one]
        for threads, prefix in ((several, ""), ([one], "thread_")):
            each = max(min(bytes_, bench.system.available // 8 // len(threads)) // LARGE, 2) * LARGE
            for access in ("read", "write"):
                rates = _engine.measure_bandwidth(
                    access, threads, bytes=each, node=bound, rounds=bench.runs
                )
                name = f"{prefix}{access}_bandwidth"
                how = f"{len(threads)} threads in order, {size(each)} each"
                how = how if len(threads) > 1 else f"one thread in order, {size(each)}"
                section[name] = bench.rate(f"{key}.{name}", Samples(tuple(rates)), how)
    return latency, section


def fill_buffers(bench: Bench, latency: Samples) -> Sourced:
    """How many loads of memory a core has under way."""
    bench.say("loads at once")
    bytes_ = beyond_caches(bench)
    best: Samples | None = None
    chains = 0
    with bench.pinned(bench.system.nodes[0].node):
        for several in _CHAINS:
            loads = Loads(bench, bytes_ // LINE, chains=several, window=_AT_ONCE)
            runs = bench.repeat(loads.run)
            del loads
            if best is None or runs.median < best.median:
                best, chains = runs, several
    assert best is not None
    at_once = Samples(tuple(latency.median / run for run in best.runs))
    how = f"latency / time of each of {chains} chains of loads at once"
    source = bench.source("cpu.fill_buffers", at_once, "loads", how)
    return Sourced(max(round(at_once.median), 1), source)


def tlb(bench: Bench, known: Documented | None, cycle: float) -> Section:
    """``[tlb]``; empty where the processor does not say what it has."""
    processor = bench.system.processor
    if not processor or not processor["first"]:
        bench.notes.append(
            "tlb: left out: the processor does not say what TLBs it has; paging and advise need "
            "[tlb.first] with entries and hit_time"
        )
        return {}
    once = Sourced(time_text(cycle), "assumption: one cycle, at the measured clock")
    found: Section = {"first": _level(processor["first"], once)}
    if processor["instruction"]:
        found["instruction"] = _level(processor["instruction"], once)
    coalesced = known.coalesced if known else None
    if coalesced and known:
        found["coalesced"] = Sourced(size_text(coalesced), known.guide)
    second = processor["second"]
    source = "cpuid"
    if known and known.second and (not second or second["small"]["entries"] == known.second[0]):
        # cpuid has no number for some counts of ways.
        entries, ways = known.second
        second = {"small": {"entries": entries, "ways": ways}, "large": None}
        source = known.guide
    if second is None:
        bench.notes.append(
            "tlb.second: left out: the processor does not say (a hypervisor may hide it); "
            "walks are counted for what it would hold"
        )
        return found
    bench.say("second-level TLB")
    entries = second["small"]["entries"]
    first = processor["first"]["small"]["entries"] * (coalesced or PAGE) // PAGE
    pages = max(entries // 2, min(2 * first, entries * 3 // 4))
    hit = _over_pages(bench, pages)
    how = f"a load in each of {pages} pages of 4 KiB, less one of as many lines in few pages"
    hit_time = bench.time("tlb.second.hit_time", hit, how)
    if hit.median <= 0:
        bench.notes.append("tlb.second.hit_time: lost in noise; one cycle is written")
        hit_time = Sourced(time_text(cycle), "assumption: one cycle; measured, lost in noise")
    found["second"] = _level(second, hit_time, source)
    return found


def _level(level: dict[str, Any], hit_time: Sourced, source: str = "cpuid") -> Section:
    section: Section = {}
    for prefix, entries in (("", level["small"]), ("large_", level["large"])):
        if entries:
            section[f"{prefix}entries"] = Sourced(entries["entries"], source)
            if entries["ways"]:
                section[f"{prefix}ways"] = Sourced(entries["ways"], source)
    section["hit_time"] = hit_time
    return section


def _over_pages(bench: Bench, count: int) -> Samples:
    """What translation adds to loads of a line in each of ``count`` small pages.

    As many lines in few pages are of the same level of cache.
    """
    with bench.pinned(bench.system.nodes[0].node):
        apart = Loads(bench, count, stride=PAGE, window=count * PAGE, pages="small")
        return bench.difference(apart, Loads(bench, count))


def walks(bench: Bench, tlb: Section, known: Documented | None) -> Sourced | None:
    """``[cost] page_walk`` at 4 KiB, unless it is lost in noise; ``tlb`` gets its ``walk``."""
    system = bench.system
    bench.say("page walks")
    wanted = _QUICK_WALKED if bench.quick else _WALKED
    bytes_ = max(min(wanted, system.available // 8) // LARGE, 4) * LARGE
    small, large = _at_random(bench, bytes_)
    how = f"loads at random over {size(bytes_)} in pages of 4 KiB, less those that a TLB reaches"
    cost = bench.time("cost.page_walk", small, how) if small.median > 0 else None
    if cost is None:
        bench.notes.append("cost.page_walk: left out: lost in noise")
    what = f"loads at random over {size(bytes_)} in pages of 2 MiB, less those that a TLB reaches"
    bench.notes.append(f"{what}: {large.described('ns')}; in pages of 4 KiB: cost.page_walk")
    if system.levels is None or known is None or known.upper_directories is None:
        bench.notes.append(
            "tlb.walk: left out: the caches of page walks are not documented for this processor; "
            "time on this machine needs it"
        )
        return cost
    reach = tlb["second"]["entries"].value if "second" in tlb else tlb["first"]["entries"].value
    # The guide gives directories no entries of their own.
    where = f"assumption: half of the second-level TLB, which holds directories too; {known.guide}"
    tlb["walk"] = {
        "levels": Sourced(system.levels, "/proc/cpuinfo, bits of virtual addresses"),
        "directories": Sourced(max(reach // 2, 1), where),
        "upper_directories": Sourced(known.upper_directories, known.guide),
    }
    if system.is_virtual and "second" in tlb:
        # Where the host has large pages, too, a TLB reaches all of it, and its second level hits.
        hit = max(_over_pages(bench, tlb["second"]["entries"].value // 2).median, 0.1)
        value = "2MiB" if large.median < (hit * max(small.median, hit)) ** 0.5 else "4KiB"
        source = (
            f"by what walks cost, as a guest cannot read it: {what}: {large.described('ns')}; in "
            f"pages of 4 KiB {digits(small.median)} ns, {bench.where}"
        )
        tlb["walk"]["host_page"] = Sourced(value, f"measured, {source}")
        bench.notes.append(f"tlb.walk.host_page: {value}, by what walks cost")
    return cost


def _at_random(bench: Bench, bytes_: int) -> tuple[Samples, Samples]:
    """What translation adds to loads at random, in small pages and in large ones."""
    lines = bytes_ // APART
    with bench.pinned(bench.system.nodes[0].node):
        within = Loads(bench, lines)
        small = Loads(bench, lines, window=bytes_, pages="small")
        large = Loads(bench, lines, window=bytes_)
        return bench.difference(small, within), bench.difference(large, within)


def topology(bench: Bench) -> Section:
    """``[topology]``: nodes as the kernel numbers them."""
    found = bench.system.nodes
    source = found[0].source
    rows = [[10 if a is b else max(a.distances.get(b.node, 20), 11) for b in found] for a in found]
    return {
        "nodes": [node_name(bench, node) for node in found],
        "sockets": Sourced([node.socket or 0 for node in found], source),
        "cpus": Sourced([node.cpus for node in found], source),
        "distances": Sourced(rows, source),
    }
