"""Options and rows of ``nearfar advise``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar advise``, by name."""

    memory: str | None
    machine: MachineLike | Sequence[MachineLike] | None
    storage: str | Sequence[str] | None
    arch: str
    min_gain: str | float
    sizes: str | int | Sequence[int]
    model: str
    sample: float | None
    page_sizes: str | int | Sequence[str | int]
    view: str | None
    nested: str | int | None
    page_cache: str
    slowdown: str | float | None
    regions: bool
    set_memory: bool
    tlb: str | int
    replacement: str
    clock_insert: str
    kinds: str | Sequence[str] | None
    filter: str
    threads: int
    max_memory: str | int


OPTIONS: Final = (
    Option(
        "memory",
        type="str | None",
        what="Memory sizes: shares of the peak resident set (60%) or bytes (512M); one row per size.",
        shown="100%; 50% with --view paper, 10%,...,100% with --evaluate",
        metavar="SIZES",
    ),
    Option(
        "machine",
        type="MachineLike | Sequence[MachineLike] | None",
        what="Machine names or files; `all`: every built-in one with a storage.",
        shown="here, if this machine was measured, else nvme",
        metavar="MACHINES",
        choices=names.MACHINE,
    ),
    Option(
        "storage",
        type="str | Sequence[str] | None",
        what="Storage devices of the machine, or of the built-in machines where it lacks one. With several machines, each uses its own.",
        shown="all",
        metavar="STORAGES",
    ),
    Option(
        "arch",
        type="str",
        what="Architecture: it determines which page sizes can be set.",
        default="x86-64",
        metavar="NAME",
        choices=(("x86-64", ""), ("aarch64", "")),
        open=False,
    ),
    Option(
        "min_gain",
        type="str | float",
        what="Recommend another size than 4 KiB only if it saves at least this share of the predicted time.",
        default="5%",
        metavar="SHARE",
    ),
    Option(
        "sizes",
        type="str | int | Sequence[int]",
        what="Page sizes simulated for the model: all, a list (512,4K,64K,2M), or how many it may choose (4).",
        default="all",
        metavar="SIZES",
    ),
    Option(
        "model",
        type="str",
        what="How times are predicted.",
        default="auto",
        metavar="NAME",
        choices=(
            ("auto", "the papers' forms where they hold, else the bridge"),
            ("papers", "the papers' forms, whatever they do"),
            ("bridge", "never the papers' forms"),
        ),
        open=False,
    ),
    Option(
        "sample",
        type="float | None",
        what="Simulate only this share of the trace (0 to 1).",
        shown="all",
        metavar="NUMBER",
    ),
    Option(
        "page_sizes",
        type="str | int | Sequence[str | int]",
        what="Page sizes to consider besides 4 KiB; `...` doubles. `--view machine` uses those of them that the architecture can set.",
        default="512,1K,...,2M",
        metavar="SIZES",
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
        shown="as the machine says, else 4K: advice is for a VM",
        metavar="SIZE",
    ),
    Option(
        "page_cache",
        type="str",
        what="Where the program's files are at its start, for --view machine.",
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
        "slowdown",
        type="str | float | None",
        what="Also say with how much memory the program takes at most so much longer than with all that it wants (5%).",
        metavar="SHARE",
    ),
    Option(
        "regions",
        type="bool",
        what="Also say which mappings want which page size; takes --view machine.",
        default=False,
    ),
    Option(
        "set_memory",
        type="bool",
        what="Also size the guest: the program's memory and what its system needs; --emit libvirt and qemu then set it.",
        default=False,
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
    """A row of ``nearfar advise``."""

    vm: str
    workload: str
    memory_fraction: float | None
    storage: str
    advised_page_bytes: int
    settable_page_bytes: int
    predicted_ns: float
    simulated_ns: float
    baseline_4k_ns: float
    gain: float
    regret: float
    best_page_bytes: int
    scenario: str
    trace: str
    machine: str
    arch: str
    memory_bytes: int
    min_gain: float
    model: str
    model_reason: str
    model_page_bytes: int
    model_regret: float | None
    baseline_4k_predicted_ns: float
    simulated_gain: float
    best_ns: float
    confidence: str | None
    left_out_error: float | None
    largest_error: float | None
    limit: str
    mechanism: str
    settable_predicted_ns: float
    settable_ns: float
    settable_price: float
    why: str
    model_gain: float
    gain_error: float | None
    bloat_bytes: int | None
    judged_page_bytes: int | None
    enough_bytes: int | None
    wanted_bytes: int | None
    thrashes_below_bytes: int | None
    guest_memory_bytes: int | None


ROWS: Final = Rows(
    columns=(
        Column("vm", "string", False, "", "The virtual machine."),
        Column("workload", "string", False, "", "What it runs."),
        Column(
            "memory_fraction",
            "double",
            True,
            "of the peak resident set",
            "Memory size where it was given as a part of the peak resident set, or null.",
        ),
        Column("storage", "string", False, "", "The storage device of the machine."),
        Column(
            "advised_page_bytes",
            "int64",
            False,
            "bytes",
            "Page size of least predicted time; 4096 unless another gains `min_gain`. Where there is a `gain_error`, the gain is more than that, and the size the smallest that gains alike.",
            title="page",
        ),
        Column(
            "settable_page_bytes",
            "int64",
            False,
            "bytes",
            "Of the sizes that the architecture can set, the advised one or the better neighbour; 4096 if that gains too little.",
            title="set",
        ),
        Column("predicted_ns", "double", False, "ns per reference", "Of the advised page."),
        Column("simulated_ns", "double", False, "ns per reference", "Of the advised page."),
        Column(
            "baseline_4k_ns",
            "double",
            False,
            "ns per reference",
            "Of 4 KiB, simulated.",
            title="4 KiB",
        ),
        Column("gain", "double", False, "share", "1 - predicted(advised) / predicted(4 KiB)."),
        Column("regret", "double", False, "share", "simulated(advised) / simulated(best) - 1."),
        Column("best_page_bytes", "int64", False, "bytes", "Page size of least simulated time."),
        Column("scenario", "string", False, "", "The group of VMs that a fleet file names."),
        Column("trace", "string", False, "", "The trace folder."),
        Column("machine", "string", False, "", "The machine."),
        Column("arch", "string", False, "", "The architecture."),
        Column("memory_bytes", "int64", False, "bytes", "Memory size."),
        Column("min_gain", "double", False, "share", "The gain that is asked for."),
        Column(
            "model",
            "string",
            False,
            "",
            "`papers` or `bridge`; `machine` where no model stands between: with `--view machine` the predicted time is the simulated one.",
        ),
        Column("model_reason", "string", False, "", "Why that model."),
        Column(
            "model_page_bytes", "int64", False, "bytes", "Page size without a threshold of gain."
        ),
        Column(
            "model_regret",
            "double",
            True,
            "share",
            "Regret of `judged_page_bytes`. This, `confidence`, `left_out_error` and `largest_error` are null with `--view machine`.",
        ),
        Column(
            "baseline_4k_predicted_ns", "double", False, "ns per reference", "Of 4 KiB, predicted."
        ),
        Column(
            "simulated_gain", "double", False, "share", "1 - simulated(advised) / simulated(4 KiB)."
        ),
        Column("best_ns", "double", False, "ns per reference", "Of the best page, simulated."),
        Column(
            "confidence",
            "string",
            True,
            "",
            "`fit` in the table: `good`, `fair`, `poor` by `left_out_error` (5 %, 20 %); `unknown` under 4 sizes.",
            title="fit",
        ),
        Column(
            "left_out_error",
            "double",
            True,
            "share",
            "Largest error of the bridge's time at a shown size next to the advised one, when that size is held out.",
        ),
        Column(
            "largest_error",
            "double",
            True,
            "share",
            "Largest error of the predicted time at any size, against the simulation.",
        ),
        Column(
            "limit",
            "string",
            False,
            "",
            "What a reference still waits for: `translation`, `storage`, or `memory` (under 1 % for both). With `--view machine` what takes the largest part of the time: these, `processor` or `faults`.",
        ),
        Column(
            "mechanism",
            "string",
            False,
            "",
            "How the settable size is set: `base`, `granule`, `mthp`, `thp`, `hugetlb`.",
        ),
        Column(
            "settable_predicted_ns",
            "double",
            False,
            "ns per reference",
            "Of the settable page, predicted.",
        ),
        Column(
            "settable_ns", "double", False, "ns per reference", "Of the settable page, simulated."
        ),
        Column(
            "settable_price",
            "double",
            False,
            "share",
            "predicted(settable) / predicted(advised) - 1.",
        ),
        Column("why", "string", False, "", "The advice in sentences."),
        Column(
            "model_gain",
            "double",
            False,
            "share",
            "1 - predicted(`model_page_bytes`) / predicted(4 KiB).",
        ),
        Column(
            "gain_error",
            "double",
            True,
            "share",
            "What that gain may be wrong by; null but with `--view machine`.",
        ),
        Column(
            "bloat_bytes",
            "int64",
            True,
            "bytes",
            "What the settable page adds to the most private memory at once; null but with `--view machine`.",
        ),
        Column(
            "judged_page_bytes",
            "int64",
            True,
            "bytes",
            "`model_page_bytes`; where the model is shown every size, the one that is best when each is predicted from the others. Null with `--view machine`.",
        ),
        Column(
            "enough_bytes",
            "int64",
            True,
            "bytes",
            "Memory from which on the program takes at most `slowdown` longer than with `wanted_bytes`, with 4 KiB pages, and what it swaps on this storage. This and the two after it are null without `--slowdown`.",
        ),
        Column("wanted_bytes", "int64", True, "bytes", "All that it wants."),
        Column(
            "thrashes_below_bytes",
            "int64",
            True,
            "bytes",
            "Memory below which it takes twice as long; null if it never does.",
        ),
        Column(
            "guest_memory_bytes",
            "int64",
            True,
            "bytes",
            "Memory for the guest, with what its system needs, in multiples of 256 MiB; null without `--set-memory`.",
        ),
    ),
    keys=("vm", "workload", "machine", "storage", "arch", ("memory_fraction", "memory_bytes")),
    metrics={
        "simulated_ns": "less",
        "predicted_ns": "less",
        "settable_ns": "less",
        "best_ns": "less",
        "baseline_4k_ns": "less",
        "gain": "more",
        "simulated_gain": "more",
        "regret": "less",
        "model_regret": "less",
        "left_out_error": "less",
        "largest_error": "less",
    },
)


class CurveRow(TypedDict):
    """A row of the table ``curve`` of ``nearfar advise``."""

    page_bytes: int
    predicted_ns: float
    simulated_ns: float
    translation_ns: float
    data_ns: float
    fitted: bool


CURVE_ROWS: Final = Rows(
    columns=(
        Column("page_bytes", "int64", False, "bytes", "Page size."),
        Column("predicted_ns", "double", False, "ns per reference", "Predicted time."),
        Column("simulated_ns", "double", False, "ns per reference", "Simulated time."),
        Column(
            "translation_ns",
            "double",
            False,
            "ns per reference",
            "Time of address translation, simulated.",
        ),
        Column("data_ns", "double", False, "ns per reference", "Time of the data, simulated."),
        Column(
            "fitted",
            "bool",
            False,
            "",
            "Whether the model was shown this size.",
            title="to the model",
        ),
    ),
    keys=("page_bytes",),
    metrics={"simulated_ns": "less", "predicted_ns": "less"},
)
