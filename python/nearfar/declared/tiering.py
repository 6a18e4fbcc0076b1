"""Options and rows of ``nearfar tiering``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, PolicyLike, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar tiering``, by name."""

    workload: str | Path
    policy: PolicyLike | Sequence[PolicyLike]
    machine: MachineLike
    mix: str
    pattern: str
    placement: str
    rounds: int | None
    scale: str | float
    seeds: int | Sequence[int]
    seed: int
    fast: str | int | Sequence[str | int] | None
    slow: str | int | None
    rss: str | int | None
    wss: str | int | None
    huge: bool
    cost_scale: float
    filter: str
    lifetimes: str
    copies: int
    slowdown: str | float
    points: int
    threads: int


OPTIONS: Final = (
    Option(
        "workload",
        type="str | Path",
        what="A generated workload, or a trace folder.",
        default="nomad-medium",
        metavar="WORKLOAD",
        choices=names.WORKLOAD,
    ),
    Option(
        "policy",
        type="PolicyLike | Sequence[PolicyLike]",
        what="Policies: names with commas between, or all.",
        default="all",
        metavar="POLICIES",
        choices=names.POLICY,
    ),
    Option(
        "machine",
        type="MachineLike",
        what="Machine name or file; it needs two to four nodes and [cost].",
        default="cxl-a",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "mix",
        type="str",
        what="Loads and stores of a generated workload's rounds.",
        default="write",
        metavar="NAME",
        choices=(
            ("read", "loads only"),
            ("write", "stores only"),
            ("mixed", "one to one, drawn for each operation"),
            (
                "split",
                "one to one by page: half of the pages are only loaded, the others only stored to",
            ),
        ),
        open=False,
    ),
    Option(
        "pattern",
        type="str",
        what="Popularity of the pages of a generated workload, as in YCSB.",
        default="scrambled-zipf",
        metavar="NAME",
        choices=(
            ("scrambled-zipf", "ranks hashed onto records"),
            ("zipf", "the most popular record is the first"),
        ),
        open=False,
    ),
    Option(
        "placement",
        type="str",
        what="Where the hottest pages of a generated workload are.",
        default="uniform",
        metavar="NAME",
        choices=(("uniform", "scattered"), ("hottest-first", "the most popular ones first")),
        open=False,
    ),
    Option(
        "rounds",
        type="int | None",
        what="Rounds after the warm-up; of a trace, how often it is replayed.",
        shown="4; of a trace: 1",
        metavar="COUNT",
    ),
    Option(
        "scale",
        type="str | float",
        what="Scale of a generated workload and its machine, memory and work: 1/64, 1/1 for full size.",
        default="1/64",
        metavar="SHARE",
    ),
    Option(
        "seeds",
        type="int | Sequence[int]",
        what="Number of seeds, one run each, starting at --seed.",
        default=1,
        metavar="COUNT",
    ),
    Option("seed", type="int", what="The first seed.", default=1, metavar="COUNT"),
    Option(
        "fast",
        type="str | int | Sequence[str | int] | None",
        what="Sizes of the fastest node: 30% of the program's memory, or bytes at full scale; `...` for equal steps.",
        shown="the machine's; of a trace 10%,...,100%",
        metavar="SIZES",
    ),
    Option(
        "slow",
        type="str | int | None",
        what="Size of the slowest node: the same, one size.",
        shown="the machine's",
        metavar="SIZE",
    ),
    Option(
        "rss",
        type="str | int | None",
        what="Memory that a generated workload maps, at full scale.",
        shown="its own",
        metavar="SIZE",
    ),
    Option(
        "wss",
        type="str | int | None",
        what="The part of it that is used, the last one.",
        shown="its own",
        metavar="SIZE",
    ),
    Option("huge", type="bool", what="Map memory as huge pages of 2 MiB.", default=False),
    Option(
        "cost_scale",
        type="float",
        what="Factor on all costs of kernel primitives.",
        default=1.0,
        metavar="NUMBER",
    ),
    Option(
        "filter",
        type="str",
        what="References of a trace that reach memory, before or behind the machine's caches.",
        default="cache",
        metavar="NAME",
        choices=names.FILTER,
        open=False,
    ),
    Option(
        "lifetimes",
        type="str",
        what="Whether pages end, where a trace has events that say so; with cache-write-backs never.",
        default="on",
        metavar="NAME",
        choices=(
            (
                "on",
                "pages end as the trace's events say, and memory sizes are parts of the peak resident set",
            ),
            (
                "off",
                "a page, once touched, lives for ever, and memory sizes are parts of the footprint",
            ),
        ),
        open=False,
    ),
    Option(
        "copies",
        type="int",
        what="Instances of a traced program side by side, each with pages of its own.",
        default=1,
        metavar="COUNT",
    ),
    Option(
        "slowdown",
        type="str | float",
        what="How much longer than with all its memory fast the program may take, in the answer to how much fast memory it needs.",
        default="5%",
        metavar="SHARE",
    ),
    Option(
        "points",
        type="int",
        what="Points of the time series in each phase; the table shows them if it is not 40.",
        default=40,
        metavar="COUNT",
    ),
    Option(
        "threads",
        type="int",
        what="Threads; 0 = one per core. A policy in Python makes it 1.",
        default=0,
        metavar="COUNT",
        recorded=False,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar tiering``."""

    policy: str
    workload: str
    mix: str
    seed: int
    phase: str
    accesses: int
    seconds: float
    bandwidth_mb_s: float
    mean_latency_ns: float
    fast_hit_ratio: float
    promotions: int
    demotions: int
    demotions_remapped: int
    demotions_copied: int
    shadow_copies: int
    shadow_faults: int
    shadow_reclaims: int
    aborts: int
    hint_faults: int
    write_faults: int
    bytes_migrated: int
    shadow_bytes_peak: int
    fast_pages: int
    fast_node_bytes: int
    fast_fraction: float | None


ROWS: Final = Rows(
    columns=(
        Column("policy", "string", False, "", "The policy."),
        Column("workload", "string", False, "", "The generated workload, or the trace."),
        Column("mix", "string", False, "", "Its loads and stores: `trace` for a trace."),
        Column("seed", "uint64", False, "", "The seed of the draws."),
        Column("phase", "string", False, "", "The phase: `warm-up`, `round-1`, ..., or `trace`."),
        Column("accesses", "int64", False, "", "The program's accesses."),
        Column("seconds", "double", False, "s", "How long they took, simulated."),
        Column(
            "bandwidth_mb_s",
            "double",
            False,
            "MiB/s",
            "Bytes of the program's accesses per second.",
            title="MiB/s",
        ),
        Column(
            "mean_latency_ns",
            "double",
            False,
            "ns",
            "Time of an access, all its faults included.",
            title="access",
        ),
        Column(
            "fast_hit_ratio",
            "double",
            False,
            "",
            "Share of accesses to the fastest node.",
            title="fast",
        ),
        Column("promotions", "int64", False, "pages", "Pages moved up.", title="up"),
        Column("demotions", "int64", False, "pages", "Pages moved down.", title="down"),
        Column(
            "demotions_remapped",
            "int64",
            False,
            "pages",
            "Of these, onto their shadow.",
            title="remap",
        ),
        Column("demotions_copied", "int64", False, "pages", "Of these, by a copy.", title="copied"),
        Column(
            "shadow_copies",
            "int64",
            False,
            "pages",
            "Promotions that kept a shadow.",
            title="shadow",
        ),
        Column(
            "shadow_faults", "int64", False, "pages", "Shadows freed by a write.", title="fault"
        ),
        Column(
            "shadow_reclaims",
            "int64",
            False,
            "pages",
            "Shadows freed for their frame.",
            title="reclaim",
        ),
        Column(
            "aborts",
            "int64",
            False,
            "pages",
            "Copies given up because the page was written meanwhile.",
        ),
        Column("hint_faults", "int64", False, "", "Hint faults.", title="hints"),
        Column("write_faults", "int64", False, "", "Write-protect faults in all."),
        Column("bytes_migrated", "int64", False, "bytes", "Bytes copied between nodes."),
        Column("shadow_bytes_peak", "int64", False, "bytes", "Most bytes in shadows at a time."),
        Column(
            "fast_pages", "int64", False, "pages", "Pages of the fastest node in use at the end."
        ),
        Column(
            "fast_node_bytes",
            "int64",
            False,
            "bytes",
            "Size of the fastest node.",
            title="fast memory",
        ),
        Column(
            "fast_fraction",
            "double",
            True,
            "of the program's memory",
            "The same where it was given as a part of the program's memory, or null.",
        ),
    ),
    keys=("workload", "mix", ("fast_fraction", "fast_node_bytes"), "policy", "phase"),
    metrics={
        "bandwidth_mb_s": "more",
        "mean_latency_ns": "less",
        "seconds": "less",
        "fast_hit_ratio": "more",
        "promotions": "less",
        "demotions": "less",
        "bytes_migrated": "less",
        "hint_faults": "less",
        "write_faults": "less",
        "shadow_faults": "less",
        "aborts": "less",
    },
    seed="seed",
)


class SeriesRow(TypedDict):
    """A row of the table ``series`` of ``nearfar tiering``."""

    policy: str
    workload: str
    mix: str
    seed: int
    phase: str
    progress: float
    seconds: float
    bandwidth_mb_s: float
    fast_hit_ratio: float
    shadow_copies: int
    promotions: int
    demotions: int
    fast_bytes: int
    slow_bytes: int
    shadow_bytes: int
    shadow_faults: int
    shadow_reclaims: int
    demotions_remapped: int
    fast_node_bytes: int
    fast_fraction: float | None


SERIES_ROWS: Final = Rows(
    columns=(
        Column("policy", "string", False, "", "The policy."),
        Column("workload", "string", False, "", "The generated workload, or the trace."),
        Column("mix", "string", False, "", "Its loads and stores: `trace` for a trace."),
        Column("seed", "uint64", False, "", "The seed of the draws."),
        Column("phase", "string", False, "", "The phase."),
        Column("progress", "double", False, "", "Share of the run's accesses done, 0 to 1."),
        Column("seconds", "double", False, "s", "Simulated time since the start."),
        Column(
            "bandwidth_mb_s",
            "double",
            False,
            "MiB/s",
            "Bytes of the program's accesses per second, since the point before.",
            title="MiB/s",
        ),
        Column(
            "fast_hit_ratio",
            "double",
            False,
            "",
            "Share of accesses to the fastest node, since the point before.",
            title="fast",
        ),
        Column(
            "shadow_copies",
            "int64",
            False,
            "pages",
            "Shadows made since the start.",
            title="shadow",
        ),
        Column(
            "promotions", "int64", False, "pages", "Pages promoted since the start.", title="up"
        ),
        Column(
            "demotions", "int64", False, "pages", "Pages demoted since the start.", title="down"
        ),
        Column("fast_bytes", "int64", False, "bytes", "Bytes in use on the fastest node."),
        Column("slow_bytes", "int64", False, "bytes", "Bytes in use on the other nodes."),
        Column("shadow_bytes", "int64", False, "bytes", "Of these, shadows.", title="in shadows"),
        Column(
            "shadow_faults",
            "int64",
            False,
            "pages",
            "Shadows freed by a write since the start.",
            title="fault",
        ),
        Column(
            "shadow_reclaims",
            "int64",
            False,
            "pages",
            "Shadows freed for their frame since the start.",
            title="reclaim",
        ),
        Column(
            "demotions_remapped",
            "int64",
            False,
            "pages",
            "Pages demoted onto their shadow since the start.",
            title="remap",
        ),
        Column(
            "fast_node_bytes",
            "int64",
            False,
            "bytes",
            "Size of the fastest node.",
            title="fast memory",
        ),
        Column(
            "fast_fraction",
            "double",
            True,
            "of the program's memory",
            "The same where it was given as a part of the program's memory, or null.",
        ),
    ),
    keys=("workload", "mix", ("fast_fraction", "fast_node_bytes"), "policy", "phase", "progress"),
    metrics={"bandwidth_mb_s": "more", "fast_hit_ratio": "more"},
    seed="seed",
)
