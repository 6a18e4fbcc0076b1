"""SSP (003) and the NOMAD paper's tables 2 to 4 against the ``tiering`` study.

Published numbers are in ``papers/003/*.toml``. Every row has its tolerance; nothing is adjusted to
make it hold. Assumptions that the papers leave open are varied one at a time (:data:`VARIANTS`).
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from nearfar.declared import reproduce as declared
from nearfar.declared import tiering as tiering_declared
from nearfar.policy import Knobs
from nearfar.reproduce import Reproduced, compared, explained
from nearfar.reproduce import published as text_of
from nearfar.strict import Json
from nearfar.tiering import tiering

if TYPE_CHECKING:
    from nearfar.reproduce._live import Lived

#: Runs of a real program, of which the median counts.
LIVE_RUNS = 3

Tick = Callable[[int], None] | None


class _Options(TypedDict, total=False):
    """Options of the study ``tiering``."""

    scale: str
    threads: int
    progress: Tick
    points: int
    seeds: int
    mix: str
    pattern: str
    placement: str
    rounds: int
    machine: str
    fast: str
    slow: str
    rss: str
    wss: str
    cost_scale: float
    knobs: Knobs


#: Free memory of two nodes of 16 GB, as ``numactl -H`` shows it in the README of NOMAD's
#: repository: 13,707 and 16,017 MB. The slow node has 458 MiB less: two lists of 30 million
#: eight-byte offsets that the benchmark allocates and soon no longer reads.
FAST, SLOW = "13707M", "15559M"
#: Runs for each box of SSP (003)'s figures.
SEEDS = 8
#: Differences that count as agreement.
_COPIES = {"write": 0.05, "mixed": 0.05, "read": 0.02}
_FACTOR = 2.0
_ORDER = 10.0
#: Counts below this are "hardly any" in table 2.
_FEW = 20_000

#: What SSP (003) leaves open, one change at a time: name, what it represents, options.
VARIANTS: tuple[tuple[str, str, _Options], ...] = (
    ("half kernel costs", "sources are weak", {"cost_scale": 0.5}),
    ("double kernel costs", "sources are weak", {"cost_scale": 2.0}),
    ("hottest pages first", "NOMAD's scripts", {"placement": "hottest-first"}),
    ("plain Zipf", "the text says Zipfian", {"pattern": "zipf"}),
    (
        "by the dirty bit",
        "SSP learns of a write when it demotes the page",
        {"knobs": {"ssp.notice": "dirty-bit"}},
    ),
    (
        "by shadow faults alone",
        "SSP learns of writes that free a shadow",
        {"knobs": {"ssp.notice": "shadow-fault"}},
    ),
    (
        "ten control groups",
        "a pass of kswapd frees shadows for each",
        {"knobs": {"nomad.groups": "10", "ssp.groups": "10"}},
    ),
    ("slow node -0.4 GiB", "what the kernel takes", {"slow": "15149M"}),
    ("slow node +0.4 GiB", "the benchmark's lists are not there", {"slow": "16017M"}),
    ("fast node -0.9 GiB", "12.5 GiB, as NOMAD's paper says", {"fast": "12800M", "slow": "16466M"}),
    (
        "scans ten times as rare",
        "what the scanner is taken to be",
        {"knobs": {"nomad.scan_floor": "1s", "ssp.scan_floor": "1s"}},
    ),
    ("three times the rounds", "how long a run is", {"rounds": 12}),
)


def published(name: str) -> Json:
    """The data of ``papers/003/NAME.toml``.

    Raises:
        NearfarError: there is no such file.
    """
    return tomllib.loads(text_of(f"003/{name}"))


def rows(
    full: bool = False, live: bool = False, threads: int = 0, progress: Tick = None
) -> list[declared.Row]:
    """Every published number and statement, with ours; arguments as for :func:`study`."""
    options = _options(full, threads, progress)
    return _rows(list(_paper_003({**options, "seeds": SEEDS})), options, live)


def study(
    full: bool = False, live: bool = False, threads: int = 0, progress: Tick = None
) -> Reproduced:
    """Rows, and how many of SSP (003)'s hold under each of :data:`VARIANTS`.

    Args:
        full: the papers' size; else a 64th of memory and work.
        live: also :func:`_lived`.
        threads: parallel runs; 0 = one per core.
        progress: called regularly with the number of accesses done.
    """
    options = _options(full, threads, progress)
    found = list(_paper_003({**options, "seeds": SEEDS}))
    usual = list(_paper_003(options))
    cases = [compared("as chosen", "this run, its first seed", usual, usual)]
    for name, why, changed in VARIANTS:
        cases.append(compared(name, why, list(_paper_003({**options, **changed})), usual))
    scale = options["scale"]
    run = {
        "study": "tiering",
        "captures": f"memory and work at scale {scale}; SSP (003) by {SEEDS} seeds, else one",
        "setting": {"scale": scale, "fast": FAST, "slow": SLOW},
    }
    return Reproduced(_rows(found, options, live), run, cases)


def _options(full: bool, threads: int, progress: Tick) -> _Options:
    return {"scale": "1/1" if full else "1/64", "threads": threads, "progress": progress}


def _rows(paper_003: list[declared.Row], options: _Options, live: bool) -> list[declared.Row]:
    """The rows of SSP (003) and of the NOMAD paper, with reasons if they do not hold."""
    lived = list(_lived()) if live else []
    nomad = [*_table_2(options), *_table_3(options), *_table_4(options)]
    return [
        *explained([*paper_003, *lived], published("ssp")["differs"]),
        *explained(nomad, published("nomad")["differs"]),
    ]


class _Mix:
    """NOMAD and SSP on one mix, a run for each seed."""

    def __init__(self, mix: str, options: _Options) -> None:
        settings: _Options = {"fast": FAST, "slow": SLOW, "points": 1, "mix": mix, **options}
        self.result = tiering("nomad-medium", policy="nomad,ssp", **settings)

    def runs(self, policy: str, count: str, *, rounds_only: bool = True) -> list[float]:
        """A count, or the bandwidth of the last round, of each seed."""
        by_seed: dict[int, list[float]] = {}
        for row in self.result.rows:
            if row["policy"] == policy and not (rounds_only and row["phase"] == "warm-up"):
                by_seed.setdefault(row["seed"], []).append(_column(row, count))
        if count == "bandwidth_mb_s":
            return [float(values[-1]) for values in by_seed.values()]
        return [float(sum(values)) for values in by_seed.values()]

    def ratio(self, count: str) -> tuple[float, str]:
        """SSP's median over NOMAD's, 1 where both have none; and both boxes."""
        nomad, ssp = _box(self.runs("nomad", count)), _box(self.runs("ssp", count))
        return _over(ssp[1], nomad[1]), _boxes(nomad, ssp)

    def apart(self, count: str) -> tuple[float, str]:
        """The upper end of SSP's box over the lower end of NOMAD's: below 1 if it is lower."""
        nomad, ssp = _box(self.runs("nomad", count)), _box(self.runs("ssp", count))
        return _over(ssp[2], nomad[0]), _boxes(nomad, ssp)


def _column(row: tiering_declared.Row, name: str) -> float:
    return cast("Mapping[str, float]", row)[name]


Box = tuple[float, float, float]


def _box(values: list[float]) -> Box:
    """Lower quartile, median, upper quartile."""
    low, middle, high = (float(one) for one in np.quantile(values, (0.25, 0.5, 0.75)))
    return low, middle, high


def _boxes(nomad: Box, ssp: Box) -> str:
    """Both as a note, at the scale of the run."""
    return ", ".join(
        f"{name} {low:,.0f} to {high:,.0f}"
        for name, (low, _, high) in (("NOMAD", nomad), ("SSP", ssp))
    )


def _over(ssp: float, nomad: float) -> float:
    return ssp / nomad if nomad else (1.0 if not ssp else float("inf"))


def _paper_003(options: _Options) -> Iterator[declared.Row]:
    data = published("ssp")
    size = 1 / _share(options["scale"])
    made = {mix: _Mix(mix, options) for mix in ("write", "mixed", "read", "split")}
    for mix, counts in data["table1"].items():
        if mix == "source":
            continue
        for count, value in counts.items():
            runs = made[mix].runs("nomad", f"shadow_{count}", rounds_only=False)
            low, ours, high = (size * one for one in _box(runs))
            item = f"table 1: NOMAD, shadow {count}, {mix}"
            row = _within("003", item, value, ours, _FACTOR, "pages")
            yield {**row, "note": f"half of the runs: {low:,.0f} to {high:,.0f}"}
    figures = data["figures"]
    unit = "SSP / NOMAD, medians"
    for mix, value in figures["shadow_copies"].items():
        ours, note = made[mix].ratio("shadow_copies")
        note += "; 1:1 drawn for each operation" if mix == "mixed" else ""
        yield _near("003", f"figure 4: shadow copies, {mix}", value, ours, _COPIES[mix], unit, note)
        if mix == "mixed":
            ours, note = made["split"].ratio("shadow_copies")
            note += "; 1:1 by page: half of the pages only read, half only written"
            item = "figure 4: shadow copies, mixed by page"
            yield _near("003", item, value, ours, _COPIES[mix], unit, note)
    for mix in ("mixed", "read"):
        ours, note = made[mix].ratio("demotions_remapped")
        item = f"figures 2 and 3: remaps, {mix}"
        yield _near("003", item, figures["remaps"], ours, 0.05, unit, note)
    for mix in ("write", "mixed"):
        for count in ("shadow_faults", "shadow_reclaims"):
            ours, note = made[mix].apart(count)
            item = f"figures 2 and 3: {count.replace('_', ' ')}, {mix}, fall"
            yield _row(
                "003", item, "< 1", ours, "SSP's upper quartile / NOMAD's lower", "below 1",
                ours < 1, note,
            )  # fmt: skip
    ours, note = made["write"].ratio("bandwidth_mb_s")
    yield _near(
        "003", "figure 5: bandwidth, write", figures["bandwidth_write"], ours, 0.05, unit,
        f"last round, MiB/s: {note}",
    )  # fmt: skip


def _lived() -> Iterator[declared.Row]:
    """SSP (003)'s results with a real program on this kernel (``nearfar run``).

    Memory of 1 GiB: both nodes and all work are a 27th of the paper's.
    """
    from nearfar.reproduce._live import MicroBenchmark

    figures = published("ssp")["figures"]
    unit = "SSP / NOMAD, medians"
    with tempfile.TemporaryDirectory() as folder:
        program = MicroBenchmark(Path(folder))
        for mix, value in figures["shadow_copies"].items():
            runs: _LiveRuns = {"nomad": [], "ssp": []}
            for seed in range(1, LIVE_RUNS + 1):
                for policy, done in runs.items():
                    done.append(program.run(mix, policy, seed, FAST, SLOW))
            ours, note = _live_ratio(runs, "shadow_copies")
            yield _near("003", f"live, figure 4: shadow copies, {mix}", value, ours, _COPIES[mix],
                        unit, note)  # fmt: skip
            if mix == "read":
                ours, note = _live_ratio(runs, "demotions_remapped")
                yield _near("003", "live, figures 2 and 3: remaps, read", figures["remaps"], ours,
                            0.05, unit, note)  # fmt: skip
                continue
            for name, says in (("shadow_faults", "faults"), ("shadows_reclaimed", "reclaims")):
                ours, note = _live_ratio(runs, name)
                yield _row("003", f"live, figures 2 and 3: shadow {says}, {mix}, fall", "< 1",
                           ours, unit, "below 1", ours < 1, note)  # fmt: skip
            if mix == "write":
                ours, note = _live_ratio(runs, "bandwidth_mb_s")
                yield _near(
                    "003", "live, figure 5: bandwidth, write", figures["bandwidth_write"], ours,
                    0.05, unit, f"last round, MiB/s: {note}",
                )  # fmt: skip


#: Runs by policy.
_LiveRuns = dict[str, "list[Lived]"]


def _live_ratio(runs: _LiveRuns, name: str) -> tuple[float, str]:
    """SSP's median of a counter, or of the bandwidth, over NOMAD's; and both boxes."""
    nomad, ssp = (
        _box(
            [
                run.bandwidth_mb_s if name == "bandwidth_mb_s" else run.outcome.counters[name]
                for run in of_policy
            ]
        )
        for of_policy in runs.values()
    )
    return _over(ssp[1], nomad[1]), _boxes(nomad, ssp)


def _table_2(options: _Options) -> Iterator[declared.Row]:
    table = published("nomad")["table2"]
    size = 1 / _share(options["scale"])
    policies = [name for name in table if name != "source"]
    rate: dict[tuple[str, str, str, str], float] = {}
    for case in ("small", "medium", "large"):
        for mix in ("read", "write"):
            settings: _Options = {**options, "mix": mix, "fast": FAST, "slow": SLOW, "points": 1}
            result = tiering(f"nomad-{case}", policy=[*policies, "none"], **settings)
            for phase, name in (("in-progress", "round-1"), ("stable", "round-4")):
                for row in result.rows:
                    if row["phase"] != name:
                        continue
                    rate[row["policy"], case, phase, mix] = row["bandwidth_mb_s"]
                    if row["policy"] == "none":
                        continue
                    counts = table[row["policy"]][case][phase][mix]
                    for count, value in zip(("promotions", "demotions"), counts, strict=True):
                        item = f"table 2: {row['policy']}, {case}, {phase}, {mix}, {count}"
                        ours = _column(row, count) * size
                        few = value < _FEW and ours < _FEW
                        made_row = _within("NOMAD", item, value, ours, _ORDER, "pages")
                        made_row["holds"] = made_row["holds"] or few
                        made_row["note"] = "both hardly any" if few else ""
                        yield made_row
    yield from _statements(rate)


def _statements(rate: dict[tuple[str, str, str, str], float]) -> Iterator[declared.Row]:
    """What the paper says about who wins."""

    def over(one: str, other: str, case: str, phase: str, mix: str) -> float:
        return rate[one, case, phase, mix] / rate[other, case, phase, mix]

    for mix in ("read", "write"):
        for case in ("small", "medium", "large"):
            ours = over("nomad", "tpp", case, "in-progress", mix)
            yield _row(
                "NOMAD", f"figure 7-9: NOMAD over TPP, {case}, in progress, {mix}", "1 to 6", ours,
                "bandwidth", "above 1", ours > 1, "",
            )  # fmt: skip
        ours = rate["tpp", "small", "stable", mix] / rate["tpp", "small", "in-progress", mix]
        yield _row(
            "NOMAD", f"text: TPP, small, stable over in progress, {mix}", "> 10", ours,
            "bandwidth", "above 10", ours > 10, "",
        )  # fmt: skip
        ours = over("memtis", "nomad", "small", "stable", mix)
        yield _row(
            "NOMAD", f"text: Memtis over NOMAD, small, stable, {mix}", ">= 0.4", ours,
            "bandwidth", "below 1", ours < 1, "",
        )  # fmt: skip
        ours = over("nomad", "memtis", "large", "stable", mix)
        yield _row(
            "NOMAD", f"text: NOMAD below Memtis, large, stable, {mix}", "< 1", ours,
            "bandwidth", "below 1", ours < 1, "",
        )  # fmt: skip
    ours = over("nomad", "memtis", "medium", "stable", "write")
    yield _row(
        "NOMAD", "text: NOMAD below Memtis, medium, stable, write", "< 1", ours, "bandwidth",
        "below 1", ours < 1, "",
    )  # fmt: skip


def _table_3(options: _Options) -> Iterator[declared.Row]:
    table = published("nomad")["table3"]
    gb = 10**9
    before = None
    size = 1 / _share(options["scale"])
    for rss, value in zip(table["rss_gb"], table["shadow_gb"], strict=True):
        # 30.7 GB in total; the fast node has 16 GiB minus what its kernel uses.
        node = str(int(15.35 * gb))
        settings: _Options = {
            **options, "machine": "cxl-b", "mix": "read", "rss": str(rss * gb),
            "wss": str(rss * gb), "fast": node, "slow": node, "points": 1,
        }  # fmt: skip
        ours = (
            tiering("nomad-medium", policy="nomad", **settings).series[-1]["shadow_bytes"]
            * size
            / gb
        )
        yield _within(
            "NOMAD", f"table 3: shadow memory at {rss} GB RSS", value, ours, _FACTOR, "GB"
        )
        if before is not None:
            yield _row(
                "NOMAD", f"table 3: less shadow memory at {rss} GB than before", "less", ours, "GB",
                f"below {before:.2f}", ours < before, "",
            )  # fmt: skip
        before = ours


def _table_4(options: _Options) -> Iterator[declared.Row]:
    made = {}
    for platform, machine in (("C", "pmem-c"), ("D", "cxl-d")):
        settings: _Options = {
            **options, "machine": machine, "mix": "write", "pattern": "zipf", "fast": FAST,
            "points": 1,
        }  # fmt: skip
        result = tiering("nomad-medium", policy="nomad", **settings)
        aborts = result.total("nomad", "aborts")
        made[platform] = result.total("nomad", "promotions") / max(1.0, aborts)
    share = made["D"] / made["C"]
    yield _row(
        "NOMAD", "table 4: successes to aborts, platform D over C", "1.8 to 4.9", share, "x",
        "above 1", share > 1,
        f"micro-benchmark in place of Liblinear and Redis: C {made['C']:,.0f}:1, "
        f"D {made['D']:,.0f}:1",
    )  # fmt: skip


def _share(scale: str) -> float:
    return float(Fraction(scale))


def _near(
    paper: str, item: str, value: float, ours: float, by: float, unit: str, note: str = ""
) -> declared.Row:
    """Within an absolute difference."""
    return _row(paper, item, value, ours, unit, f"+- {by:g}", abs(ours - value) <= by, note)


def _within(
    paper: str, item: str, value: float, ours: float, factor: float, unit: str
) -> declared.Row:
    """Within a factor either way."""
    holds = value > 0 and ours > 0 and max(value / ours, ours / value) <= factor
    return _row(paper, item, value, ours, unit, f"factor {factor:g}", holds, "")


def _row(
    paper: str,
    item: str,
    value: float | str,
    ours: float,
    unit: str,
    tolerance: str,
    holds: bool,
    note: str,
) -> declared.Row:
    return {
        "paper": paper,
        "item": item,
        "published": value,
        "ours": float(f"{ours:.4g}"),
        "unit": unit,
        "tolerance": tolerance,
        "holds": bool(holds),
        "note": note,
        "input": "",
    }
