"""Options and rows of ``nearfar paging``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar paging``, by name."""

    page_sizes: str | int | Sequence[str | int]
    memory: str | int | Sequence[str | int]
    tlb: str | int
    replacement: str
    clock_insert: str
    swappiness: int
    statistics_every: int
    machine: MachineLike | Sequence[MachineLike] | None
    storage: str | Sequence[str] | None
    kinds: str | Sequence[str] | None
    filter: str
    lifetimes: str
    page_cache: str
    write_back: bool
    view: str | None
    nested: str | int | None
    slowdown: str | float
    sample: float | None
    threads: int
    max_memory: str | int


OPTIONS: Final = (
    Option(
        "page_sizes",
        type="str | int | Sequence[str | int]",
        what="Page sizes, powers of two from 64 bytes to 1 TiB; `...` doubles. By default, `--view machine` uses those that Linux supports for anonymous memory: 4 KiB, and 16 KiB and larger.",
        default="512,1K,...,2M",
        metavar="SIZES",
    ),
    Option(
        "memory",
        type="str | int | Sequence[str | int]",
        what="Memory sizes: shares of the peak resident set (50%) or bytes (512M); `...` for equal steps.",
        default="10%,...,100%",
        metavar="SIZES",
    ),
    Option(
        "tlb",
        type="str | int",
        what="The TLB: entries (64), with ways (64x4), or two levels (64+1536x12); LRU.",
        default="64",
        metavar="ENTRIES",
    ),
    Option(
        "replacement",
        type="str",
        what="Page replacement.",
        default="clock",
        metavar="POLICY",
        choices=names.REPLACEMENT,
        open=False,
    ),
    Option(
        "clock_insert",
        type="str",
        what="Accessed bit of a newly loaded page under CLOCK.",
        default="set",
        metavar="NAME",
        choices=(
            ("set", "the faulting reference counts as one (hardware sets the bit when it retries)"),
            ("clear", "libCacheSim's default"),
        ),
        open=False,
    ),
    Option(
        "swappiness",
        type="int",
        what="The kernel's vm.swappiness, for `linux` and `mglru`: how readily anonymous pages go in place of those of files, from 0 to 200.",
        default=60,
        metavar="COUNT",
    ),
    Option(
        "statistics_every",
        type="int",
        what="For `linux`: faults between two updates of the statistics that it compares its lists by, which the kernel makes every two seconds; 0: none, as for a program that ends sooner.",
        default=1,
        metavar="COUNT",
    ),
    Option(
        "machine",
        type="MachineLike | Sequence[MachineLike] | None",
        what="Machine name or file; several, with commas between, are compared as whole hosts.",
        shown="here, if this machine was measured, else nvme",
        metavar="MACHINES",
        choices=names.MACHINE,
    ),
    Option(
        "storage",
        type="str | Sequence[str] | None",
        what="Storages of the machine; one that it lacks is borrowed from the built-in machine that has it, but not where several machines are compared.",
        shown="all",
        metavar="TEXT",
    ),
    Option(
        "kinds",
        type="str | Sequence[str] | None",
        what="Kinds of references to include.",
        shown="all",
        metavar="KINDS",
        choices=names.KIND,
        open=False,
    ),
    Option(
        "filter",
        type="str",
        what="References to simulate: all (`none`), or those that miss the machine's caches.",
        default="none",
        metavar="NAME",
        choices=names.FILTER,
        open=False,
    ),
    Option(
        "lifetimes",
        type="str",
        what="Whether memory is freed when the program unmaps it, if the trace has such events.",
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
        "page_cache",
        type="str",
        what="Where the program's files are at its start.",
        default="cold",
        metavar="NAME",
        choices=(
            ("cold", "the first reference to a page of a file reads it from storage"),
            ("warm", "it finds the page in memory, and is no fault that counts"),
            (
                "elsewhere",
                "files are in memory that is not counted here, such as another control group's",
            ),
        ),
        open=False,
    ),
    Option(
        "write_back",
        type="bool",
        what="Charge a write for each eviction of a dirty page.",
        default=False,
    ),
    Option(
        "view",
        type="str | None",
        what="How the time of a reference is computed.",
        shown="machine, where its file describes the processor, else paper",
        metavar="NAME",
        choices=(
            ("paper", "equations 1 to 3 of page-size advice (000), as published"),
            (
                "machine",
                "what the processor spends: caches, TLBs, page walks and the kernel's part of faults",
            ),
        ),
        open=False,
    ),
    Option(
        "nested",
        type="str | int | None",
        what="Page size that the host uses for a virtual machine's memory, for `--view machine`: page walks then include the host's page table.",
        shown="as the machine says",
        metavar="SIZE",
    ),
    Option(
        "slowdown",
        type="str | float",
        what="Slowdown to accept in the answer on memory, against having all the memory that the program uses.",
        default="5%",
        metavar="SHARE",
    ),
    Option(
        "sample",
        type="float | None",
        what="Simulate only this share of the trace (0 to 1): pages for memories, references for the TLB. Rows then have 95 % intervals.",
        metavar="NUMBER",
    ),
    Option(
        "threads",
        type="int",
        what="Threads; 0 = one per core.",
        default=0,
        metavar="COUNT",
        recorded=False,
    ),
    Option(
        "max_memory",
        type="str | int",
        what="Memory limit of the simulation; if it needs more, it reads the trace several times.",
        default="12G",
        metavar="SIZE",
        recorded=False,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar paging``."""

    page_bytes: int
    memory_bytes: int
    memory_fraction: float | None
    frames: int
    references: int
    tlb_misses: int
    tlb_miss_rate: float
    tlb_second_hits: int
    faults: int
    fault_rate: float
    fault_rate_error: float | None
    pages: int
    dirty_evictions: int
    storage: str
    translation_ns: float
    data_ns: float
    total_ns: float
    zero_fills: int
    file_reads: int
    swap_ins: int
    file_rereads: int
    swap_outs: int
    write_backs: int
    cpu_ns: float | None
    tlb_ns: float | None
    walk_ns: float | None
    cache_ns: float | None
    dram_ns: float | None
    fault_ns: float | None
    io_ns: float | None
    resident_bytes: int | None
    machine: str
    fault_rate_low: float | None
    fault_rate_high: float | None
    tlb_miss_rate_low: float | None
    tlb_miss_rate_high: float | None


ROWS: Final = Rows(
    columns=(
        Column("page_bytes", "int64", False, "bytes", "Page size."),
        Column("memory_bytes", "int64", False, "bytes", "Memory size."),
        Column(
            "memory_fraction",
            "double",
            True,
            "of the peak resident set",
            "Memory size where it was given as a part of the peak resident set (of the 4 KiB footprint where pages never end), or null.",
        ),
        Column("frames", "int64", False, "pages", "Frames: memory / page, at least 8."),
        Column(
            "references",
            "int64",
            False,
            "",
            "References at this page size; one that crosses a page counts in both, but not with `--view machine`, which has one number for all page sizes.",
        ),
        Column(
            "tlb_misses",
            "int64",
            False,
            "",
            "Page walks: what no level of the TLB held.",
            title="TLB misses",
        ),
        Column(
            "tlb_miss_rate",
            "double",
            False,
            "per reference",
            "e, epsilon of page-size advice (000).",
            title="TLB miss rate",
        ),
        Column(
            "tlb_second_hits",
            "int64",
            False,
            "",
            "First-level misses that the second level held; 0 with one level.",
            title="second TLB hits",
        ),
        Column("faults", "int64", False, "", "Page faults; an estimate when pages were sampled."),
        Column(
            "fault_rate", "double", False, "per reference", "d, delta of page-size advice (000)."
        ),
        Column(
            "fault_rate_error",
            "double",
            True,
            "per reference",
            "Standard error of the fault rate when pages were sampled, else null.",
        ),
        Column("pages", "int64", False, "pages", "Distinct pages: no memory size can fault less."),
        Column("dirty_evictions", "int64", False, "", "Evictions of written pages.", title="dirty"),
        Column("storage", "string", False, "", "The storage device of the machine."),
        Column(
            "translation_ns",
            "double",
            False,
            "ns per reference",
            "Time of address translation, T_A.",
        ),
        Column("data_ns", "double", False, "ns per reference", "Time of the data, T_D."),
        Column("total_ns", "double", False, "ns per reference", "T_A + T_D."),
        Column(
            "zero_fills",
            "int64",
            False,
            "",
            "Faults on pages that the kernel filled with zeros, or with a copy. Where pages never end all memory counts as private.",
        ),
        Column(
            "file_reads",
            "int64",
            False,
            "",
            "Faults that read a page of a file for the first time.",
        ),
        Column("swap_ins", "int64", False, "", "Faults that read a page back from swap."),
        Column("file_rereads", "int64", False, "", "Faults that read a page of a file again."),
        Column("swap_outs", "int64", False, "", "Evictions that wrote a page to swap."),
        Column("write_backs", "int64", False, "", "Evictions that wrote a page to its file."),
        Column(
            "cpu_ns",
            "double",
            True,
            "ns per reference",
            "Instructions, when nothing misses. This and the seven after it are null but with `--view machine`; the times add up to `total_ns`.",
        ),
        Column(
            "tlb_ns",
            "double",
            True,
            "ns per reference",
            "Waiting for the second level of the TLB.",
            title="TLB",
        ),
        Column(
            "walk_ns", "double", True, "ns per reference", "Waiting for page walks.", title="walks"
        ),
        Column(
            "cache_ns",
            "double",
            True,
            "ns per reference",
            "Waiting for the second and the third level of cache.",
            title="caches",
        ),
        Column(
            "dram_ns", "double", True, "ns per reference", "Waiting for memory.", title="memory"
        ),
        Column(
            "fault_ns",
            "double",
            True,
            "ns per reference",
            "The kernel's part of faults.",
            title="faults",
        ),
        Column(
            "io_ns", "double", True, "ns per reference", "Waiting for the storage.", title="I/O"
        ),
        Column(
            "resident_bytes",
            "int64",
            True,
            "bytes",
            "Most private memory at once where the page size is switched on for it.",
        ),
        Column("machine", "string", False, "", "The machine."),
        Column(
            "fault_rate_low",
            "double",
            True,
            "per reference",
            "95 % interval of the fault rate when pages were sampled. This and the three after it are null without `--sample`.",
        ),
        Column("fault_rate_high", "double", True, "per reference", "Its upper end."),
        Column(
            "tlb_miss_rate_low",
            "double",
            True,
            "per reference",
            "95 % interval of the TLB miss rate when references were sampled; null as well where the trace is so short that all of it was simulated, and with `--view machine`.",
            title="TLB miss rate low",
        ),
        Column(
            "tlb_miss_rate_high",
            "double",
            True,
            "per reference",
            "Its upper end.",
            title="TLB miss rate high",
        ),
    ),
    keys=("machine", "storage", ("memory_fraction", "memory_bytes"), "page_bytes"),
    metrics={
        "total_ns": "less",
        "translation_ns": "less",
        "data_ns": "less",
        "tlb_miss_rate": "less",
        "fault_rate": "less",
        "tlb_misses": "less",
        "faults": "less",
        "dirty_evictions": "less",
    },
)
