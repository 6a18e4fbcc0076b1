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
        integer("run", "Number of the run at its setting, from 1."),
        text("setting", "`base` (the machine's own setting) or `page` (that of `--page`)."),
        byte_size("page_bytes", "Page size at the setting `page`."),
        integer("exit_code", "Exit code of the command."),
        number("seconds", "Wall time.", "s"),
        number("user_seconds", "User CPU time of the command and the children it waited for.", "s"),
        number(
            "system_seconds", "System CPU time of the command and the children it waited for.", "s"
        ),
        integer(
            "minor_faults",
            "Faults without I/O of the command and the children it waited for (`/proc/PID/stat`).",
        ),
        integer(
            "major_faults",
            "Faults of the command and the children it waited for that read storage or swap.",
        ),
        byte_size(
            "peak_rss_bytes",
            "Peak resident set of the command's largest process; null if it ended before the "
            "first sample and its peak is not above that of nearfar.",
            nullable=True,
        ),
        byte_size(
            "anon_huge_bytes",
            "Peak `AnonHugePages` (only 2 MiB pages) of all processes of the command, sampled "
            "about every 0.1 s; null if it ended before the first sample.",
            nullable=True,
        ),
        integer(
            "huge_allocations",
            "Pages of size `page_bytes` allocated on the whole machine during the run "
            "(`stats/anon_fault_alloc`); null if the kernel does not count them.",
            "pages",
            nullable=True,
        ),
        integer(
            "huge_fallbacks",
            "Faults on the whole machine that fell back to pages smaller than `page_bytes` "
            "(`stats/anon_fault_fallback`); null if not counted.",
            nullable=True,
        ),
    ),
    keys=("setting", "page_bytes"),
    metrics={"seconds": "less"},
    seed="run",
)

_SUMMARY: Final = Rows(
    columns=(
        text("quantity", "Name of the measured column."),
        number(
            "base", "Median of the quantity at the setting `base`; null if unknown.", nullable=True
        ),
        number(
            "page", "Median of the quantity at the setting `page`; null if unknown.", nullable=True
        ),
        number("ratio", "page / base.", nullable=True),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

_PREDICTION: Final = Rows(
    columns=(
        text("quantity", "The predicted quantity."),
        number(
            "base",
            "Predicted with base pages; if `--page` is a setting of huge pages, with "
            "the present setting.",
        ),
        number("page", "Predicted with the page size or setting of `--page`."),
        number("ratio", "page / base.", nullable=True),
        text(
            "measured",
            "Measured quantity that best corresponds to the predicted one; null if there is none.",
            nullable=True,
        ),
        number("measured_base", "Median of the measured quantity at `base`.", nullable=True),
        number("measured_page", "Median of the measured quantity at `page`.", nullable=True),
        number("measured_ratio", "measured_page / measured_base.", nullable=True, title="ratio"),
        text(
            "comparable",
            "What can be compared with the measurement: the `ratio`, only its "
            "`direction`, or `no` value.",
            title="to compare",
        ),
        text("why", "What limits the comparison."),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

TABLES: Final = {"rows": _ROWS, "summary": _SUMMARY, "prediction": _PREDICTION}
