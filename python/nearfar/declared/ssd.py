"""Options and rows of ``nearfar ssd``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar ssd``, by name."""

    machine: MachineLike
    dram: str | Sequence[str | int]
    epf: str | Sequence[str]
    disk: str | None
    precondition: str | Sequence[float]
    overwrite: str
    sleep_granularity: str | int | None
    atomic: str
    first_touch: str
    l2p: str
    window: int
    seed: int
    threads: int


OPTIONS: Final = (
    Option(
        "machine",
        type="MachineLike",
        what="Machine name or file, with `[flash]`, `[cpu]` and `[cost]`.",
        default="umd",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "dram",
        type="str | Sequence[str | int]",
        what="Sizes of the device's DRAM.",
        default="100M,150M",
        metavar="SIZE",
    ),
    Option(
        "epf",
        type="str | Sequence[str]",
        what="Policies for embedded page faults.",
        default="none,all,smart:50us",
        metavar="POLICY",
        choices=names.EPF,
    ),
    Option(
        "disk",
        type="str | None",
        what="Storage of the machine that files are read from.",
        shown="none: files take no time",
        metavar="TEXT",
    ),
    Option(
        "precondition",
        type="str | Sequence[float]",
        what="Share of the flash filled in order, then share overwritten at random.",
        default="60%,50%",
        metavar="SHARES",
    ),
    Option(
        "overwrite",
        type="str",
        what="Which pages are overwritten at random.",
        default="drawn",
        metavar="NAME",
        choices=(
            (
                "once",
                "each page once, in random order, as tools that fill drives do (fio, unless `norandommap`): afterwards nothing that was there before is valid",
            ),
            ("drawn", "any page each time: some are written several times, 1/e of them never"),
        ),
        open=False,
    ),
    Option(
        "sleep_granularity",
        type="str | int | None",
        what="Threads wake at multiples of this time.",
        shown="the machine's cost.timer_slack",
        metavar="TIME",
    ),
    Option(
        "atomic",
        type="str",
        what="References during which no thread may sleep, kinds joined by `+`.",
        default="kernel",
        metavar="KINDS",
        choices=names.ATOMIC,
    ),
    Option(
        "first_touch",
        type="str",
        what="What the flash holds of a page before its first touch.",
        default="new",
        metavar="NAME",
        choices=(
            (
                "new",
                "nothing, and the device knows: the page is not read, and counts as written to",
            ),
            (
                "stored",
                "what was there before, as the device cannot know which pages are free: the flash is read where it has the page, which stays clean until it is written to",
            ),
        ),
        open=False,
    ),
    Option(
        "l2p",
        type="str",
        what="Where a walk reads the device's mapping table.",
        default="cached",
        metavar="NAME",
        choices=(
            ("cached", "through the CPU's caches, as the page table"),
            ("device", "in the device's DRAM each time, as what a cache holds of it may be stale"),
        ),
        open=False,
    ),
    Option(
        "window",
        type="int",
        what="Instructions that a thread may run ahead of the others in the trace.",
        default=1048576,
        metavar="COUNT",
    ),
    Option(
        "seed",
        type="int",
        what="Seed of the random writes of the preconditioning.",
        default=1,
        metavar="COUNT",
    ),
    Option(
        "threads",
        type="int",
        what="Cells simulated at a time; 0 = one per core.",
        default=0,
        metavar="COUNT",
        recorded=False,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar ssd``."""

    epf: str
    dram_bytes: int
    seconds: float
    references: int
    instructions: int
    accesses: int
    tlb_misses: int
    embedded_faults: int
    embedded_fault_rate: float
    joined_faults: int
    passed_to_kernel: int
    passed_share: float
    slept: int
    overruns: int
    page_faults: int
    disk_reads: int
    cpu_busy: float
    cpu_stall: float
    cpu_switch: float
    cpu_idle: float
    services: int
    predicted_us_mean: float
    actual_us_mean: float
    prediction_error_us_mean: float
    prediction_error_us_max: float
    flash_reads: int
    flash_programs: int
    gc_collections: int
    gc_moved: int
    write_amplification: float
    evictions: int
    dirty_evictions: int
    erases_least: int
    erases_most: int
    die_busy: float
    cpu_walk: float
    from_flash: int
    faults_while_filling: int
    late_services: int
    late_die: float
    late_channel: float
    late_erase: float


ROWS: Final = Rows(
    columns=(
        Column("epf", "string", False, "", "Policy for embedded page faults.", title="EPF"),
        Column("dram_bytes", "int64", False, "bytes", "DRAM in the device.", title="DRAM"),
        Column(
            "seconds",
            "double",
            False,
            "s",
            "Time from the first reference to the last.",
            title="time",
        ),
        Column("references", "int64", False, "", "References replayed."),
        Column("instructions", "int64", False, "", "Instructions executed."),
        Column(
            "accesses",
            "int64",
            False,
            "lines",
            "Accesses to the device: lines that the CPU caches read from it or write to it.",
        ),
        Column("tlb_misses", "int64", False, "", "Page-table walks.", title="TLB misses"),
        Column(
            "embedded_faults",
            "int64",
            False,
            "",
            "Page-table walks that found the page in need of a move, or on its way for another thread.",
            title="embedded faults",
        ),
        Column(
            "embedded_fault_rate",
            "double",
            False,
            "per access",
            "Embedded page faults per access.",
            title="faults",
        ),
        Column(
            "joined_faults",
            "int64",
            False,
            "",
            "Embedded page faults on a page that was on its way for another thread.",
        ),
        Column(
            "passed_to_kernel",
            "int64",
            False,
            "",
            "Embedded page faults that went to the kernel; those raised again are in `overruns`.",
        ),
        Column(
            "passed_share",
            "double",
            False,
            "",
            "Their share of all embedded page faults.",
            title="passed on",
        ),
        Column(
            "slept",
            "int64",
            False,
            "",
            "How often a thread slept; not where it was in a section that may not.",
        ),
        Column(
            "overruns",
            "int64",
            False,
            "",
            "How often a thread woke before its page was there, and raised the fault again.",
        ),
        Column("page_faults", "int64", False, "", "Ordinary page faults: first touches."),
        Column("disk_reads", "int64", False, "", "Reads of the disk."),
        Column(
            "cpu_busy",
            "double",
            False,
            "s",
            "Executing and waiting for DRAM, summed over the cores.",
            title="busy",
        ),
        Column(
            "cpu_stall",
            "double",
            False,
            "s",
            "Waiting for the device's flash with the core held.",
            title="stall",
        ),
        Column(
            "cpu_switch", "double", False, "s", "Exceptions and context switches.", title="switch"
        ),
        Column("cpu_idle", "double", False, "s", "Nothing to run.", title="idle"),
        Column(
            "services",
            "int64",
            False,
            "",
            "Services of the device: pages moved in or out, and waited for.",
        ),
        Column(
            "predicted_us_mean",
            "double",
            False,
            "us",
            "Mean of the predicted service times.",
            title="predicted",
        ),
        Column(
            "actual_us_mean",
            "double",
            False,
            "us",
            "Mean of the actual service times.",
            title="actual",
        ),
        Column(
            "prediction_error_us_mean",
            "double",
            False,
            "us",
            "Mean of actual less predicted: the bias, and the mean error too, as a service never takes less than predicted.",
            title="mean error",
        ),
        Column(
            "prediction_error_us_max",
            "double",
            False,
            "us",
            "Largest of actual less predicted.",
            title="largest error",
        ),
        Column(
            "flash_reads",
            "int64",
            False,
            "pages",
            "Pages read from flash, for the host and by collection.",
            title="reads",
        ),
        Column(
            "flash_programs",
            "int64",
            False,
            "pages",
            "Pages programmed, for the host and by collection.",
            title="programs",
        ),
        Column("gc_collections", "int64", False, "blocks", "Blocks collected.", title="GC"),
        Column(
            "gc_moved",
            "int64",
            False,
            "pages",
            "Pages that collection moved, each a read and a program.",
            title="moved",
        ),
        Column(
            "write_amplification",
            "double",
            False,
            "",
            "Programs for each written page that left the device's DRAM.",
            title="WA",
        ),
        Column("evictions", "int64", False, "pages", "Pages that left the device's DRAM."),
        Column("dirty_evictions", "int64", False, "pages", "Those that had been written to."),
        Column(
            "erases_least",
            "int64",
            False,
            "",
            "Erases of the block erased least, preconditioning included.",
        ),
        Column("erases_most", "int64", False, "", "Erases of the block erased most."),
        Column("die_busy", "double", False, "s", "Working time of the dies, all together."),
        Column(
            "cpu_walk",
            "double",
            False,
            "s",
            "Walks of the page table and the device's mapping table; part of `cpu_busy`.",
            title="walks",
        ),
        Column(
            "from_flash",
            "int64",
            False,
            "",
            "Services whose page was only in flash; the others made room for a page that is new.",
            title="from flash",
        ),
        Column(
            "faults_while_filling",
            "int64",
            False,
            "",
            "Embedded page faults while frames of the DRAM were free.",
        ),
        Column(
            "late_services",
            "int64",
            False,
            "",
            "Services that took longer than predicted.",
            title="late",
        ),
        Column(
            "late_die",
            "double",
            False,
            "s",
            "How much longer, all together, as dies were at work for others.",
            title="die",
        ),
        Column(
            "late_channel",
            "double",
            False,
            "s",
            "As channels carried other pages.",
            title="channel",
        ),
        Column(
            "late_erase",
            "double",
            False,
            "s",
            "As blocks were erased, which no prediction counts.",
            title="erasing",
        ),
    ),
    keys=("dram_bytes", "epf"),
    metrics={
        "seconds": "less",
        "embedded_faults": "less",
        "embedded_fault_rate": "less",
        "passed_share": "less",
        "cpu_idle": "less",
        "cpu_stall": "less",
        "cpu_switch": "less",
        "actual_us_mean": "less",
        "prediction_error_us_mean": "less",
        "flash_reads": "less",
        "flash_programs": "less",
        "gc_collections": "less",
        "write_amplification": "less",
    },
    seed="seed",
)
