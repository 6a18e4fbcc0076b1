"""``nearfar devices``: the device models against figures by hand, and the command."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import DATA, Run, refused
from nearfar import machine as machines
from nearfar.devices import devices
from nearfar.devices.models import (
    FAULT,
    FLASH_READ_NS,
    LOAD,
    SWITCH_NS,
    Device,
    Pages,
    Prices,
    model,
)
from nearfar.errors import NearfarError
from nearfar.generate import generate
from nearfar.paging import paging

REDIS = DATA / "captures" / "redis.trace"
PAGE = 4096


def pages(**counts: dict[int, int]) -> Pages:
    """Two memory sizes, 100 and 200 pages, on one storage, with 1,000 references of 10 ns."""
    rows: dict[int, dict[str, Any]] = {}
    for memory in (100, 200):
        row = {"total_ns": 10.0, "start_ns": 3.0, "references": 1000}
        for name in ("swap_ins", "file_rereads", "dirty_evictions"):
            row[name] = counts.get(name, {}).get(memory, 0)
        rows[memory] = {"nvme": row}
    return Pages(cast("Any", rows), 200)


def test_reads_and_writes_of_a_load_device_add_time() -> None:
    found = pages(swap_ins={100: 30}, file_rereads={100: 10}, dirty_evictions={100: 5})
    assert Device("x", LOAD, read_ns=500.0).time(found, 200) == 7.0
    assert Device("x", LOAD, read_ns=500.0).time(found, 100) == 7.0 + 40 * 500 / 1000
    assert Device("x", LOAD, write_ns=200.0).time(found, 100) == 7.0 + 5 * 200 / 1000
    # Pages in the device's own DRAM are not read from flash.
    assert Device("x", LOAD, flash_ns=100.0).time(found, 100) == 7.0 + 40 * 100 / 1000
    assert Device("x", LOAD, flash_ns=100.0, cache=100).time(found, 100) == 7.0
    assert Device("nvme", FAULT).time(found, 100) == 7.0


def test_the_cxl_ssd_switches_only_if_another_thread_runs() -> None:
    host = machines.paging_machine("nvme", ["cxl"])
    one, two = (model("cxl-ssd", host, busy=busy, ratio=2.0) for busy in (1, 2))
    assert (one.flash_ns, two.flash_ns) == (FLASH_READ_NS, SWITCH_NS)
    assert replace(one, flash_ns=0.0) == replace(two, flash_ns=0.0)
    # A cache line from its DRAM, then 63 more at 20.25 GB/s.
    assert one.read_ns == pytest.approx(158 + 63 * 64 / 20.25)
    alone, both = (model("dram-ssd", host, busy=busy, ratio=2.0) for busy in (1, 2))
    assert (alone.read_ns, alone.write_ns, both.write_ns) == (25_000, 200_000, 5_800)


def test_zram_takes_memory_at_its_compression_ratio() -> None:
    """Of 300 pages, a memory of 200 holds 100 uncompressed, and 200 compressed 2 to 1."""
    zram = Device("zram", ratio=2.0)
    assert zram.left(200, 300) == 100
    assert zram.needed(100, 300) == 200
    assert zram.left(150, 300) is None
    assert zram.left(300, 300) == 300
    assert Device("nvme").left(200, 300) == 200


def test_the_cost_is_of_priced_devices_only() -> None:
    prices = Prices.parse("dram=4, nvme=0.5", ["nvme", "zram"])
    assert prices.cost(Device("nvme"), 1 << 30, 1 << 31) == 5.0
    assert prices.cost(Device("zram", ratio=2.0), 1 << 30, 1 << 31) == 4.0
    assert prices.cost(Device("cxl"), 1, 1) is None
    for text, says in [("cxl=1", "is not one of dram, nvme"), ("dram", "write NAME=PRICE"),
                       ("dram=-1", "write NAME=PRICE"), ("dram=nan", "NAME=PRICE")]:  # fmt: skip
        with pytest.raises(NearfarError, match=says):
            Prices.parse(text, ["nvme"])


def test_times_are_those_of_paging(tmp_path: Path) -> None:
    """Of a program with 100 pages, which reads many of them back with half of its memory."""
    trace = tmp_path / "t.trace"
    generate("uniform", trace, refs=50_000, pages=100, seed=1)
    result = devices(trace, storage="nvme,cxl,cxl-ssd", memory="50%")
    nvme, cxl, ssd = cast("list[Any]", result.rows)
    options: Any = {"page_sizes": "4K", "replacement": "linux", "view": "machine",
                    "storage": "nvme", "memory": "50%,100%"}  # fmt: skip
    half, full = cast("list[Any]", paging(trace, **options).rows)
    start = full["start_ns"]
    assert nvme["total_ns"] == half["total_ns"] - start
    assert nvme["device_reads"] == half["swap_ins"] > 10_000
    assert nvme["slowdown"] == (half["total_ns"] - start) / (full["total_ns"] - start) - 1
    # The device's DRAM holds all of so small a program.
    each = (ssd["total_ns"] - (full["total_ns"] - start)) * 50_000 / ssd["device_reads"]
    assert each == pytest.approx(158 + 63 * 64 / 20.25)
    assert cxl["slowdown"] < nvme["slowdown"] and cxl["needed_bytes"] <= nvme["needed_bytes"]
    assert nvme["needed_bytes"] + nvme["device_bytes"] == result.run["peak_bytes"]


def test_the_terminal_and_the_page_show_every_device(nearfar: Run, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    done = nearfar("devices", str(REDIS), "--cost", "dram=4,nvme=0.1", "--html", html)
    assert done.returncode == 0, done.stderr
    page = html.read_text().replace("\u00a0", " ")
    for name in ("zram", "nvme", "optane-ssd", "cxl", "cxl-ssd", "dram-ssd"):
        (line,) = [one for one in done.stdout.splitlines() if one.split()[:1] == [name]]
        assert len(line.split()) > 6
        # The page has a bar in each chart and a row.
        assert page.count(f"<span>{name}: ") == 2
        assert f'<th scope="row">{name}</th>' in page
        slowdown = re.findall(r"\S+ %", line)[0]
        assert f"<span>{name}: {slowdown}</span>" in page and f"<td>{slowdown}</td>" in page
    refused(nearfar("devices", str(REDIS), "--memory", "10%,20%"), "is not one size")
    refused(nearfar("devices", str(REDIS), "--storage", "tape"), "tape")
