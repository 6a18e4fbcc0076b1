"""Options and rows of ``nearfar capture``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar capture``, by name."""

    fetch: bool
    start_after: str | None
    start_on: str | None
    stop_after: str | int | None
    skip_refs: int
    max_refs: int | None
    arch: str
    follow_forks: bool


OPTIONS: Final = (
    Option(
        "fetch",
        type="bool",
        what="Record instruction fetches, one for each block of straight-line code.",
        default=True,
    ),
    Option(
        "start_after",
        type="str | None",
        what="Start recording this long after the program starts. Earlier mappings are known, but not which of their pages were touched.",
        shown="at program start",
        metavar="TIME",
    ),
    Option(
        "start_on",
        type="str | None",
        what="Start recording when nearfar receives this signal.",
        shown="at program start",
        metavar="NAME",
        choices=(("SIGUSR1", "`kill -USR1`"), ("SIGUSR2", "`kill -USR2`")),
        open=False,
    ),
    Option(
        "stop_after",
        type="str | int | None",
        what="Stop recording after this time, or after this many records; the program keeps running.",
        shown="at program exit",
        metavar="TIME|RECORDS",
    ),
    Option(
        "skip_refs", type="int", what="Skip this many records first.", default=0, metavar="COUNT"
    ),
    Option(
        "max_refs",
        type="int | None",
        what="Stop recording after this many records; the program keeps running.",
        shown="no limit",
        metavar="COUNT",
    ),
    Option(
        "arch",
        type="str",
        what="Architecture of the program.",
        default="auto",
        metavar="NAME",
        choices=(
            ("auto", "what the program's ELF header says"),
            ("x86_64", "x86-64 alone"),
            ("aarch64", "aarch64 alone"),
        ),
        open=False,
    ),
    Option("follow_forks", type="bool", what="Record child processes as well.", default=False),
)
