"""Sections of ``--help``: at most ten main options, then output options, then advanced ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import typer.core

if TYPE_CHECKING:
    from typer import _click as click

OPTIONS, OUTPUT, ADVANCED = "Options", "Output", "Advanced options"

#: Parameters that choose how results are shown and written.
_OUTPUT: Final = frozenset(
    {"as_json", "color", "force", "full", "heatmap", "html", "output_format", "progress"}
)

#: Parameters that help shows first, by command; the others are advanced. A command without an entry
#: has no advanced options.
_FIRST: Final[Mapping[str, str]] = {
    "advise": "memory machine storage arch min_gain page_sizes slowdown emit out",
    "capture": "start_after stop_after max_refs follow_forks sample output",
    "thp": "policy machine memory storage free_huge by_area scan_sleep max_ptes_none out",
    "devices": "storage machine memory slowdown cost zram_ratio out",
    "generate": "refs pages seed write_ratio threads alpha stride mix out",
    "guest": "arch memory cpus far latency bandwidth package put out",
    "numa alloc": "size machine mode allocator nodes weights from_ threads out",
    "numa plan": "capacity working_set bandwidth machine pattern writes threads emit out",
    "numa run": "machine mode pattern writes nodes weights from_ threads out",
    "paging": "page_sizes memory tlb replacement machine storage view slowdown out",
    "size": "sample swap machine slowdown whole zram_ratio record emit out",
    "ssd": "machine dram epf disk precondition first_touch seed out",
    "watch": "for_ swap slowdown cgroup unit container follow emit out",
    "sweep": "workers threads dask dry_run out",
    "tiering": "workload policy machine mix fast seeds copies list_policies out",
}


def section(command: str, parameter: str, *, is_declared: bool) -> str:
    """The help section of an option; one of :mod:`nearfar.declared` is no output option."""
    if parameter in _OUTPUT and not is_declared:
        return OUTPUT
    first = _FIRST.get(command)
    return OPTIONS if first is None or parameter in first.split() else ADVANCED


#: One item, the words after `--`; empty if the command line has no `--`.
_AFTER_DASHES: Final[list[list[str]]] = []


def after_dashes() -> list[str] | None:
    """The words after `--` on the command line; None without a `--`."""
    return _AFTER_DASHES[0] if _AFTER_DASHES else None


class Command(typer.core.TyperCommand):
    """A command whose help lists options by section."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the words after `--` for :func:`after_dashes`."""
        _AFTER_DASHES[:] = [args[args.index("--") + 1 :]] if "--" in args else []
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", OPTIONS, OUTPUT, ADVANCED)
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                title = getattr(parameter, "rich_help_panel", None) or OPTIONS
                sections["Arguments" if is_argument else title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
