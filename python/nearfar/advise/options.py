"""Options and columns of ``advise``.

``make declared`` generates ``nearfar.declared.advise`` from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nearfar.advise.architectures import ARCHITECTURES
from nearfar.advise.prediction import MODEL_CHOICES
from nearfar.columns import byte_size, flag, number, share, text
from nearfar.declared import names, paging
from nearfar.schema import Option, Rows

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
        "Storage devices of the machine, or of a built-in machine. With several machines, only "
        "those that each has.",
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
        "Page sizes whose simulated rates the model sees: all, a list (512,4K,64K,2M), or how "
        "many it may "
        "choose (4).",
        default="all",
        metavar="SIZES",
    ),
    Option(
        "model",
        "str",
        "Model that predicts times from the rates at some page sizes.",
        default="auto",
        metavar="NAME",
        choices=tuple(MODEL_CHOICES.items()),
        open=False,
    ),
    replace(
        _PAGING["page_sizes"],
        what="Page sizes to consider besides 4 KiB; `...`: powers of two. `--view machine` uses "
        "only sizes that the architecture can set.",
    ),
    _PAGING["view"],
    replace(_PAGING["nested"], shown="the machine file's, else 4K, because advice is for a VM"),
    replace(
        _PAGING["page_cache"],
        what="Whether files are in the page cache at the start, for --view machine.",
    ),
    replace(
        _PAGING["slowdown"],
        type="str | float | None",
        what="Also report the memory with which the program is at most this share slower (5%) "
        "than with enough memory.",
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
    "paper": (("page_cache", "regions", "whole"), "where every fault reads storage"),
    "machine": (("sizes", "model"), "which simulates every page size"),
}
#: Options that only the view ``paper`` has; if one is given, that is the default view.
PAPERS: Final = (*IDLE["machine"][0], "tlb", "filter")

OPTIONS: Final = (*OWN, *(_PAGING[name] for name in _SAME))

ROWS: Final = Rows(
    columns=(
        text("vm", "The virtual machine."),
        text("workload", "The workload of the virtual machine."),
        number(
            "memory_fraction",
            "Memory size if it was given as a share of the peak resident set, else null.",
            "of the peak resident set",
            nullable=True,
        ),
        text("storage", "The storage device of the machine."),
        byte_size(
            "advised_page_bytes",
            "Page size of least predicted time; 4096 unless another gains `min_gain`. With "
            "`--view machine` its gain is also larger than `gain_error`, and it is the smallest "
            "size whose gain is not clearly smaller than the largest.",
            title="page",
        ),
        byte_size(
            "settable_page_bytes",
            "The advised size if the architecture can set it, else the better of the two nearest "
            "sizes; 4096 if that gains less than `min_gain`.",
            title="set",
        ),
        number("predicted_ns", "Predicted time of the advised page.", "ns per reference"),
        number("simulated_ns", "Simulated time of the advised page.", "ns per reference"),
        number(
            "baseline_4k_ns", "Simulated time with 4 KiB pages.", "ns per reference", title="4 KiB"
        ),
        share("gain", "1 - predicted(advised) / predicted(4 KiB)."),
        share("regret", "simulated(advised) / simulated(best) - 1."),
        byte_size("best_page_bytes", "Page size of least simulated time."),
        text("scenario", "Group of the VM: `scenario` in a fleet file; may be empty."),
        text("trace", "The trace folder."),
        text("machine", "The machine."),
        text("arch", "The architecture."),
        byte_size("memory_bytes", "Memory size."),
        share("min_gain", "Smallest gain at which a page size other than 4 KiB is advised."),
        text(
            "model",
            "Model of the prediction: `papers` or `bridge`; `machine` with `--view machine`, "
            "where the predicted time is "
            "the simulated one.",
        ),
        text("model_reason", "Why the prediction uses `model`."),
        byte_size(
            "model_page_bytes",
            "Page size of least predicted time, even if its gain is below `min_gain`.",
        ),
        share(
            "model_regret",
            "simulated(`judged_page_bytes`) / simulated(best) - 1; null with `--view machine`.",
            nullable=True,
        ),
        number("baseline_4k_predicted_ns", "Predicted time with 4 KiB pages.", "ns per reference"),
        share("simulated_gain", "1 - simulated(advised) / simulated(4 KiB)."),
        number("best_ns", "Simulated time with the best page.", "ns per reference"),
        text(
            "confidence",
            "`good`, `fair` or `poor`: `left_out_error` up to 5 %, up to 20 %, above; `unknown` "
            "with fewer than 4 page sizes; null with `--view machine`.",
            nullable=True,
            title="fit",
        ),
        share(
            "left_out_error",
            "Largest error of the model `bridge` at a known page size near the advised one, "
            "predicted from the other sizes; null with fewer than 4 sizes or with `--view "
            "machine`.",
            nullable=True,
        ),
        share(
            "largest_error",
            "Largest error of the predicted time at any page size, compared with the simulated "
            "time; null with "
            "`--view machine`.",
            nullable=True,
        ),
        text(
            "limit",
            "What a reference mainly waits for: `translation`, `storage`, or `memory` (if both "
            "take less than 1 %). With `--view machine`, the largest part of the time: one of "
            "these, "
            "`processor` or `faults`.",
        ),
        text(
            "mechanism",
            "How the settable size is set: `base` (no huge pages), `granule` (kernel build), "
            "`mthp` (multi-size THP), `thp`, `hugetlb`.",
        ),
        number(
            "settable_predicted_ns", "Predicted time with the settable page.", "ns per reference"
        ),
        number("settable_ns", "Simulated time with the settable page.", "ns per reference"),
        share("settable_price", "predicted(settable) / predicted(advised) - 1."),
        text("why", "The advice in words."),
        share("model_gain", "1 - predicted(`model_page_bytes`) / predicted(4 KiB)."),
        share(
            "gain_error",
            "Error, plus or minus, of `gain`, or of `model_gain` if 4 KiB is advised; null "
            "without `--view machine`.",
            nullable=True,
        ),
        byte_size(
            "bloat_bytes",
            "Memory that the settable page adds to the peak of private memory; null without "
            "`--view machine`.",
            nullable=True,
        ),
        byte_size(
            "judged_page_bytes",
            "Page size that `model_regret` judges: `model_page_bytes`; if the model sees every "
            "size, the best when each is predicted from the other sizes. Null with `--view "
            "machine`.",
            nullable=True,
        ),
        byte_size(
            "enough_bytes",
            "Smallest memory with which the program is at most `--slowdown` slower than with "
            "`wanted_bytes`, with 4 KiB pages and swap on this storage; null without "
            "`--slowdown`.",
            nullable=True,
        ),
        byte_size(
            "wanted_bytes",
            "Peak memory of the program; null without `--slowdown`.",
            nullable=True,
        ),
        byte_size(
            "thrashes_below_bytes",
            "Memory below which the program takes over twice as long as with enough memory; null "
            "if it never does, or without `--slowdown`.",
            nullable=True,
        ),
        byte_size(
            "guest_memory_bytes",
            "Memory for the guest: program and operating system, rounded up to 256 MiB; null "
            "without "
            "`--set-memory`.",
            nullable=True,
        ),
        share(
            "start_gain",
            "Share of the time to fill memory that the advised page saves; null without "
            "`--view machine`.",
            nullable=True,
        ),
        share(
            "start_share",
            "Share of the run's time, with 4 KiB pages, in which memory is filled for the first "
            "time; null without "
            "`--view machine`. Without `--whole`, all other times and gains exclude it.",
            nullable=True,
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
        byte_size("page_bytes", "Page size."),
        number("predicted_ns", "Predicted time.", "ns per reference"),
        number("simulated_ns", "Simulated time.", "ns per reference"),
        number("translation_ns", "Time of address translation, simulated.", "ns per reference"),
        number(
            "data_ns", "Time of memory accesses and page faults, simulated.", "ns per reference"
        ),
        flag("fitted", "Whether the model was fitted to this size.", title="seen by the model"),
    ),
    keys=("page_bytes",),
    metrics={"simulated_ns": "less", "predicted_ns": "less"},
)

TABLES: Final = {"rows": ROWS, "curve": CURVE}
