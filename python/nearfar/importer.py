"""Imports traces of other tools (``docs/formats.md``)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Unpack

from nearfar import _engine, damo
from nearfar.declared import import_ as declared
from nearfar.declared import names
from nearfar.errors import NearfarError
from nearfar.output import add_inputs, check_output
from nearfar.schema import takes


def formats() -> dict[str, str]:
    """Names of the import formats, each with a one-line summary."""
    return dict(names.IMPORT_FORMAT)


def default_out(source: str | PathLike[str]) -> Path:
    """The default trace folder of ``source``, in the current folder.

    A compression suffix and one more suffix are dropped: ``app.trace`` for ``runs/app.din.gz``,
    ``stdin.trace`` for standard input (``-``).
    """
    if str(source) == "-":
        return Path("stdin.trace")
    path = Path(source)
    if path.suffix in {".gz", ".xz", ".zst", ".zip", ".sz"}:
        path = path.with_suffix("")
    return Path(f"{path.stem}.trace")


@takes(declared.OPTIONS)
def import_trace(
    source: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Path:
    """Import the file or folder ``source`` into a trace folder and return the folder.

    A record of damo becomes a ``.heat`` file instead, for :func:`nearfar.heat.heat`.

    Args:
        source: the file, or ``-`` for standard input; may be compressed with gzip, xz, zstd, snappy
            or zip. A folder of drmemtrace files is one trace.
        out: the trace folder, by default ``default_out(source)``. Nothing is left after an error.
        force: replace an existing trace.
        progress: called with the number of references so far, about every million.
        {options}

    Raises:
        NearfarError: bad input, with file, record and byte.
    """
    if options.get("format") == "damo" or (
        options.get("format") is None and damo.recognizes(Path(source))
    ):
        return _import_heat(Path(source), out, force, options)
    to = default_out(source) if out is None else Path(out)
    _engine.import_trace(Path(source), to, options=dict(options), force=force, progress=progress)
    return to


def _import_heat(
    source: Path, out: str | PathLike[str] | None, force: bool, options: declared.Options
) -> Path:
    """Import a record of damo as a ``.heat`` file."""
    for name, default in (("skip_bad", 0), ("max_refs", None), ("object_bytes", None)):
        if options.get(name, default) not in (default, str(default)):
            option = f"--{name.replace('_', '-')}"
            raise NearfarError(f"{option}: damo records no references; leave the option out")
    if str(source) == "-":
        raise NearfarError("-: a record of damo is read from a file; give its path")
    to = Path(f"{source.stem}.heat") if out is None else Path(out)
    if to.suffix != ".heat":
        raise NearfarError(
            f"{to}: a record of damo becomes a .heat file, not a trace; give -o a "
            f"name that ends in .heat"
        )
    check_output(to, force=force)
    add_inputs([source])  # an output must not replace the source
    damo.read(source).write(to, force=force)
    return to
