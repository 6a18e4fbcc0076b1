"""Views of a trace: every reference of the program, or only those that reach memory.

``cache`` runs the trace through the caches of a machine (``crates/hardware/src/cache.rs``) and
leaves the references that miss them, one for each line. The papers 000 and 001 studied such
references. A view is written as a temporary trace, so that every command reads it as any other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nearfar import _engine
from nearfar import machine as machines
from nearfar.errors import NearfarError

#: The views: whether dirty lines written back are references too; None is no filter at all.
FILTERS: dict[str, bool | None] = {"none": None, "cache": False, "cache-write-backs": True}


@dataclass(frozen=True)
class View:
    """A trace as it is to be read.

    Attributes:
        path: the trace folder that holds the view; gone when the view is closed.
        filter: a name from :data:`FILTERS`.
        sentence: which references it holds, for people.
    """

    path: Path
    filter: str
    sentence: str


@contextmanager
def view(
    trace: Path,
    filter: str,  # noqa: A002
    machine: machines.Machine,
    progress: Callable[[int], None] | None = None,
) -> Iterator[View]:
    """Open a view of ``trace``; messages name the trace, not the temporary one.

    Args:
        trace: a trace folder.
        filter: ``none`` for every reference, ``cache`` for those that miss the machine's ``l1i``,
            ``l1d`` and ``l2``, ``cache-write-backs`` for these and what the caches write back.
        machine: whose caches.
        progress: called now and then with the references read so far.

    Raises:
        NearfarError: no such filter, a machine without caches, or a damaged trace.
    """
    if filter not in FILTERS:
        raise NearfarError(f"--filter: no filter {filter!r}; choose one of {', '.join(FILTERS)}")
    write_backs = FILTERS[filter]
    if write_backs is None:
        yield View(trace, filter, "every reference of the program, before any CPU cache")
        return
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        path = Path(folder) / (trace.resolve().name or "view.trace")
        try:
            caches = _engine.filter_cache(
                trace,
                path,
                machine,
                write_backs=write_backs,
                progress=progress,
            )
            more = ", and the lines they write back" if write_backs else ""
            kept = f"references that miss the CPU caches of {machine.name} ({caches}){more}"
            yield View(path, filter, kept)
        except NearfarError as error:
            told = str(error).replace(str(path), str(trace))
            raise NearfarError(told, error.exit_code) from None
