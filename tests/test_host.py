"""Sums of memory, huge pages and swap over the VMs of a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import DATA, Run
from nearfar.advise import advise
from nearfar.advise.host import hosts

GIB = 1 << 30
GNUGO = DATA / "captures" / "gnugo.trace"


def fleet(*rows: dict[str, Any], fleet: str | None = "fleet.toml") -> dict[str, Any]:
    usual = {
        "machine": "host",
        "storage": "zram",
        "memory_bytes": GIB,
        "memory_fraction": None,
        "settable_page_bytes": 65536,
        "mechanism": "mthp",
        "bloat_bytes": None,
        "guest_memory_bytes": None,
    }
    described = {
        "node": {"dram": {"kind": "dram", "size": {"value": "4GiB"}}, "far": {"kind": "cxl"}}
    }
    machines = {name: described for name in {row.get("machine", "host") for row in rows}}
    return {
        "run": {"fleet": fleet, "machines": machines},
        "rows": [{**usual, **row} for row in rows],
    }


def test_a_host_sums_the_needs_of_its_vms() -> None:
    (host,) = hosts(
        **fleet(
            {"memory_fraction": 0.5},
            {"memory_fraction": 0.8, "storage": "nvme", "bloat_bytes": 1 << 20},
            {"mechanism": "hugetlb", "settable_page_bytes": GIB, "memory_bytes": GIB + 1,
             "memory_fraction": 0.5},
            {"memory_fraction": 1.2},
        )
    )  # fmt: skip
    assert (host.vms, host.memory_bytes, host.bloat_bytes) == (4, 4 * GIB + 1, 1 << 20)
    assert host.pools == {GIB: 2}
    assert host.swapped_bytes == {"zram": GIB, "nvme": GIB // 4}
    assert (host.dram_bytes, host.missing_bytes) == (4 * GIB, (1 << 20) + 1)
    assert "more than the host's 4 GiB" in host.sentence
    assert host.sentence.endswith(
        "; 2 huge pages of 1 GiB reserved; 1 GiB swapped to zram; 256 MiB swapped to nvme."
    )


def test_each_machine_of_a_fleet_is_a_host_and_rows_without_a_fleet_are_none() -> None:
    found = hosts(**fleet({}, {"machine": "b"}, {}))
    assert [(host.machine, host.vms, host.missing_bytes) for host in found] == [
        ("host", 2, 0),
        ("b", 1, 0),
    ]
    assert found[0].sentence == (
        "2 VMs with 2 GiB of memory for programs (--set-memory adds memory for their "
        "systems), of the host's "
        "4 GiB."
    )
    assert found[1].sentence.startswith("1 VM with ")
    assert hosts(**fleet({}, {}, fleet=None)) == []


def test_a_guest_counts_by_its_whole_memory() -> None:
    """Guest memory includes the program and bloat, and huge pages back all of it."""
    given = {"guest_memory_bytes": 3 * GIB, "bloat_bytes": 1 << 20}
    (host,) = hosts(**fleet(given, {**given, "mechanism": "hugetlb", "settable_page_bytes": GIB}))
    assert (host.memory_bytes, host.bloat_bytes, host.pools) == (6 * GIB, 0, {GIB: 3})
    assert host.sentence.startswith("2 VMs with 6 GiB of memory: 2 GiB more than the host's 4 GiB")


def test_advice_of_a_fleet_ends_with_a_line_per_host(nearfar: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        f"storage = 'zram'\n[vm.a]\ntrace = '{GNUGO}'\nmemory = '50%'\n"
        f"[vm.b]\ntrace = '{GNUGO}'\nmemory = '20GiB'\n"
    )
    done = nearfar("advise", file)
    assert done.returncode == 0, done.stderr
    last = " ".join(done.stdout.split("Host nvme: ")[1].split())
    assert last.startswith("2 VMs with 20 GiB of memory for programs ")
    assert " more than the host's 16 GiB; 1.54 MiB swapped to zram." in last
    (host,) = hosts(**advise(file).to_dict())
    assert host.missing_bytes > 4 * GIB
