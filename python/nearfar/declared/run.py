"""Options and rows of ``nearfar run``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar run``, by name."""

    far: str
    policy: str
    far_size: str | int | None
    far_latency: str | int


OPTIONS: Final = (
    Option(
        "fast",
        type="str | int",
        what="Memory that each process keeps for itself: 512M.",
        required=True,
        metavar="SIZE",
    ),
    Option(
        "far",
        type="str",
        what="Where the rest lies: zstd, lz4, shm, or file:PATH for a new file of that name.",
        default="zstd",
        metavar="TIER",
        choices=names.FAR,
    ),
    Option(
        "policy",
        type="str",
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
