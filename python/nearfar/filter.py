"""Views of a trace: every reference of the program, or only those that reach memory.

``cache`` runs the trace through the caches of a machine (``crates/hardware/src/cache.rs``) and
leaves the references that miss them, one for each line. Page-size advice (000) and the TLB and
fault models (001) studied such references. A view is written as a temporary trace, so that every
command reads it as any other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nearfar import _engine
from nearfar import machine as machines
from nearfar.declared import info as declared
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.schema import default

#: The view that leaves nothing out: the trace itself. And the machine unless another is named.
_ALL: Final[str] = default(declared.OPTIONS, "filter")
_MACHINE: Final[str] = default(declared.OPTIONS, "machine")


@dataclass(frozen=True)
class View:
    """A trace as it is to be read.

    Attributes:
        path: the trace folder that holds the view; gone when the view is closed.
        filter: a name from ``nearfar.declared.names.FILTER``.
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
        filter: a name from ``nearfar.declared.names.FILTER``.
        machine: whose caches: its ``l1i``, ``l1d`` and ``l2``.
        progress: called now and then with the references read so far.

    Raises:
        NearfarError: no such filter, a machine without caches, or a damaged trace.
    """
    if filter == _ALL:
        yield View(trace, filter, dict(names.FILTER)[filter])
        return
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        path = Path(folder) / (trace.resolve().name or "view.trace")
        try:
            sentence = _engine.filter_view(trace, path, machine, filter=filter, progress=progress)
            yield View(path, filter, sentence)
        except NearfarError as error:
            answer = str(error).replace(str(path), str(trace))
            raise NearfarError(answer, error.exit_code) from None


@contextmanager
def view_of(
    trace: Path, options: Mapping[str, Any], progress: Callable[[int], None] | None = None
) -> Iterator[tuple[View, dict[str, Any]]]:
    """Open the view that the options of a command ask for; give it and the other options.

    Raises:
        NearfarError: as :func:`view`.
    """
    rest = dict(options)
    name = rest.pop("filter", _ALL)
    machine = machines.load(rest.pop("machine", _MACHINE))
    with view(trace, name, machine, progress) as seen:
        yield seen, rest
