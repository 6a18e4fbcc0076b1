"""Options and columns of ``apply``.

``make declared`` generates ``nearfar.declared.apply`` from them.
"""

from __future__ import annotations

from typing import Final

from nearfar.columns import byte_size, integer, number, text
from nearfar.schema import Option, Rows

OPTIONS: Final = (
    Option(
        "page",
        "str | int",
        "Page size, such as 64K; 4K means no huge pages on x86-64. Or a setting of huge pages as "
        "for `nearfar thp`, such as always or 64K=always+2M=madvise.",
        required=True,
        metavar="SIZE",
    ),
    Option("yes", "bool", "Apply and run; without it, only show the plan.", default=False),
    Option(
        "compare",
        "bool",
        "Also run the command without any change, alternating: base, page, base, page, ...",
        default=False,
    ),
    Option("repeat", "int", "Runs at each setting.", default=1, metavar="COUNT"),
    Option(
        "trace",
        "str | Path | None",
        "Trace of the same command, to compare its prediction with the measurement.",
        metavar="TRACE",
    ),
    Option(
        "threads",
        "int",
        "Threads of the prediction with --trace; 0 = one per core.",
        default=0,
        metavar="COUNT",
    ),
)

_ROWS: Final = Rows(
    columns=(
        integer("run", "The run, from 1."),
        text("setting", "`base`, the machine as it is, or `page`."),
        byte_size("page_bytes", "Page size at the setting `page`."),
        integer("exit_code", "Exit code of the command."),
        number("seconds", "Wall time.", "s"),
        number("user_seconds", "User CPU time of the command and the children it waited for.", "s"),
        number("system_seconds", "Their system CPU time.", "s"),
        integer(
            "minor_faults",
            "Their faults without I/O, from `/proc/PID/stat` after the command's end.",
        ),
        integer("major_faults", "Their faults that read storage or swap."),
        byte_size(
            "peak_rss_bytes",
            "Peak resident set of its largest process; null if it ended before the first sample.",
            nullable=True,
        ),
        byte_size(
            "anon_huge_bytes",
            "Largest sum of `AnonHugePages` of all its processes, sampled about every 0.1 s; "
            "includes only 2 MiB pages; null as above.",
            nullable=True,
        ),
        integer(
            "huge_allocations",
            "Pages of this size allocated on the whole machine during the run "
            "(`stats/anon_fault_alloc`); null if the kernel does not count them.",
            "pages",
            nullable=True,
        ),
        integer(
            "huge_fallbacks",
            "Fallbacks to smaller pages (`stats/anon_fault_fallback`).",
            nullable=True,
        ),
    ),
    keys=("setting", "page_bytes"),
    metrics={"seconds": "less"},
    seed="run",
)

_SUMMARY: Final = Rows(
    columns=(
        text("quantity", "A column of the rows."),
        number("base", "Its median at `base`.", nullable=True),
        number("page", "Its median at `page`.", nullable=True),
        number("ratio", "page / base.", nullable=True),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

_PREDICTION: Final = Rows(
    columns=(
        text("quantity", "The predicted quantity."),
        number("base", "Predicted at the base page size."),
        number("page", "Predicted at this page size."),
        number("ratio", "page / base.", nullable=True),
        text("measured", "The nearest measured quantity.", nullable=True),
        number("measured_base", "Median of the measured quantity at `base`.", nullable=True),
        number("measured_page", "Median of the measured quantity at `page`.", nullable=True),
        number("measured_ratio", "measured_page / measured_base.", nullable=True, title="ratio"),
        text("comparable", "`ratio`, `direction` or `no`.", title="to compare"),
        text("why", "What limits the comparison."),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

TABLES: Final = {"rows": _ROWS, "summary": _SUMMARY, "prediction": _PREDICTION}
