"""Options and columns of ``advise``.

``make declared`` generates ``nearfar.declared.advise`` from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nearfar.advise.architectures import ARCHITECTURES
from nearfar.advise.prediction import MODEL_CHOICES
from nearfar.declared import names, paging
from nearfar.schema import Column, Option, Rows

#: Default memory size of a VM, by view.
MEMORY: Final = {"paper": "50%", "machine": "100%"}
_PAGING: Final = {option.name: option for option in paging.OPTIONS}

#: Options of ``advise`` alone, and options of ``paging`` with another default or text.
OWN: Final = (
    Option(
        "memory",
        "str | None",
        "Memory sizes: shares of the peak resident set (60%) or bytes (512M); one row per size.",
        shown=f"{MEMORY['machine']}; {MEMORY['paper']} with --view paper, 10%,...,100% with "
        "--evaluate",
        metavar="SIZES",
    ),
    Option(
        "machine",
        "MachineLike | Sequence[MachineLike] | None",
        "Machine names or files; `all`: every built-in one with a storage.",
        shown=_PAGING["machine"].shown,
        metavar="MACHINES",
        choices=names.MACHINE,
    ),
    Option(
        "storage",
        "str | Sequence[str] | None",
        "Storage devices of the machine, or of the built-in machines where it lacks one. With "
        "several machines, each uses its own.",
        shown="all",
        metavar="STORAGES",
    ),
    Option(
        "arch",
        "str",
        "Architecture, which determines the page sizes that can be set.",
        default="x86-64",
        metavar="NAME",
        choices=tuple((name, "") for name in ARCHITECTURES),
        open=False,
    ),
    Option(
        "min_gain",
        "str | float",
        "Recommend a size other than 4 KiB only if it saves at least this share of the "
        "predicted time.",
        default="5%",
        metavar="SHARE",
    ),
    Option(
        "sizes",
        "str | int | Sequence[int]",
        "Page sizes that the model sees: all, a list (512,4K,64K,2M), or how many it may "
        "choose (4).",
        default="all",
        metavar="SIZES",
    ),
    Option(
        "model",
        "str",
        "How times are predicted.",
        default="auto",
        metavar="NAME",
        choices=tuple(MODEL_CHOICES.items()),
        open=False,
    ),
    replace(
        _PAGING["page_sizes"],
        what="Page sizes to consider besides 4 KiB; `...` doubles. `--view machine` uses only "
        "sizes that the architecture can set.",
    ),
    _PAGING["view"],
    replace(_PAGING["nested"], shown="the machine file's, else 4K, because advice is for a VM"),
    replace(
        _PAGING["page_cache"],
        what="Where the program's files are when it starts, for --view machine.",
    ),
    replace(
        _PAGING["slowdown"],
        type="str | float | None",
        what="Also report how much memory the program needs to be at most this much slower than "
        "with enough memory (5%).",
        default=None,
    ),
    _PAGING["whole"],
    Option(
        "regions",
        "bool",
        "Also report the best page size for each mapping; needs --view machine.",
        default=False,
    ),
    Option(
        "set_memory",
        "bool",
        "Also size the guest: memory for the program and its system; --emit libvirt and qemu then "
        "set it.",
        default=False,
    ),
)

#: Options of ``paging`` that are the same here.
_SAME: Final = (
    "tlb",
    "replacement",
    "kinds",
    "filter",
    "threads",
    "max_memory",
)
#: Options that are passed to the paging study.
PASSED: Final = (*_SAME, "view", "page_cache", "nested", "whole")

#: Options that have no meaning in a view, and why.
IDLE: Final = {
    "paper": (("page_cache", "regions", "whole"), "where every fault is a read"),
    "machine": (("sizes", "model"), "which simulates every page size"),
}
#: Options that only the view ``paper`` has; if one is given, that is the default view.
PAPERS: Final = (*IDLE["machine"][0], "tlb", "filter")

OPTIONS: Final = (*OWN, *(_PAGING[name] for name in _SAME))

ROWS: Final = Rows(
    columns=(
        Column("vm", "string", False, "", "The virtual machine."),
        Column("workload", "string", False, "", "Its workload."),
        Column(
            "memory_fraction",
            "double",
            True,
            "of the peak resident set",
            "Memory size if it was given as a share of the peak resident set, else null.",
        ),
        Column("storage", "string", False, "", "The storage device of the machine."),
        Column(
            "advised_page_bytes",
            "int64",
            False,
            "bytes",
            "Page size of least predicted time; 4096 unless another gains `min_gain`. With "
            "`--view machine` its gain is also larger than `gain_error`, and it is the smallest "
            "size whose gain is not clearly smaller than the largest.",
            title="page",
        ),
        Column(
            "settable_page_bytes",
            "int64",
            False,
            "bytes",
            "The advised size if the architecture can set it, else its better neighbour; 4096 if "
            "that gains less than `min_gain`.",
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
        Column("min_gain", "double", False, "share", "The smallest gain that counts."),
        Column(
            "model",
            "string",
            False,
            "",
            "`papers` or `bridge`; `machine` with `--view machine`, where the predicted time is "
            "the simulated one.",
        ),
        Column("model_reason", "string", False, "", "Why that model."),
        Column("model_page_bytes", "int64", False, "bytes", "Page size without the threshold."),
        Column(
            "model_regret",
            "double",
            True,
            "share",
            "Regret of `judged_page_bytes`; null with `--view machine`.",
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
            "`fit` in the table: `good`, `fair`, `poor` by `left_out_error` (5 %, 20 %); `unknown` "
            "with fewer than 4 sizes; null with `--view machine`.",
            title="fit",
        ),
        Column(
            "left_out_error",
            "double",
            True,
            "share",
            "Largest error of the bridge at a known size near the advised one, when that size is "
            "held out; null with `--view machine`.",
        ),
        Column(
            "largest_error",
            "double",
            True,
            "share",
            "Largest error of the predicted time at any size, against the simulation; null with "
            "`--view machine`.",
        ),
        Column(
            "limit",
            "string",
            False,
            "",
            "What a reference mainly waits for: `translation`, `storage`, or `memory` (less than "
            "1 % for both). With `--view machine`, the largest part of the time: one of these, "
            "`processor` or `faults`.",
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
        Column("why", "string", False, "", "The advice in words."),
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
            "Error of that gain; null without `--view machine`.",
        ),
        Column(
            "bloat_bytes",
            "int64",
            True,
            "bytes",
            "What the settable page adds to the peak of private memory; null without "
            "`--view machine`.",
        ),
        Column(
            "judged_page_bytes",
            "int64",
            True,
            "bytes",
            "`model_page_bytes`; if the model sees every size, the best size when each is "
            "predicted with that size held out. Null with `--view machine`.",
        ),
        Column(
            "enough_bytes",
            "int64",
            True,
            "bytes",
            "Smallest memory with which the program is at most `slowdown` slower than with "
            "`wanted_bytes`, with 4 KiB pages and swap on this storage; null without "
            "`--slowdown`.",
        ),
        Column(
            "wanted_bytes",
            "int64",
            True,
            "bytes",
            "Memory for all that the program had at once; null without `--slowdown`.",
        ),
        Column(
            "thrashes_below_bytes",
            "int64",
            True,
            "bytes",
            "Memory below which it takes over twice as long; null if it never does, or without "
            "`--slowdown`.",
        ),
        Column(
            "guest_memory_bytes",
            "int64",
            True,
            "bytes",
            "Memory for the guest, including its system, a multiple of 256 MiB; null without "
            "`--set-memory`.",
        ),
        Column(
            "start_gain",
            "double",
            True,
            "share",
            "Time that the advised page saves while memory is filled; null without "
            "`--view machine`.",
        ),
        Column(
            "start_share",
            "double",
            True,
            "share",
            "The part of the run, with 4 KiB pages, in which memory is filled; null without "
            "`--view machine`. Without `--whole` the other times and gains leave it out.",
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

CURVE: Final = Rows(
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
            "Whether the model has seen this size.",
            title="to the model",
        ),
    ),
    keys=("page_bytes",),
    metrics={"simulated_ns": "less", "predicted_ns": "less"},
)

TABLES: Final = {"rows": ROWS, "curve": CURVE}
