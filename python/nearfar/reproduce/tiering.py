"""SSP (selective shadow paging, paper 003) and NOMAD's tables 2 to 4 against the ``tiering`` study.

Published numbers are in ``papers/003/*.toml``. What the papers leave open is varied one at a time
(:data:`VARIANTS`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nearfar.declared import reproduce as declared
from nearfar.declared import tiering as tiering_declared
from nearfar.reproduce import Reproduced, compared, explained
from nearfar.reproduce._tiering_rows import (
    Options,
    Progress,
    box,
    boxes,
    column,
    over,
    published,
    row_of,
    share,
)
from nearfar.tiering import TieringResult, tiering

if TYPE_CHECKING:
    from nearfar.reproduce._live import LiveRun

#: Runs of a real program, of which the median counts.
LIVE_RUNS = 3

#: Free memory of two nodes of 16 GB, as ``numactl -H`` shows it in the README of NOMAD's
#: repository: 13,707 and 16,017 MB. The slow node has 458 MiB less: two lists of 30 million
#: eight-byte offsets that the benchmark allocates and soon no longer reads. SSP (003) does not
#: say how much memory was free. Table 1's faults depend on it: :data:`VARIANTS` has other amounts.
FAST, SLOW = "13707M", "15559M"
#: Sizes in NOMAD's scripts. The working set is the 3.49 million pages (of 3.6 million) that 30
#: million draws of YCSB touch; memory is twice that. The files of draws (458 MiB) stay in the
#: page cache, which is demoted to the slow node.
_SCRIPTS: Options = {
    "rss": str(2 * 3_490_000 * 4096), "wss": str(3_490_000 * 4096), "slow": "15101M",
}  # fmt: skip
#: Runs for each box plot in SSP (003)'s figures.
SEEDS = 8
#: Tolerances: shadow copies, by mix; other ratios of SSP to NOMAD; counts and sizes; table 2.
_COPIES = {"write": "within 0.05", "mixed": "within 0.05", "read": "within 0.02"}
_RATIO = "within 0.05"
_FACTOR = "factor 2"
_ORDER = "factor 10"
#: Rounds of GUPS beside the antagonist, of which the last half counts.
_LOADED_ROUNDS = 24
#: Counts below this are "hardly any" in table 2.
_FEW = 20_000
#: Phases of table 2, and ours.
_PHASES = {"in-progress": "round-1", "stable": "round-4"}

#: What SSP (003) leaves open, one change at a time: name, what it represents, options.
VARIANTS: tuple[tuple[str, str, Options], ...] = (
    ("half kernel costs", "sources of the costs are weak", {"cost_scale": 0.5}),
    ("double kernel costs", "sources of the costs are weak", {"cost_scale": 2.0}),
    ("hottest pages first", "NOMAD's scripts", {"placement": "hottest-first"}),
    ("plain Zipf", "the text says Zipfian", {"pattern": "zipf"}),
    ("eight threads", "NOMAD's benchmark has one", {"workload": "nomad-threads"}),
    (
        "SSP notices writes by write protection",
        "NOMAD protects every page that it promotes",
        {"knobs": {"ssp.notice": "write-protect"}},
    ),
    (
        "SSP notices writes by shadow faults alone",
        "SSP learns only of writes that free a shadow",
        {"knobs": {"ssp.notice": "shadow-fault"}},
    ),
    (
        "ten control groups",
        "a pass of kswapd frees shadows for each",
        {"knobs": {"nomad.groups": "10", "ssp.groups": "10"}},
    ),
    ("slow node -0.4 GiB", "what the kernel takes", {"slow": "15149M"}),
    ("slow node -140 MiB", "fitted to table 1, without a source", {"slow": "15419M"}),
    ("26.6 GiB and its files", "what NOMAD's scripts make", _SCRIPTS),
    ("slow node +0.4 GiB", "without the benchmark's offset lists", {"slow": "16017M"}),
    # The slow node has what the fast one lacks.
    ("fast node -0.9 GiB", "12.5 GiB, as NOMAD's paper says", {"fast": "12800M", "slow": "16466M"}),
    (
        "scans ten times as rare",
        "the assumed scan period",
        {"knobs": {"nomad.scan_floor": "1s", "ssp.scan_floor": "1s"}},
    ),
    ("three times the rounds", "how long a run is", {"rounds": 12}),
)


def study(
    *,
    full: bool = False,
    live: bool = False,
    threads: int = 0,
    progress: Progress = None,
    rows_only: bool = False,
) -> Reproduced:
    """Rows, and how many of SSP (003)'s hold under each of :data:`VARIANTS`.

    Args:
        full: simulate the papers' size; else a 64th of memory and work.
        live: also run a real program (:func:`_live_rows`).
        threads: parallel runs; 0 = one per core.
        progress: called regularly with the number of accesses done.
        rows_only: leave out :data:`VARIANTS`.
    """
    scale = "1/1" if full else "1/64"
    options: Options = {"scale": scale, "threads": threads, "progress": progress}
    rows = _rows(options, live)
    run = {
        "study": "tiering",
        "captures": f"memory and work at scale {scale}; SSP (003) by {SEEDS} seeds, else one",
        "setting": {"scale": scale, "fast": FAST, "slow": SLOW},
    }
    if rows_only:
        return Reproduced(rows, run)
    usual = list(_paper_003(options))
    cases = [compared("as chosen", "this run, its first seed", usual, usual)]
    for name, why, changed in VARIANTS:
        cases.append(compared(name, why, list(_paper_003({**options, **changed})), usual))
    return Reproduced(rows, run, cases)


def _rows(options: Options, live: bool) -> list[declared.Row]:
    """Every published number and statement with ours, and reasons if they do not hold."""
    paper_003 = list(_paper_003({**options, "seeds": SEEDS}))
    live_rows = list(_live_rows()) if live else []
    policies = _Policies(options)
    nomad = [*policies.table_2(), *policies.who_wins(), *_table_3(options), *_table_4(options)]
    return [
        *explained([*paper_003, *policies.paper_003(), *live_rows], published("ssp")["differs"]),
        *explained(nomad, published("nomad")["differs"]),
        *explained(list(_headlines(options)), published("policies")["differs"]),
    ]


class _Mix:
    """NOMAD and SSP on one mix of reads and writes, a run for each seed."""

    def __init__(self, mix: str, options: Options) -> None:
        settings: Options = {"fast": FAST, "slow": SLOW, "points": 1, "mix": mix, **options}
        workload = settings.pop("workload", "nomad-medium")
        self.result = tiering(workload, policy="nomad,ssp", **settings)

    def runs(self, policy: str, count: str, *, rounds_only: bool = True) -> list[float]:
        """A count summed over the rounds, or the bandwidth of the last round, of each seed.

        Without ``rounds_only``, the warm-up counts as well.
        """
        by_seed: dict[int, list[float]] = {}
        for row in self.result.rows:
            if row["policy"] == policy and not (rounds_only and row["phase"] == "warm-up"):
                by_seed.setdefault(row["seed"], []).append(column(row, count))
        if count == "bandwidth_mb_s":
            return [float(values[-1]) for values in by_seed.values()]
        return [float(sum(values)) for values in by_seed.values()]

    def shadow_pages(self, policy: str) -> list[float]:
        """The mean number of shadow pages in the rounds, of each seed."""
        by_seed: dict[int, list[float]] = {}
        for point in self.result.series:
            if point["policy"] == policy and point["phase"] != "warm-up":
                by_seed.setdefault(point["seed"], []).append(point["shadow_bytes"] / 4096)
        return [float(np.mean(values)) for values in by_seed.values()]

    def ratio(self, count: str) -> tuple[float, str]:
        """SSP's median over NOMAD's, 1 if both are 0; and both boxes."""
        nomad, ssp = box(self.runs("nomad", count)), box(self.runs("ssp", count))
        return over(ssp[1], nomad[1]), boxes(nomad, ssp)

    def separation(self, count: str) -> tuple[float, str]:
        """SSP's upper quartile over NOMAD's lower one, below 1 if the boxes do not overlap."""
        nomad, ssp = box(self.runs("nomad", count)), box(self.runs("ssp", count))
        return over(ssp[2], nomad[0]), boxes(nomad, ssp)


def _paper_003(options: Options) -> Iterator[declared.Row]:
    data = published("ssp")
    size = 1 / share(options["scale"])
    mixes = {mix: _Mix(mix, options) for mix in ("write", "mixed", "read", "split")}
    for mix, counts in data["table1"].items():
        if mix == "source":
            continue
        for count, value in counts.items():
            runs = mixes[mix].runs("nomad", f"shadow_{count}", rounds_only=False)
            low, ours, high = (size * quartile for quartile in box(runs))
            item = f"table 1: NOMAD, shadow {count}, {mix}"
            note = f"middle half of the runs: {low:,.0f} to {high:,.0f}"
            yield row_of("003", item, value, ours, _FACTOR, "pages", note)
    figures = data["figures"]
    unit = "SSP / NOMAD, medians"
    for mix, value in figures["shadow_copies"].items():
        ours, note = mixes[mix].ratio("shadow_copies")
        note += "; reads and writes 1:1, drawn for each operation" if mix == "mixed" else ""
        item = f"figure 4: shadow copies, {mix}"
        yield row_of("003", item, value, ours, _COPIES[mix], unit, note)
        if mix == "mixed":
            ours, note = mixes["split"].ratio("shadow_copies")
            note += "; reads and writes 1:1 by page: half of the pages only read, half only written"
            item = "figure 4: shadow copies, mixed by page"
            yield row_of("003", item, value, ours, _COPIES[mix], unit, note)
    for mix in ("mixed", "read"):
        ours, note = mixes[mix].ratio("demotions_remapped")
        item = f"figures 2 and 3: remaps, {mix}"
        yield row_of("003", item, figures["remaps"], ours, _RATIO, unit, note)
    for mix in ("write", "mixed"):
        for count in ("shadow_faults", "shadow_reclaims"):
            ours, note = mixes[mix].separation(count)
            item = f"figures 2 and 3: {count.replace('_', ' ')}, {mix}, fall"
            quartiles = "SSP's upper quartile / NOMAD's lower"
            yield row_of("003", item, "< 1", ours, "below 1", quartiles, note)
    ours, note = mixes["write"].ratio("bandwidth_mb_s")
    yield row_of(
        "003", "figure 5: bandwidth, write", figures["bandwidth_write"], ours, _RATIO, unit,
        f"last round, MiB/s: {note}",
    )  # fmt: skip
    nomad, ssp = (box(mixes["write"].shadow_pages(policy)) for policy in ("nomad", "ssp"))
    yield row_of(
        "003", "abstract: memory in shadows, write", figures["shadow_memory"],
        over(ssp[1], nomad[1]), _RATIO, unit, f"pages: {boxes(nomad, ssp)}",
    )  # fmt: skip


def _live_rows() -> Iterator[declared.Row]:
    """SSP (003)'s results with a real program under ``nearfar run``, at a 27th of the size."""
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
            item = f"live, figure 4: shadow copies, {mix}"
            yield row_of("003", item, value, ours, _COPIES[mix], unit, note)
            if mix == "read":
                ours, note = _live_ratio(runs, "demotions_remapped")
                item = "live, figures 2 and 3: remaps, read"
                yield row_of("003", item, figures["remaps"], ours, _RATIO, unit, note)
                continue
            for name, says in (("shadow_faults", "faults"), ("shadows_reclaimed", "reclaims")):
                ours, note = _live_ratio(runs, name)
                item = f"live, figures 2 and 3: shadow {says}, {mix}, fall"
                yield row_of("003", item, "< 1", ours, "below 1", unit, note)
            if mix == "write":
                ours, note = _live_ratio(runs, "bandwidth_mb_s")
                yield row_of(
                    "003", "live, figure 5: bandwidth, write", figures["bandwidth_write"], ours,
                    _RATIO, unit, f"last round, MiB/s: {note}",
                )  # fmt: skip


#: Runs by policy.
_LiveRuns = dict[str, "list[LiveRun]"]


def _live_ratio(runs: _LiveRuns, name: str) -> tuple[float, str]:
    """SSP's median of a counter, or of the bandwidth, over NOMAD's; and both boxes."""
    nomad, ssp = (
        box(
            [
                run.bandwidth_mb_s if name == "bandwidth_mb_s" else run.outcome.counters[name]
                for run in of_policy
            ]
        )
        for of_policy in runs.values()
    )
    return over(ssp[1], nomad[1]), boxes(nomad, ssp)


class _Policies:
    """The policies of NOMAD's table 2 on its micro-benchmark."""

    def __init__(self, options: Options) -> None:
        self.size = 1 / share(options["scale"])
        table = published("nomad")["table2"]
        self.table = {name: cases for name, cases in table.items() if name != "source"}
        self.runs: dict[tuple[str, str], TieringResult] = {}
        for case in ("small", "medium", "large"):
            for mix in ("read", "write"):
                settings: Options = {
                    **options, "mix": mix, "fast": FAST, "slow": SLOW, "points": 1,
                }  # fmt: skip
                self.runs[case, mix] = tiering(
                    f"nomad-{case}", policy=[*self.table, "none"], **settings
                )

    def row(self, policy: str, case: str, phase: str, mix: str) -> tiering_declared.Row:
        """The row of a policy in a phase."""
        (row,) = (
            row
            for row in self.runs[case, mix].rows
            if row["policy"] == policy and row["phase"] == _PHASES[phase]
        )
        return row

    def over(self, one: str, other: str, case: str, phase: str, mix: str) -> float:
        """Bandwidth of one policy over that of another."""
        rates = (self.row(policy, case, phase, mix)["bandwidth_mb_s"] for policy in (one, other))
        return next(rates) / next(rates)

    def table_2(self) -> Iterator[declared.Row]:
        """Promotions and demotions."""
        for case, mix in self.runs:
            for phase in _PHASES:
                for policy, cases in self.table.items():
                    for count, value in zip(
                        ("promotions", "demotions"), cases[case][phase][mix], strict=True
                    ):
                        item = f"table 2: {policy}, {case}, {phase}, {mix}, {count}"
                        ours = column(self.row(policy, case, phase, mix), count) * self.size
                        row = row_of("NOMAD", item, value, ours, _ORDER, "pages")
                        if value < _FEW and ours < _FEW:
                            row |= {"holds": True, "note": "both hardly any"}
                        yield row

    def paper_003(self) -> Iterator[declared.Row]:
        """SSP (003)'s statements about TPP and NOMAD's shadows."""
        stated = published("ssp")["stated"]
        slower = {
            (case, phase, mix): self.over("nomad", "tpp", case, phase, mix)
            for case, mix in self.runs
            for phase in _PHASES
        }
        where = max(slower, key=lambda at: slower[at])
        medium = max(ratio for (case, _, _), ratio in slower.items() if case == "medium")
        yield row_of(
            "003", "section 2: NOMAD over TPP, at most", stated["nomad_over_tpp"], slower[where],
            _FACTOR, "bandwidth", f"{', '.join(where)}; with SSP's working set {medium:.3g}",
        )  # fmt: skip
        run = self.runs["medium", "write"]
        reclaims = run.total("nomad", "shadow_reclaims") * self.size
        used = {
            policy: [point["slow_bytes"] for point in run.series if point["policy"] == policy]
            for policy in ("nomad", "tpp")
        }
        tpp_uses_less = max(used["tpp"]) < min(used["nomad"])
        most = (max(used["nomad"]) - max(used["tpp"])) * self.size / (1 << 20)
        row = row_of(
            "003", "section 1: shadows fill the slow node until kswapd reclaims, which can swap",
            "stated", reclaims, "above 0", "pages reclaimed",
            f"no swap is modelled: kswapd frees shadows before it scans pages; NOMAD uses up to "
            f"{most:,.0f} MiB more of the slow node than TPP, which keeps no shadows",
        )  # fmt: skip
        row["tolerance"] += ", and more free with TPP"
        row["holds"] = row["holds"] and tpp_uses_less
        yield row

    def who_wins(self) -> Iterator[declared.Row]:
        """NOMAD's statements about which policy is faster."""
        for mix in ("read", "write"):
            for case in ("small", "medium", "large"):
                ours = self.over("nomad", "tpp", case, "in-progress", mix)
                item = f"figure 7-9: NOMAD over TPP, {case}, in progress, {mix}"
                yield row_of("NOMAD", item, "1 to 6", ours, "above 1", "bandwidth")
            stable, before = (
                self.row("tpp", "small", phase, mix)["bandwidth_mb_s"]
                for phase in ("stable", "in-progress")
            )
            item = f"text: TPP, small, stable over in progress, {mix}"
            yield row_of("NOMAD", item, "> 10", stable / before, "above 10", "bandwidth")
            ours = self.over("memtis", "nomad", "small", "stable", mix)
            # The paper gives a bound; the row holds if NOMAD is faster.
            item = f"text: Memtis over NOMAD, small, stable, {mix}"
            yield row_of("NOMAD", item, ">= 0.4", ours, "below 1", "bandwidth")
            ours = self.over("nomad", "memtis", "large", "stable", mix)
            item = f"text: NOMAD below Memtis, large, stable, {mix}"
            yield row_of("NOMAD", item, "< 1", ours, "below 1", "bandwidth")
        ours = self.over("nomad", "memtis", "medium", "stable", "write")
        item = "text: NOMAD below Memtis, medium, stable, write"
        yield row_of("NOMAD", item, "< 1", ours, "below 1", "bandwidth")


def _headlines(options: Options) -> Iterator[declared.Row]:
    """The authors' statements about other policies, each on a workload of its kind."""
    table = published("policies")
    # A quarter of the usual size, so that there is time for more rounds: policies take minutes to
    # reach a steady state.
    common: Options = {**options, "scale": str(Fraction(options["scale"]) / 4), "points": 1}
    # A share for each tenant keeps the antagonist in fast memory, where Colloid's authors bind it.
    beside: Options = {
        **common, "machine": "ddr4-2socket", "fast": "32G", "slow": "64G",
        "rounds": _LOADED_ROUNDS, "share": "1:30",
    }  # fmt: skip
    loaded = tiering("antagonist", "gups", policy="autonuma,colloid", **beside)
    rates = {
        policy: np.mean([
            row["bandwidth_mb_s"]
            for row in loaded.rows
            if row["policy"] == policy and row["workload"] == "gups"
        ][_LOADED_ROUNDS // 2 :])
        for policy in ("autonuma", "colloid")
    }  # fmt: skip
    ours = float(rates["colloid"] / rates["autonuma"])
    yield row_of(
        "Colloid", "colloid: bandwidth over autonuma beside a memory antagonist",
        f"up to {table['colloid']['over_autonuma']}", ours, "above 1.1", "bandwidth",
        "objects of 4 KiB (with 64 B, page walks dominate); a share of fast memory keeps the "
        "antagonist in place",
    )  # fmt: skip
    placed = tiering("hot-cold", policy="none,hybridtier,damon", **common)
    last = {row["policy"]: row["bandwidth_mb_s"] for row in placed.rows}
    for policy, paper in (("hybridtier", "HybridTier"), ("damon", "DAMON")):
        value = table[policy]["over_none"]
        ours = last[policy] / last["none"]
        yield row_of(
            paper, f"{policy}: bandwidth over none, a hot set in slow memory", value, ours,
            f">= {value:g}", "bandwidth", "workload hot-cold; on gups neither policy gains",
        )  # fmt: skip


def _table_3(options: Options) -> Iterator[declared.Row]:
    table = published("nomad")["table3"]
    gb = 10**9
    before = None
    size = 1 / share(options["scale"])
    for rss, value in zip(table["rss_gb"], table["shadow_gb"], strict=True):
        # Half of the 30.7 GB in total: the fast node has 16 GiB minus what its kernel uses.
        node = str(int(15.35 * gb))
        settings: Options = {
            **options, "machine": "cxl-b", "mix": "read", "rss": str(rss * gb),
            "wss": str(rss * gb), "fast": node, "slow": node, "points": 1,
        }  # fmt: skip
        last = tiering("nomad-medium", policy="nomad", **settings).series[-1]
        ours = last["shadow_bytes"] * size / gb
        item = f"table 3: shadow memory at {rss} GB RSS"
        yield row_of("NOMAD", item, value, ours, _FACTOR, "GB")
        if before is not None:
            item = f"table 3: less shadow memory at {rss} GB than before"
            yield row_of("NOMAD", item, "less", ours, f"below {before:.4g}", "GB")
        before = ours


def _table_4(options: Options) -> Iterator[declared.Row]:
    ratios = {}
    for platform, machine in (("C", "pmem-c"), ("D", "cxl-d")):
        settings: Options = {
            **options, "machine": machine, "mix": "write", "pattern": "zipf", "fast": FAST,
            "points": 1,
        }  # fmt: skip
        result = tiering("nomad-medium", policy="nomad", **settings)
        aborts = result.total("nomad", "aborts")
        ratios[platform] = result.total("nomad", "promotions") / max(1.0, aborts)
    ours = ratios["D"] / ratios["C"]
    yield row_of(
        "NOMAD", "table 4: successes to aborts, platform D over C", "1.8 to 4.9", ours, "above 1",
        "x",
        f"micro-benchmark in place of Liblinear and Redis: C {ratios['C']:,.0f}:1, "
        f"D {ratios['D']:,.0f}:1",
    )  # fmt: skip
