"""What ``apply`` takes and returns.

``make declared`` writes it as types and data, ``nearfar.declared.apply``.
"""

from __future__ import annotations

from typing import Final

from nearfar.schema import Column, Option, Rows

OPTIONS: Final = (
    Option(
        "page",
        "str | int",
        "Page size, such as 64K; 4K means no huge pages on x86-64.",
        required=True,
        metavar="SIZE",
    ),
    Option("yes", "bool", "Do it; without it nothing is changed or run.", default=False),
    Option(
        "compare",
        "bool",
        "Also run the command without any change, in turn: base, page, base, page, ...",
        default=False,
    ),
    Option("repeat", "int", "Runs at each setting.", default=1, metavar="COUNT"),
    Option(
        "trace",
        "str | Path | None",
        "Trace of the same command; its predicted times are shown beside the measured ones.",
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
        Column("seconds", "double", False, "s", "From start to end."),
        Column(
            "user_seconds",
            "double",
            False,
            "s",
            "CPU time in the program, of the command and the children it waited for.",
        ),
        Column("system_seconds", "double", False, "s", "CPU time of the same in the kernel."),
        Column(
            "minor_faults",
            "int64",
            False,
            "",
            "Faults of the same that needed no reading, from `/proc/PID/stat` after its end.",
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
            "Most memory of the largest of its processes; null when it was too quick.",
        ),
        Column(
            "anon_huge_bytes",
            "int64",
            True,
            "bytes",
            "Most `AnonHugePages` of all its processes, looked at up to every tenth of a second; "
            "only 2 MiB pages count there; null as above.",
        ),
        Column(
            "huge_allocations",
            "int64",
            True,
            "pages",
            "Pages of this size that the whole machine took meanwhile (`stats/anon_fault_alloc`); "
            "null where the kernel does not count.",
        ),
        Column(
            "huge_fallbacks",
            "int64",
            True,
            "",
            "How often it found none and gave smaller ones (`stats/anon_fault_fallback`).",
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
        Column("measured", "string", True, "", "The nearest quantity that was measured."),
        Column("measured_base", "double", True, "", "Its median at `base`."),
        Column("measured_page", "double", True, "", "Its median at `page`."),
        Column("measured_ratio", "double", True, "", "Their ratio.", title="ratio"),
        Column(
            "comparable", "string", False, "", "`ratio`, `direction` or `no`.", title="to compare"
        ),
        Column("why", "string", False, "", "Why no more than that can be compared."),
    ),
    keys=("quantity",),
    metrics={"page": "less"},
)

TABLES: Final = {"rows": _ROWS, "summary": _SUMMARY, "prediction": _PREDICTION}
