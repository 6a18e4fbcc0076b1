"""Requests to a device around the page cache: one at a time, of 4 KiB and of 1 MiB."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from nearfar import _engine
from nearfar.errors import NearfarError, of_system
from nearfar.measure.bench import Bench, Sourced
from nearfar.measure.samples import Samples, size_text
from nearfar.units import size

_SMALL, _LARGE = 4096, 1 << 20
#: Bytes of the file that is made where there is none to read, and in a quick run.
_FILE, _QUICK_FILE = 256 << 20, 8 << 20
#: Requests of a run, small and large.
_REQUESTS: Final = {_SMALL: 64, _LARGE: 8}

Section = dict[str, Any]


def name_of(path: Path) -> str:
    """A name for the section: of the last part of the path, what such a name may have.

    >>> name_of(Path("/mnt/Fast_SSD")), name_of(Path("/"))
    ('fast-ssd', 'storage')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", path.absolute().name.lower()).strip("-")
    return plain[:40].strip("-") or "storage"


def check(path: Path, quick: bool) -> None:
    """Refuse before the work what could not be measured.

    Raises:
        NearfarError: nothing is there, or it cannot be read around the page cache.
    """
    with _opened(path, quick, dry=True):
        pass


def storage(bench: Bench, path: Path) -> tuple[str, Section]:
    """Name and ``[storage.NAME.nvme]`` of what is behind ``path``.

    A file or a block device is read. What is written is a file of our own: in the folder given, or
    beside the file given.
    """
    bench.say(f"storage {path}")
    name = name_of(path)
    key = f"storage.{name}.nvme"
    with _opened(path, bench.quick) as (reads, span, writes, unit):
        section = _of_one(bench, key, "read", reads, span, unit)
        if writes is None:
            why = "assumption: as the read; a device is not written to"
            for one in ("latency", "bandwidth"):
                section[f"write_{one}"] = Sourced(section[f"read_{one}"].value, why)
            bench.notes.append(f"{key}: writes are not measured on a device: as reads")
        else:
            file = _QUICK_FILE if bench.quick else _FILE
            section |= _of_one(bench, key, "write", writes, file, unit)
    order = ("read_latency", "write_latency", "measured_at", "unit")
    return name, {one: section[one] for one in (*order, "read_bandwidth", "write_bandwidth")}


def _of_one(bench: Bench, key: str, access: str, file: int, span: int, unit: int) -> Section:
    def run(bytes_: int) -> list[float]:
        return sorted(
            _engine.measure_requests(file, access, bytes=bytes_, span=span, count=_REQUESTS[bytes_])
        )

    def middle(times: list[float]) -> float:
        return times[len(times) // 2]

    run(_SMALL)
    small = bench.repeat(lambda: middle(run(_SMALL)))
    large = bench.repeat(lambda: middle(run(_LARGE)))
    # The rate of what a request has more than the small one.
    further = [max(run - small.median, 1.0) for run in large.runs]
    rates = Samples(tuple((_LARGE - _SMALL) / ns * 1e9 for ns in further))
    how = f"O_DIRECT, one at a time, medians of {_REQUESTS[_SMALL]} at random places"
    section: Section = {
        f"{access}_latency": bench.time(f"{key}.{access}_latency", small, how),
        f"{access}_bandwidth": bench.rate(
            f"{key}.{access}_bandwidth", rates, "by how much longer 1 MiB takes than 4 KiB"
        ),
        "measured_at": Sourced(size_text(_SMALL), "what was asked for at a time"),
        "unit": Sourced(size_text(unit), "logical block of the device"),
    }
    return section


@contextmanager
def _opened(
    path: Path, quick: bool, *, dry: bool = False
) -> Iterator[tuple[int, int, int | None, int]]:
    """What to read and its size, what to write to if anything, and the device's block."""
    with ExitStack() as stack:
        try:
            found = path.stat()
        except OSError as error:
            raise of_system(error, path) from None
        own = None
        if not stat.S_ISBLK(found.st_mode):
            folder = path if stat.S_ISDIR(found.st_mode) else path.absolute().parent
            own = stack.enter_context(_file_in(folder, quick, dry=dry))
        if stat.S_ISDIR(found.st_mode):
            assert own is not None
            reads, span = own, _LARGE if dry else os.fstat(own).st_size
        elif stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode):
            reads = stack.enter_context(_direct(path, os.O_RDONLY))
            span = os.lseek(reads, 0, os.SEEK_END)
            wrong = ""
            if span < _LARGE:
                wrong = f"is smaller than {size(_LARGE)}"
            elif stat.S_ISREG(found.st_mode) and found.st_blocks * 512 < found.st_size:
                wrong = "has holes, which no device is read for"
            if wrong:
                raise NearfarError(f"--storage {path}: {wrong}; give its folder")
        else:
            raise NearfarError(f"--storage {path}: is no file, block device or folder; give one")
        yield reads, span, own, _block(found)


@contextmanager
def _direct(path: Path, flags: int) -> Iterator[int]:
    try:
        file = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        raise NearfarError(
            f"--storage {path}: cannot be opened around the page cache (O_DIRECT): "
            f"{error.strerror}; give a path on a storage device"
        ) from None
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _file_in(folder: Path, quick: bool, *, dry: bool) -> Iterator[int]:
    """A file of our own, open to read and write: without a name as soon as it is open."""
    bytes_ = _QUICK_FILE if quick else _FILE
    free = shutil.disk_usage(folder).free
    if free < 2 * bytes_:
        raise NearfarError(
            f"--storage {folder}: {size(free)} free, and a file of {size(bytes_)} is to be made; "
            "free some, or give another path"
        )
    try:
        made, name = tempfile.mkstemp(prefix=".nearfar-measure-", dir=folder)
    except OSError as error:
        raise of_system(error, folder) from None
    try:
        with _direct(Path(name), os.O_RDWR) as file:
            Path(name).unlink()
            if not dry:
                # Blocks that were never written would not be read from the device.
                _fill(file, bytes_)
            yield file
    finally:
        os.close(made)
        Path(name).unlink(missing_ok=True)


def _fill(file: int, bytes_: int) -> None:
    with mmap.mmap(-1, _LARGE) as block:
        # What is all alike a device may spare itself.
        block.write(os.urandom(_LARGE))
        for offset in range(0, bytes_, _LARGE):
            os.pwrite(file, block, offset)
    os.fsync(file)


def _block(found: os.stat_result) -> int:
    """Bytes of a logical block of the device that a path is on, or is."""
    number = found.st_rdev if stat.S_ISBLK(found.st_mode) else found.st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    # A partition has its disk's.
    for place in (device, device.parent):
        with suppress(OSError, ValueError):
            return int((place / "queue/logical_block_size").read_text(encoding="ascii"))
    return 512
