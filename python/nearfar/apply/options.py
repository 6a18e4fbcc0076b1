"""Options and columns of ``apply``.

``make declared`` generates ``nearfar.declared.apply`` from them.
"""

from __future__ import annotations

from typing import Final

from nearfar.schema import Column, Option, Rows

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
        "threads", "int", "Threads of that study; 0 = one per core.", default=0, metavar="COUNT"
    ),
)

_ROWS: Final = Rows(
    columns=(
        Column("run", "int64", False, "", "The run, from 1."),
        Column("setting", "string", False, "", "`base`, the machine as it is, or `page`."),
        Column("page_bytes", "int64", False, "bytes", "The page size that `page` means."),
        Column("exit_code", "int64", False, "", "Exit code of the command."),
        Column("seconds", "double", False, "s", "Wall time."),
        Column(
            "user_seconds",
            "double",
            False,
            "s",
            "User CPU time of the command and the children it waited for.",
        ),
        Column("system_seconds", "double", False, "s", "System CPU time of the same."),
        Column(
            "minor_faults",
            "int64",
            False,
            "",
            "Faults of the same without I/O, from `/proc/PID/stat` after its end.",
        ),
        Column(
            "major_faults",
            "int64",
            False,
            "",
            "Faults of the same that read storage or swap.",
        ),
        Column(
            "peak_rss_bytes",
            "int64",
            True,
            "bytes",
            "Peak resident set of its largest process; null if it ended before the first sample.",
        ),
        Column(
            "anon_huge_bytes",
            "int64",
            True,
            "bytes",
            "Largest sum of `AnonHugePages` of all its processes, sampled about every 0.1 s; "
            "includes only 2 MiB pages; null as above.",
        ),
        Column(
            "huge_allocations",
            "int64",
            True,
            "pages",
            "Pages of this size allocated on the whole machine during the run "
            "(`stats/anon_fault_alloc`); null if the kernel does not count them.",
        ),
        Column(
            "huge_fallbacks",
            "int64",
            True,
            "",
            "Fallbacks to smaller pages (`stats/anon_fault_fallback`).",
        ),
    ),
    keys=("setting", "page_bytes"),
    metrics={"seconds": "less"},
    seed="run",
)

_SUMMARY: Final = Rows(
    columns=(
        Column("quantity", "string", False, "", "A column of the rows."),
        Column("base", "double", True, "", "Its median at `base`."),
        Column("page", "double", True, "", "Its median at `page`."),
        Column("ratio", "double", True, "", "page / base."),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

_PREDICTION: Final = Rows(
    columns=(
        Column("quantity", "string", False, "", "A quantity of the study."),
        Column("base", "double", False, "", "Predicted at the base page size."),
        Column("page", "double", False, "", "Predicted at this page size."),
        Column("ratio", "double", True, "", "page / base."),
        Column("measured", "string", True, "", "The nearest measured quantity."),
        Column("measured_base", "double", True, "", "Its median at `base`."),
        Column("measured_page", "double", True, "", "Its median at `page`."),
        Column("measured_ratio", "double", True, "", "Their ratio.", title="ratio"),
        Column(
            "comparable", "string", False, "", "`ratio`, `direction` or `no`.", title="to compare"
        ),
        Column("why", "string", False, "", "Why not more can be compared."),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

TABLES: Final = {"rows": _ROWS, "summary": _SUMMARY, "prediction": _PREDICTION}
