"""Views of a trace: every reference of the program, or only those that reach memory.

The filter ``cache`` simulates the caches of a machine (``crates/hardware/src/cache.rs``) and keeps
the references that miss, one for each line that a reference misses. Page-size advice (paper 000)
and the TLB and fault models (paper 001) study such references. A view is a temporary trace, so
every command can read it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from nearfar import _engine
from nearfar import machine as machines
from nearfar.declared import info as declared
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.schema import default

#: The view that keeps every reference, and the default machine.
_ALL: Final[str] = default(declared.OPTIONS, "filter")
_MACHINE: Final[str] = default(declared.OPTIONS, "machine")


@dataclass(frozen=True)
class View:
    """A view of a trace.

    Attributes:
        path: the trace folder of the view, removed when the view is closed.
        filter: a name from ``nearfar.declared.names.FILTER``.
        sentence: a description of its references.
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
        machine: the machine with the caches ``l1i``, ``l1d`` and ``l2``.
        progress: called regularly with the number of references read.

    Raises:
        NearfarError: unknown filter, a machine without caches, or a damaged trace.
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
            message = str(error).replace(str(path), str(trace))
            raise NearfarError(message, error.exit_code) from None


@contextmanager
def view_of(
    trace: Path, options: Mapping[str, object], progress: Callable[[int], None] | None = None
) -> Iterator[tuple[View, dict[str, object]]]:
    """Open the view of ``filter`` and ``machine`` in ``options``; yields it and the other options.

    Raises:
        NearfarError: as :func:`view`.
    """
    others = dict(options)
    name = str(others.pop("filter", _ALL))
    machine = machines.load(cast("machines.MachineLike", others.pop("machine", _MACHINE)))
    with view(trace, name, machine, progress) as opened:
        yield opened, others
