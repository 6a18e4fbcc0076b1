"""A row of ``nearfar reproduce`` that only repeats an input names it, and does not count.

Each number of a machine that a study reads is changed in turn. A row that changes in proportion
repeats that number and must have an ``input``; a row that names an input must change with it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearfar import machine as machines
from nearfar.declared import reproduce as declared
from nearfar.errors import NearfarError
from nearfar.numa import pair, paper, topology
from nearfar.reproduce import _evidence, numa, paging, ssd

ROOT = Path(__file__).resolve().parents[1]
CAPTURES = ROOT / "tests" / "data" / "captures"
FACTOR = 1.25
#: Parts of the keys that set costs of paging. No row repeats the other keys.
TIMES = ("latency", "hit_time", "bandwidth", "seek", "rotation", "storage")

Rows = Mapping[str, declared.Row]


def keyed(rows: list[declared.Row]) -> Rows:
    return {f"{row['paper']} {row['item']}": row for row in rows}


def enlarged(described: machines.Machine) -> Iterator[tuple[str, str]]:
    """Keys of positive numbers that are no counts, with values FACTOR times as large."""

    def leaves(part: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
        for name, value in part.items():
            here = f"{key}.{name}".removeprefix(".")
            if isinstance(value, Mapping) and "value" in value:
                yield here, value["value"]
            elif isinstance(value, Mapping):
                yield from leaves(value, here)

    for key, value in leaves(described.to_dict(), ""):
        found = re.fullmatch(r"([\d.]+)([A-Za-z/]*)", str(value))
        whole = found is not None and not found[2] and isinstance(value, int)
        if found and not whole and float(found[1]) > 0:
            yield key, f"{round(float(found[1]) * FACTOR, 6):.10g}{found[2]}"


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that sets values of a named machine whenever it is loaded."""
    load, parse = machines.load, machines.parse

    def change(name: str, values: Mapping[str, str]) -> None:
        def loaded(machine: Any, *arguments: Any, **options: Any) -> machines.Machine:
            found = load(machine, *arguments, **options)
            return load(found, set=values) if found.name == name else found

        def parsed(path: str, text: str) -> machines.Machine:
            found = parse(path, text)
            return load(found, set=values) if name == path else found

        monkeypatch.setattr(machines, "load", loaded)
        monkeypatch.setattr(machines, "parse", parsed)
        _evidence.paper_machine.cache_clear()

    yield change
    monkeypatch.undo()
    _evidence.paper_machine.cache_clear()


def ratio(usual: declared.Row, other: declared.Row) -> float:
    """The changed row's value over the usual one; 1 if they are equal."""
    assert usual["ours"] is not None and other["ours"] is not None
    if usual["ours"] == other["ours"]:
        return 1.0
    return other["ours"] / usual["ours"] if usual["ours"] else float("inf")


def repeats(by: float, digits: int) -> bool:
    """Whether the ratio is FACTOR or its reciprocal, for values rounded to these digits."""
    return any(by == pytest.approx(one, rel=2 * 10**-digits) for one in (FACTOR, 1 / FACTOR))


def judge(
    run: Callable[[], Rows], machine: str, keys: Mapping[str, str], change: Any, digits: int = 5
) -> None:
    """Change each value: rows that repeat it must have an input, rows that name it must change."""
    usual = run()
    moved: dict[str, set[str]] = {item: set() for item in usual}
    for key, value in keys.items():
        change(machine, {key: value})
        try:
            other = run()
        except NearfarError:
            continue
        for item, row in usual.items():
            by = ratio(row, other[item])
            if by != 1:
                moved[item].add(key)
            assert row["input"] or not repeats(by, digits), (item, key, by)
    change(machine, {})
    for item, row in usual.items():
        of, _, part = row["input"].partition(": ")
        if of == machine:
            own = {key for key in keys if key == part or key.startswith(f"{part}.")}
            assert own & moved[item], f"{item} names {row['input']} and does not move with it"


def test_numa_inputs(changed: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    described = machines.load("optane-4node")

    @functools.cache
    def once(overlaps: tuple[float, ...], latencies: tuple[float, ...]) -> Any:
        return pair("48G", "48G", overlap=[*overlaps])

    def cached_pair(_: str, __: str, overlap: list[float]) -> Any:
        """Cached, as pairs take long and depend on latencies alone."""
        nodes = topology("optane-4node")["nodes"]
        return once(tuple(overlap), tuple(node["local_read_ns"] for node in nodes))

    monkeypatch.setattr(paper, "pair", cached_pair)
    judge(lambda: keyed(numa.rows()), "optane-4node", dict(enlarged(described)), changed)


@pytest.fixture(scope="session")
def simulated() -> Iterator[_evidence.Simulation]:
    with _evidence.simulation(CAPTURES) as opened:
        yield opened


# In one worker with other tests of these captures, as the process caches their fits.
@pytest.mark.xdist_group("test_reproduce")
@pytest.mark.parametrize(
    "machine", ["desktop-hdd", "desktop-nvm", "nvme", "optane-ssd", "papers/000/machine.toml"]
)
def test_paging_inputs(
    simulated: _evidence.Simulation, machine: str, changed: Callable[..., None]
) -> None:
    described = _evidence.paper_machine() if "/" in machine else machines.load(machine)
    keys = {
        key: value
        for key, value in enlarged(described)
        if any(part in key for part in TIMES) and not key.startswith("cache.")
    }
    assert len(keys) > 3

    def run() -> Rows:
        return keyed(paging.rows(_evidence.Evidence(simulated, _evidence.Setting())))

    judge(run, machine, keys, changed)


@pytest.fixture(scope="module")
def pigz() -> Iterator[Callable[[ssd.Setting], Rows]]:
    with ExitStack() as stack:
        opened = ssd._open(False, None, 0, None, stack, vm=False)
        yield lambda setting: keyed(ssd._rows(opened, setting))


def test_ssd_inputs(pigz: Callable[[ssd.Setting], Rows], changed: Callable[..., None]) -> None:
    described = machines.load("umd")
    keys = {
        key: value
        for key, value in enlarged(described)
        if not key.startswith(("cache.", "node.dram.size"))
    }
    assert {"flash.read", "cpu.ipc", "cost.exception"} <= keys.keys()
    judge(lambda: pigz(ssd.Setting()), "umd", keys, changed, digits=3)


def test_ssd_choices_as_inputs(pigz: Callable[[ssd.Setting], Rows]) -> None:
    usual = pigz(ssd.Setting())
    named = {row["input"] for row in usual.values()} - {""}
    assert named == {"definition", "precondition", "first_touch", "umd: cpu.ipc"}
    others = {}
    for name, value in (
        ("first_touch", "stored"),
        ("atomic", "kernel"),
        ("sleep", "1ms"),
        ("overwrite", "once"),
        ("precondition", (0.6 * FACTOR, 0.5)),
        ("precondition, random", (0.6, 0.5 * FACTOR)),
    ):
        changes: dict[str, Any] = {name.partition(",")[0]: value}
        others[name] = pigz(replace(ssd.Setting(), **changes))
    for item, row in usual.items():
        by = {name: ratio(row, other[item]) for name, other in others.items()}
        if row["input"] == "definition":
            assert set(by.values()) == {1.0}, item
        elif row["input"] and not row["input"].startswith("umd: "):  # tested above
            assert any(by[name] != 1 for name in by if name.startswith(row["input"])), item
        else:
            assert not any(repeats(by[name], 3) for name in by if "precondition" in name), item
