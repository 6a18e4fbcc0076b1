"""Options and rows of ``nearfar run``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, Option, PolicyLike, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar run``, by name."""

    far: str
    policy: PolicyLike
    far_size: str | int | None
    far_latency: str | int
    epf: str


OPTIONS: Final = (
    Option(
        "fast",
        type="str | int",
        what="Fast memory of each process: 512M, or 50% of the peak resident set of the program's largest process.",
        required=True,
        metavar="SIZE",
    ),
    Option(
        "far",
        type="str",
        what="Where the rest lies: zstd, lz4, shm, file:PATH for a new file of that name, umd:MACHINE, or node:N for memory node N.",
        default="zstd",
        metavar="TIER",
        choices=names.FAR,
    ),
    Option(
        "policy",
        type="PolicyLike",
        what="Policy that decides what lies where.",
        default="ssp",
        metavar="POLICY",
        choices=names.POLICY,
        open=False,
    ),
    Option(
        "far_size",
        type="str | int | None",
        what="Most memory in the far tier, shadows included, before compression.",
        shown="16 times --fast",
        metavar="SIZE",
    ),
    Option(
        "far_latency",
        type="str | int",
        what="Time that a page takes to or from the far tier at least.",
        default="0ns",
        metavar="TIME",
    ),
    Option(
        "epf",
        type="str",
        what="Whose thread sleeps while its page comes from the far tier; others wait at their processors.",
        default="all",
        metavar="POLICY",
        choices=names.EPF,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar run``."""

    command: str
    policy: str
    knobs: str
    far: str
    budget_bytes: int
    far_size_bytes: int
    far_latency_ns: int
    epf: str
    seconds: float
    user_seconds: float
    system_seconds: float
    manager_seconds: float
    exit_code: int
    why: str | None
    images: int
    fast_bytes: int
    far_pages_bytes: int
    window_bytes: int
    far_bytes: int
    alone_seconds: float | None
    alone_exit_code: int | None
    alone_bytes: int | None
    slowdown: float | None
    resident_bytes: int | None
    resident_processes: int | None
    unmanaged_bytes: int | None
    held_bytes: int | None
    faults: int
    first_touches: int
    hint_faults: int
    accessed_faults: int
    window_faults: int
    promotions: int
    shadow_copies: int
    aborts: int
    demotions_copied: int
    demotions_remapped: int
    shadow_faults: int
    watch_faults: int
    shadows_reclaimed: int
    released: int
    pinned: int
    forks: int
    over_budget: int
    far_loads: int
    far_stores: int
    fetches: int
    fetches_predicted_ns: int
    fetches_ns: int
    slept: int
    stalled: int


ROWS: Final = Rows(
    columns=(
        Column("command", "string", False, "", "Program and arguments."),
        Column("policy", "string", False, "", "Policy."),
        Column("knobs", "string", False, "", "Its knobs that were given."),
        Column("far", "string", False, "", "Far tier."),
        Column(
            "budget_bytes", "int64", False, "bytes", "Fast memory of each process.", title="budget"
        ),
        Column(
            "far_size_bytes",
            "int64",
            False,
            "bytes",
            "Most memory of each in the far tier, before compression.",
            title="far size",
        ),
        Column(
            "far_latency_ns",
            "int64",
            False,
            "ns",
            "Time that a page took to or from the far tier at least.",
            title="far latency",
        ),
        Column(
            "epf",
            "string",
            False,
            "",
            "Whose threads slept while their page came from the far tier.",
        ),
        Column("seconds", "double", False, "s", "From start to end.", title="time"),
        Column(
            "user_seconds",
            "double",
            False,
            "s",
            "Processor time of the program and its managers.",
            title="user",
        ),
        Column("system_seconds", "double", False, "s", "The same in the kernel.", title="system"),
        Column(
            "manager_seconds",
            "double",
            False,
            "s",
            "Processor time of the managers, which is part of both; without up to 40 ms before the end of each.",
            title="manager",
        ),
        Column("exit_code", "int64", False, "", "The program's; 128 + N when signal N ended it."),
        Column("why", "string", True, "", "Why nearfar ended the program, if it did."),
        Column("images", "int64", False, "", "Process images that were managed."),
        Column(
            "fast_bytes",
            "int64",
            False,
            "bytes",
            "Most fast memory in use at a moment that was looked at.",
            title="fast",
        ),
        Column(
            "far_pages_bytes",
            "int64",
            False,
            "bytes",
            "Most memory in the far tier, shadows included, before compression.",
            title="far",
        ),
        Column(
            "window_bytes",
            "int64",
            False,
            "bytes",
            "Most far memory that was let through without a promotion.",
            title="window",
        ),
        Column(
            "far_bytes",
            "int64",
            False,
            "bytes",
            "Most bytes that the far tier took for it.",
            title="far takes",
        ),
        Column(
            "alone_seconds",
            "double",
            True,
            "s",
            "How long the program took bare, without nearfar; null unless `--alone` or a share as `--fast` had that measured.",
            title="bare",
        ),
        Column("alone_exit_code", "int64", True, "", "Its exit code then."),
        Column(
            "alone_bytes",
            "int64",
            True,
            "bytes",
            "Most private memory that one of its processes had then.",
            title="bare memory",
        ),
        Column(
            "slowdown",
            "double",
            True,
            "",
            "How many times as long as bare it took; null if its exit code differs.",
        ),
        Column(
            "resident_bytes",
            "int64",
            True,
            "bytes",
            "Most private memory that was resident, of all processes at a moment that was looked at.",
            title="resident",
        ),
        Column(
            "resident_processes", "int64", True, "", "Processes that were managed at that moment."
        ),
        Column(
            "unmanaged_bytes",
            "int64",
            True,
            "bytes",
            "What of it was in mappings that are not managed.",
            title="not managed",
        ),
        Column(
            "held_bytes",
            "int64",
            True,
            "bytes",
            "What of it could not be moved: locked, held by I/O, or shared with a child.",
            title="held",
        ),
        Column(
            "faults", "int64", False, "", "Faults of the program that were answered, of every kind."
        ),
        Column("first_touches", "int64", False, "", "Pages touched for the first time."),
        Column("hint_faults", "int64", False, "", "Hint faults, as the policy saw them."),
        Column(
            "accessed_faults",
            "int64",
            False,
            "",
            "Faults of pages that were parked to see whether they are used.",
        ),
        Column(
            "window_faults",
            "int64",
            False,
            "",
            "References to slow pages that went through the window.",
        ),
        Column("promotions", "int64", False, "", "Pages moved from the far tier to fast memory."),
        Column("shadow_copies", "int64", False, "", "Of these, pages that kept a shadow."),
        Column(
            "aborts",
            "int64",
            False,
            "",
            "Copies under way that were given up because the page was written.",
        ),
        Column("demotions_copied", "int64", False, "", "Pages moved to the far tier by a copy."),
        Column(
            "demotions_remapped",
            "int64",
            False,
            "",
            "Pages moved to the far tier by taking their shadow.",
        ),
        Column("shadow_faults", "int64", False, "", "First writes to pages with a shadow."),
        Column(
            "watch_faults",
            "int64",
            False,
            "",
            "First writes to pages without one that the policy watches.",
        ),
        Column(
            "shadows_reclaimed", "int64", False, "", "Shadows freed because their room was needed."
        ),
        Column("released", "int64", False, "", "Pages given back by the program."),
        Column(
            "pinned",
            "int64",
            False,
            "",
            "Times that a page could not be parked: held by the program's I/O, a lock or a child.",
        ),
        Column("forks", "int64", False, "", "Children, each given what it needs."),
        Column(
            "over_budget",
            "int64",
            False,
            "",
            "Pages in fast memory because there was room nowhere.",
        ),
        Column("far_loads", "int64", False, "", "Pages loaded from the far tier."),
        Column("far_stores", "int64", False, "", "Pages stored there."),
        Column(
            "fetches",
            "int64",
            False,
            "",
            "Pages that took time to come from the far tier, as it was asked for them ahead.",
        ),
        Column(
            "fetches_predicted_ns",
            "int64",
            False,
            "",
            "Time that they were predicted to take, added up, ns.",
        ),
        Column("fetches_ns", "int64", False, "", "Time that they took, added up, ns."),
        Column("slept", "int64", False, "", "Faults whose thread slept until its page had come."),
        Column(
            "stalled", "int64", False, "", "Faults whose thread kept its processor busy until then."
        ),
    ),
    keys=(
        "command",
        "policy",
        "knobs",
        "far",
        "budget_bytes",
        "far_size_bytes",
        "far_latency_ns",
        "epf",
    ),
    metrics={
        "seconds": "less",
        "user_seconds": "less",
        "system_seconds": "less",
        "manager_seconds": "less",
        "faults": "less",
        "promotions": "less",
        "hint_faults": "less",
        "shadow_faults": "less",
        "aborts": "less",
        "window_faults": "less",
        "far_loads": "less",
        "far_stores": "less",
        "fast_bytes": "less",
        "far_bytes": "less",
        "slowdown": "less",
        "resident_bytes": "less",
    },
)


class WatchRow(TypedDict):
    """A row of the table ``watch`` of ``nearfar run``."""

    pid: int | None
    command: str
    fast_bytes: int
    fast_peak_bytes: int
    budget_bytes: int
    far_pages_bytes: int
    far_pages_peak_bytes: int
    far_bytes: int
    window_bytes: int
    faults: int
    promotions: int
    demotions: int
    hint_faults: int
    shadow_faults: int
    aborts: int
    window_faults: int
    manager_seconds: float
    faults_per_second: float | None
    promotions_per_second: float | None
    demotions_per_second: float | None
    manager_share: float | None


WATCH_ROWS: Final = Rows(
    columns=(
        Column("pid", "int64", True, "", "Process; null for the whole run."),
        Column(
            "command",
            "string",
            False,
            "",
            "Its command line; of the whole run that of its launcher.",
        ),
        Column("fast_bytes", "int64", False, "bytes", "Fast memory in use.", title="fast"),
        Column(
            "fast_peak_bytes",
            "int64",
            False,
            "bytes",
            "Most at a moment that was looked at.",
            title="fast peak",
        ),
        Column(
            "budget_bytes",
            "int64",
            False,
            "bytes",
            "Fast memory that it may use (`--fast`); of the whole run that of all its processes.",
            title="budget",
        ),
        Column(
            "far_pages_bytes",
            "int64",
            False,
            "bytes",
            "Memory in the far tier, shadows included, before compression.",
            title="far",
        ),
        Column(
            "far_pages_peak_bytes",
            "int64",
            False,
            "bytes",
            "Most at a moment that was looked at.",
            title="far peak",
        ),
        Column(
            "far_bytes",
            "int64",
            False,
            "bytes",
            "What the far tier takes for it.",
            title="far takes",
        ),
        Column(
            "window_bytes",
            "int64",
            False,
            "bytes",
            "Far memory that is let through without a promotion.",
            title="window",
        ),
        Column(
            "faults", "int64", False, "", "Faults of the program that were answered, of every kind."
        ),
        Column("promotions", "int64", False, "", "Pages moved from the far tier to fast memory."),
        Column(
            "demotions",
            "int64",
            False,
            "",
            "Pages moved to the far tier, by a copy or by taking their shadow.",
        ),
        Column("hint_faults", "int64", False, "", "Hint faults, as the policy saw them."),
        Column("shadow_faults", "int64", False, "", "First writes to pages with a shadow."),
        Column(
            "aborts",
            "int64",
            False,
            "",
            "Copies under way that were given up because the page was written.",
        ),
        Column(
            "window_faults",
            "int64",
            False,
            "",
            "References to slow pages that went through the window.",
            title="let through",
        ),
        Column(
            "manager_seconds",
            "double",
            False,
            "s",
            "Processor time of its manager.",
            title="manager time",
        ),
        Column(
            "faults_per_second",
            "double",
            True,
            "per s",
            "Faults over the last second; null where it was not looked at before, as all of these are.",
            title="faults/s",
        ),
        Column(
            "promotions_per_second",
            "double",
            True,
            "per s",
            "Promotions over the last second.",
            title="promotions/s",
        ),
        Column(
            "demotions_per_second",
            "double",
            True,
            "per s",
            "Demotions over the last second.",
            title="demotions/s",
        ),
        Column(
            "manager_share",
            "double",
            True,
            "",
            "Share of a processor that its manager took over the last second.",
            title="manager",
        ),
    ),
    keys=("pid",),
    metrics={},
)
