"""Measures direct I/O to a device: one request at a time, of 4 KiB and of 1 MiB."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import stat
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from nearfar import _engine
from nearfar.errors import NearfarError, of_system
from nearfar.measure.bench import Bench, Section, Sourced
from nearfar.measure.samples import Samples, size_text
from nearfar.units import size

_SMALL, _LARGE = 4096, 1 << 20
#: Bytes of the temporary file: normally, and in a quick run.
_FILE, _QUICK_FILE = 256 << 20, 8 << 20
#: Number of requests in a run, by the size of a request.
_REQUESTS: Final = {_SMALL: 64, _LARGE: 8}


def name_of(path: Path) -> str:
    """A name for the section, from the last part of the path.

    >>> name_of(Path("/mnt/Fast_SSD")), name_of(Path("/"))
    ('fast-ssd', 'storage')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", path.absolute().name.lower()).strip("-")
    return plain[:40].strip("-") or "storage"


def check(path: Path, quick: bool) -> None:
    """Check that ``path`` can be measured.

    Raises:
        NearfarError: it does not exist, or does not support direct I/O.
    """
    with _opened(path, quick, dry=True):
        pass


def storage(bench: Bench, path: Path) -> tuple[str, Section]:
    """Name and ``[storage.NAME.nvme]`` of the device of ``path``; any device has the kind ``nvme``.

    Reads the file or block device. Writes only to a temporary file, in the folder or next to the
    file.
    """
    bench.say(f"storage {path}")
    name = name_of(path)
    key = f"storage.{name}.nvme"
    with _opened(path, bench.quick) as (reads, span, writes, unit):
        read_latency, read_bandwidth = _requests(bench, key, "read", reads, span)
        if writes is None:
            why = "assumption: equal to the read; block devices are not written to"
            write_latency = Sourced(read_latency.value, why)
            write_bandwidth = Sourced(read_bandwidth.value, why)
            bench.notes.append(
                f"{key}: writes to a block device are not measured; assumed equal to reads"
            )
        else:
            span = _QUICK_FILE if bench.quick else _FILE
            write_latency, write_bandwidth = _requests(bench, key, "write", writes, span)
    return name, {
        "read_latency": read_latency,
        "write_latency": write_latency,
        "measured_at": Sourced(size_text(_SMALL), "the size of a request"),
        "unit": Sourced(size_text(unit), "logical block of the device"),
        "read_bandwidth": read_bandwidth,
        "write_bandwidth": write_bandwidth,
    }


def _requests(bench: Bench, key: str, access: str, file: int, span: int) -> tuple[Sourced, Sourced]:
    """Latency and bandwidth of reads or writes."""

    def run(bytes_: int) -> float:
        count = _REQUESTS[bytes_]
        ns = _engine.measure_requests(file, access, bytes=bytes_, span=span, count=count)
        return statistics.median_high(ns)

    run(_SMALL)  # warms up
    small = bench.repeat(lambda: run(_SMALL))
    large = bench.repeat(lambda: run(_LARGE))
    # A large request's additional bytes divided by its additional time; noise can make that time
    # negative: use at least 1 ns.
    differences = [max(ns - small.median, 1.0) for ns in large.runs]
    rates = Samples(tuple((_LARGE - _SMALL) / ns * 1e9 for ns in differences))
    how = f"O_DIRECT, one at a time, medians of {_REQUESTS[_SMALL]} at random offsets"
    return (
        bench.time(f"{key}.{access}_latency", small, how),
        bench.rate(
            f"{key}.{access}_bandwidth", rates, "from the time of 1 MiB minus that of 4 KiB"
        ),
    )


@contextmanager
def _opened(
    path: Path, quick: bool, *, dry: bool = False
) -> Iterator[tuple[int, int, int | None, int]]:
    """The file to read and its size, the file to write or None, and the device's block size.

    ``dry``: only check; the temporary file stays empty.
    """
    with ExitStack() as stack:
        try:
            status = path.stat()
        except OSError as error:
            raise of_system(error, path) from None
        temporary = None
        if not stat.S_ISBLK(status.st_mode):
            folder = path if stat.S_ISDIR(status.st_mode) else path.absolute().parent
            temporary = stack.enter_context(_file_in(folder, quick, dry=dry))
        if stat.S_ISDIR(status.st_mode):
            assert temporary is not None
            reads, span = temporary, _LARGE if dry else os.fstat(temporary).st_size
        elif stat.S_ISREG(status.st_mode) or stat.S_ISBLK(status.st_mode):
            reads = stack.enter_context(_direct(path, os.O_RDONLY))
            span = os.lseek(reads, 0, os.SEEK_END)
            wrong = ""
            if span < _LARGE:
                wrong = f"is smaller than {size(_LARGE)}"
            elif stat.S_ISREG(status.st_mode) and status.st_blocks * 512 < status.st_size:
                wrong = "has holes, which are not read from the device"
            if wrong:
                raise NearfarError(f"--storage {path}: {wrong}; give its folder")
        else:
            raise NearfarError(f"--storage {path}: is not a file, block device or folder; give one")
        yield reads, span, temporary, _block(status)


@contextmanager
def _direct(path: Path, flags: int) -> Iterator[int]:
    try:
        file = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        raise NearfarError(
            f"--storage {path}: cannot be opened with O_DIRECT: "
            f"{error.strerror}; give a path on a storage device"
        ) from None
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _file_in(folder: Path, quick: bool, *, dry: bool) -> Iterator[int]:
    """A temporary file, open to read and write, and unlinked after opening."""
    bytes_ = _QUICK_FILE if quick else _FILE
    free = shutil.disk_usage(folder).free
    # Writing the last free space would harm others, and slow some drives.
    needed = 2 * bytes_
    if free < needed:
        raise NearfarError(
            f"--storage {folder}: {size(free)} free, but measuring needs {size(needed)}; "
            "free some, or give another path"
        )
    try:
        handle, name = tempfile.mkstemp(prefix=".nearfar-measure-", dir=folder)
    except OSError as error:
        raise of_system(error, folder) from None
    try:
        with _direct(Path(name), os.O_RDWR) as file:
            Path(name).unlink()
            if not dry:
                # Blocks that were never written are not read from the device.
                _fill(file, bytes_)
            yield file
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)


def _fill(file: int, bytes_: int) -> None:
    with mmap.mmap(-1, _LARGE) as block:
        # Random bytes, because a device may not store uniform blocks.
        block.write(os.urandom(_LARGE))
        for offset in range(0, bytes_, _LARGE):
            os.pwrite(file, block, offset)
    os.fsync(file)


def _block(status: os.stat_result) -> int:
    """Logical block size of the device of a file, or of a block device itself."""
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    # A partition has the block size of its disk.
    for place in (device, device.parent):
        with suppress(OSError, ValueError):
            return int((place / "queue/logical_block_size").read_text(encoding="ascii"))
    return 512
