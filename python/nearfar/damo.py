"""Reads what DAMON recorded, as damo writes it (``docs/formats.md``), into a ``.heat`` file.

DAMON does not record references. In each sampling interval it checks one page of each region, and
after an aggregation interval it reports in how many samples the page had been accessed. Formats:
``src/_damo_records.py`` and ``src/damo_report_raw.py`` of awslabs/damo.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from nearfar import strict
from nearfar.errors import NearfarError
from nearfar.output import write_whole

#: Maximum bytes of a record, compressed and decompressed.
_MAX: Final = 1 << 30
#: Bytes from which a format is recognized.
_HEAD: Final = 64 << 10
_FORMAT: Final = "nearfar heat 1"
#: DAMON's default aggregation interval, in nanoseconds.
_AGGREGATION: Final = 10**8
_UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9,
                 "h": 3600 * 10**9, "d": 86400 * 10**9}  # fmt: skip
_PERF: Final = re.compile(
    r"(\d+)\.(\d{6,9}): +damon:damon_aggregated: +target_id=(\d+) nr_regions=(\d+) "
    r"(\d+)-(\d+): (-?\d+)"
)
#: A region in `damo report raw`; damo wrote the second form, with or without an age, until April
#: 2022.
_REGION: Final = re.compile(
    r"([0-9a-f]+)-([0-9a-f]+)"
    r"(?: \([^)]*\) +(-?\d+) +-?\d+|\([^)]*\):\t(-?\d+)(?: \(age: -?\d+\))?)$"
)


@dataclass(frozen=True)
class Snapshot:
    """What DAMON saw of one target in an aggregation interval.

    Attributes:
        target: a number that DAMON gives a process.
        start: start of the interval, in nanoseconds.
        end: end of the interval, in nanoseconds.
        regions: first address, address after the last byte, and samples with an access.
    """

    target: int
    start: int
    end: int
    regions: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Heat:
    """A record of DAMON.

    Attributes:
        sample_ns: sampling interval in nanoseconds; None if the record does not say.
        snapshots: in order of target and time.
    """

    sample_ns: int | None
    snapshots: tuple[Snapshot, ...]

    def write(self, path: Path, *, force: bool = False) -> None:
        """Write a ``.heat`` file, which ``nearfar info`` reads."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))
        write_whole(path, text + "\n", force=force)


def load(path: Path) -> Heat:
    """Read a ``.heat`` file.

    Raises:
        NearfarError: it is damaged or no ``.heat`` file.
    """
    content = _parsed(path, strict.read_file(path, "a .heat file", _MAX))
    try:
        if content["format"] != _FORMAT:
            raise ValueError("format")
        snapshots = [
            Snapshot(int(one["target"]), int(one["start"]), int(one["end"]),
                     tuple((int(low), int(high), int(hits)) for low, high, hits in one["regions"]))
            for one in content["snapshots"]
        ]  # fmt: skip
        return _checked(path, content["sample_ns"], snapshots)
    except (KeyError, TypeError, ValueError):
        raise NearfarError(f"{path}: is not a .heat file; make it with `nearfar import`") from None


def recognizes(path: Path) -> bool:
    """Whether a file begins like a record of damo; False for pipes, which can be read only once."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return False
    if head[:1] == b"x":  # zlib
        try:
            head = zlib.decompressobj().decompress(head, _HEAD)
        except zlib.error:
            return False
    if head.lstrip()[:1] == b"[":
        return b'"snapshots"' in head
    return head.startswith(b"base_time_absolute: ") or b" damon:damon_aggregated: " in head


def read(path: Path) -> Heat:
    """Read ``damon.data`` (JSON, compressed or not), ``damo report raw`` or ``perf script``.

    Raises:
        NearfarError: it is none of these, or damaged.
    """
    data = strict.read_file(path, "a record of damo", _MAX)
    if data.startswith(b"PERFILE2"):
        raise NearfarError(
            f"{path}: is perf.data itself; give the text: `perf script -i {path.name} > FILE`"
        )
    if data[:1] == b"x":  # zlib
        data = _unpacked(path, data)
    if data.lstrip()[:1] == b"[":
        return _from_json(path, _parsed(path, data))
    text = data.decode(errors="replace")
    if "base_time_absolute: " in text:
        return _checked(path, None, _from_report(path, text))
    return _checked(path, None, _from_perf(path, text))


def _unpacked(path: Path, data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _MAX)
    except zlib.error as error:
        raise NearfarError(f"{path}: damaged: {error}; get the file again") from None
    if not unpacker.eof:
        what = "cut off" if len(plain) < _MAX else "larger than 1 GiB when it is decompressed"
        raise NearfarError(f"{path}: {what}; get the file again, or record for a shorter time")
    return plain


def _parsed(path: Path, data: bytes) -> Any:
    try:
        return strict.parse_json(data)
    except ValueError as error:
        raise NearfarError(f"{path}: damaged: {error}; get the file again") from None


def _checked(path: Path, sample: Any, snapshots: Iterable[Snapshot]) -> Heat:
    """Check the values of snapshots, and sort them."""
    # damo ends a record of one snapshot with another that has only a placeholder region.
    valid = [one for one in snapshots if [region[2] for region in one.regions] != [-1]]
    if not valid:
        raise NearfarError(
            f"{path}: not a damo record; give damon.data, or the text of `damo report raw` or "
            "of `perf script` with damon:damon_aggregated"
        )
    if not (sample is None or (isinstance(sample, int) and 0 < sample < 2**63)):
        raise NearfarError(f"{path}: {sample!r} is no sampling interval; get the file again")
    for one in valid:
        if not 0 <= one.start < one.end < 2**64 or not all(
            0 <= low < high <= 2**64 and 0 <= hits < 2**32 for low, high, hits in one.regions
        ):
            raise NearfarError(
                f"{path}: a snapshot or region with impossible values; get the file again"
            )
    return Heat(sample, tuple(sorted(valid, key=lambda one: (one.target, one.start))))


def _nanoseconds(text: object, unit: int = 1) -> int:
    """A time as damo writes it: a number of ``unit``, or ``8 m 59.809 s``."""
    words = str(text).replace(",", "").split()
    if len(words) == 1:
        return int(words[0]) * unit
    if not words or len(words) % 2:
        raise ValueError(text)
    pairs = zip(words[::2], words[1::2], strict=True)
    return round(sum(float(number) * _UNITS[name] for number, name in pairs))


def _from_json(path: Path, records: Any) -> Heat:
    """The snapshots of ``damon.data``."""

    def number(value: object) -> int:
        return int(str(value).replace(",", ""))

    def region(one: Any) -> tuple[int, int, int]:
        return number(one["start"]), number(one["end"]), number(one["nr_accesses"]["samples"])

    snapshots, sample = [], None
    try:
        for record in records:
            if record.get("intervals"):
                sample = _nanoseconds(record["intervals"]["sample_us"], 1000)
            for one in record["snapshots"]:
                start, end = _nanoseconds(one["start_time"]), _nanoseconds(one["end_time"])
                regions = tuple(region(part) for part in one["regions"])
                snapshots.append(Snapshot(number(record["target_id"]), start, end, regions))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        what = "a damo record with an entry that damo never writes"
        raise NearfarError(f"{path}: {what}; get the file again") from None
    return _checked(path, sample, snapshots)


def _from_report(path: Path, text: str) -> Iterator[Snapshot]:
    """The blocks of ``damo report raw``: times, target, then a line for each region."""
    values: dict[str, str] = {}
    regions: list[tuple[int, int, int]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        try:
            name, colon, value = line.partition(": ")
            if region := _REGION.match(line):
                low, high, hits = region[1], region[2], region[3] or region[4]
                regions.append((int(low, 16), int(high, 16), int(hits)))
            elif colon:
                values[name] = value.strip()
            elif line.strip() and not line.startswith("#"):
                raise ValueError(line)
            elif regions and not line.strip():
                base = _nanoseconds(values["base_time_absolute"])
                start = base + _nanoseconds(values["monitoring_start"])
                end = base + _nanoseconds(values["monitoring_end"])
                yield Snapshot(int(values["target_id"]), start, end, tuple(regions))
                regions = []
        except (KeyError, OverflowError, ValueError):
            raise NearfarError(
                f"{path}: line {number}: not a line of `damo report raw`; write the report again"
            ) from None


def _from_perf(path: Path, text: str) -> Iterator[Snapshot]:
    """Events of DAMON: one for each region, with the number of regions of its snapshot."""
    by_target: dict[int, list[tuple[int, list[tuple[int, int, int]]]]] = {}
    missing: dict[int, int] = {}
    for event in _PERF.finditer(text):
        try:
            target, regions, low, high, hits = (int(word) for word in event.groups()[2:])
            end = int(event[1]) * 10**9 + int(event[2].ljust(9, "0"))
        except ValueError:  # more digits than Python converts
            raise NearfarError(f"{path}: an impossible number; get the file again") from None
        snapshots = by_target.setdefault(target, [])
        if not missing.get(target):
            snapshots.append((end, []))
            missing[target] = regions
        missing[target] -= 1
        snapshots[-1][1].append((low, high, hits))
    for target, snapshots in by_target.items():
        # An event has only the end of its interval. The first interval is assumed to have the mean
        # length of the others, a single one DAMON's default (damo assumes a second).
        first, last = snapshots[0][0], snapshots[-1][0]
        others = len(snapshots) - 1
        start = first - ((last - first) // others if others and last > first else _AGGREGATION)
        for end, regions_of_end in snapshots:
            yield Snapshot(target, start, end, tuple(regions_of_end))
            start = end
