"""Placement by Debian's kernel under QEMU, against the model; import of ACPI tables."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import agree
import placement
import pytest

from nearfar import numa
from nearfar.errors import NearfarError

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "numa"
#: kernel-cxl-2socket, kernel-optane-4node-added, kernel-optane-4node.
RECORDS = sorted(DATA.glob("kernel-*.json"))
#: QEMU's firmware tables of a machine with persistent memory on nodes 2 and 3.
NVDIMM = DATA / "nvdimm.json"


def recorded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_model_agrees_with_the_kernel(path: Path) -> None:
    record = recorded(path)
    found = agree.agreements(record)
    assert not [one for one in found if not one.holds]
    assert len(found) == len(record["distances"]) + 2 * len(record["cases"])
    assert {case["policy"] for case in record["cases"]} == set(placement._POLICIES)
    # A step of "path" is the number of pages allocated so far, then those on each node.
    for case in record["cases"]:
        last = {str(node): pages for node, pages in enumerate(case["path"][-1][1:]) if pages}
        assert case["maps"] == last
        assert sum(last.values()) == case["pages"]
        # The tolerance covers page tables.
        for node, (free, left) in enumerate(zip(case["free"], case["left"], strict=True)):
            gone = free - left - case["path"][-1][1 + node]
            assert abs(gone) <= agree.TOLERANCE * case["pages"]


def test_the_table_marks_disagreements() -> None:
    near = agree.Agreement("one", "1 2", "1 2", 0.0)
    far = agree.Agreement("another", "1 2", "2 1", 0.5)
    record = {"machine": "m", "kernel": "6", "qemu": "7", "added": False}
    lines = agree.table(record, [near, far])
    assert lines[1] == "  one      1 2  1 2   0.00%" and lines[2].endswith("2 1  50.00%  APART")


def test_machines_are_recorded() -> None:
    made = ["kernel-cxl-2socket", "kernel-optane-4node-added", "kernel-optane-4node"]
    assert sorted(path.stem for path in RECORDS) == sorted(made)
    orders = {path.stem: recorded(path)["fallback"][4] for path in RECORDS[1:]}
    # Linux falls back to nodes without processors first, but does not know them yet at boot. Only
    # a node 4 that is added later falls back to node 5 before DRAM (node 0).
    assert orders["kernel-optane-4node"] == [4, 0, 5, 1, 6, 7, 2, 3]
    assert orders["kernel-optane-4node-added"] == [4, 5, 0, 1, 6, 7, 2, 3]


def test_records_that_contradict_the_model_are_noticed() -> None:
    record = recorded(RECORDS[0])
    swapped = copy.deepcopy(record)
    swapped["fallback"][0] = swapped["fallback"][0][::-1]
    assert sum(not one.holds for one in agree.agreements(swapped)) == 1
    moved = copy.deepcopy(record)
    for step in moved["cases"][0]["path"]:
        step[1], step[2] = step[2], step[1]
    assert any(not one.holds for one in agree.agreements(moved))
    shifted = copy.deepcopy(record)
    weighted = next(case for case in shifted["cases"] if case["weights"])
    weighted["start"] += 1
    disagreeing = [one.item for one in agree.agreements(shifted) if not one.holds]
    assert disagreeing == [f"{weighted['name']}: first pages"]


def test_the_described_machine_has_the_guests_free_pages(tmp_path: Path) -> None:
    record = recorded(RECORDS[1])
    free = record["cases"][3]["free"]
    machine = tmp_path / "emulated.toml"
    machine.write_text(agree.described(record, free))
    row = numa.alloc([4096], machine=str(machine), mode=["kmem-dax"], allocator="user").rows[0]
    used = [part["bytes"] + part["tables_bytes"] for part in row["landed"]]
    left = [part["free_bytes"] for part in row["landed"]]
    assert [(a + b) // 4096 for a, b in zip(used, left, strict=True)] == free


def test_console_output_that_ends_early_is_refused() -> None:
    cases = placement.cases(numa.topology("cxl-2socket"))
    whole = "".join(
        f"@@case {case.name}\r\n@@free 1 2\r\n@@left 1 2\r\n@@done 0\r\n" for case in cases
    )
    found = placement.parse(whole, cases)
    assert [case["free"] for case in found["cases"]] == [[1, 2]] * len(cases)
    with pytest.raises(NearfarError, match=f"{len(cases) - 1} of {len(cases)} cases"):
        placement.parse(whole.rsplit("@@case", 1)[0], cases)
    with pytest.raises(NearfarError, match="refused a case: x"):
        placement.parse(whole + "@@refused x\n", cases)


# --- the firmware's tables of the recorded machines, through the importer


def tables(record: dict[str, Any], folder: Path) -> dict[str, Path]:
    """Write the firmware tables of a record into files; return their paths by name."""
    files = {}
    for name, digits in record["tables"].items():
        files[name] = folder / name
        files[name].write_bytes(bytes.fromhex(digits))
    return files


def test_the_last_fallback_line_of_a_node_counts() -> None:
    console = "@@fallback 1: 1 0\n@@fallback 0: 0 1\n@@fallback 1: 1 0\n@@distance 0 10 20\n"
    found = placement.parse(console + "@@fallback 0: 1 0\n", [])
    assert found["fallback"] == [[1, 0], [1, 0]] and found["distances"] == [[10, 20]]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_firmware_tables_describe_the_nodes_of_the_machine_file(path: Path, tmp_path: Path) -> None:
    record = recorded(path)
    expected = numa.topology(record["machine"])
    found = numa.describe(list(tables(record, tmp_path).values()))
    assert [node.node for node in found] == [node["node"] for node in expected["nodes"]]
    assert [[node.distances[n] for n in sorted(node.distances)] for node in found] == expected[
        "distances"
    ]
    for node, wanted in zip(found, expected["nodes"], strict=True):
        assert node.read_latency == round(wanted["local_read_ns"])
        assert bool(node.cpus) == bool(wanted["cpus"]) and node.socket == wanted["socket"]
        # Ranges reserved for memory hotplug, 62 GiB in one record, are not counted.
        assert 64 << 20 <= node.size <= 256 << 20
    text, assumed = numa.to_machine(found)
    assert not assumed
    machine = tmp_path / "mine.toml"
    machine.write_text(text)
    again = numa.topology(str(machine))
    remote = [round(node["remote_read_ns"]) for node in expected["nodes"]]
    assert [node["remote_read_ns"] for node in again["nodes"]] == remote


def dumped(table: bytes) -> str:
    """A table in the format of ``acpidump``."""
    lines = [f"{table[:4].decode()} @ 0x0000000000000000"]
    for at in range(0, len(table), 16):
        part = table[at : at + 16]
        text = "".join(chr(c) if 32 <= c < 127 else "." for c in part)
        lines.append(f"    {at:04X}: {' '.join(f'{c:02X}' for c in part):<47}  {text}")
    return "\n".join(lines) + "\n\n"


def test_tables_dumps_and_disassemblies_describe_the_same_nodes(tmp_path: Path) -> None:
    record = recorded(RECORDS[1])
    files = tables(record, tmp_path)
    text = tmp_path / "acpidump.txt"
    text.write_text("".join(dumped(file.read_bytes()) for file in files.values()))

    def plain(sources: list[Path]) -> list[object]:
        return [(n.node, n.size, n.cpus, n.distances, n.seen) for n in numa.describe(sources)]

    assert plain([text]) == plain(list(files.values()))
    if shutil.which("acpixtract"):
        subprocess.run(["acpixtract", "-a", text], check=True, capture_output=True, cwd=tmp_path)
        for name, file in files.items():
            assert (tmp_path / f"{name.lower()}.dat").read_bytes() == file.read_bytes()
    if shutil.which("iasl"):
        made = []
        for name, file in files.items():
            subprocess.run(["iasl", "-d", str(file)], check=True, capture_output=True)
            made.append(tmp_path / f"{name}.dsl")
        assert plain(made) == plain(list(files.values()))


def sizes(sources: list[Path]) -> dict[int, tuple[str | None, int]]:
    return {n.node: (n.kind, n.size >> 20) for n in numa.describe(sources)}


def test_persistent_memory_is_read_from_nfit(tmp_path: Path) -> None:
    """Node 2 has a module of 512 MiB, node 3 two of 256; SRAT lists them too."""
    files = tables(recorded(NVDIMM), tmp_path)
    far = {2: ("pmem", 512), 3: ("pmem", 512)}
    assert sizes([files["NFIT"]]) == far
    # On node 0, 640 KiB to 1 MiB belong to the firmware.
    both = {0: ("dram", 127), 1: ("dram", 128), **far}
    assert sizes([files["SRAT"]]) == both
    assert sizes([files["SRAT"], files["NFIT"]]) == sizes([files["NFIT"], files["SRAT"]]) == both
    text = tmp_path / "acpidump.txt"
    text.write_text("".join(dumped(files[name].read_bytes()) for name in ("NFIT", "SRAT")))
    assert sizes([text]) == both
    if shutil.which("iasl"):
        subprocess.run(["iasl", "-d", files["NFIT"]], check=True, capture_output=True)
        read = (tmp_path / "NFIT.dsl").read_text()
        size_mib = dict.fromkeys((2, 3), 0)
        for domain, length in re.findall(
            r"Proximity Domain : (\w+)\n.*\n.*\n.*Address Range Length : (\w+)", read
        ):
            size_mib[int(domain, 16)] += int(length, 16) >> 20
        assert {node: ("pmem", size) for node, size in size_mib.items()} == far


@pytest.mark.parametrize(
    ("at", "value", "left"),
    [
        # The first range structure is at 40.
        (40 + 6, 1, {3: ("pmem", 512)}),  # flags: the domain is not valid
        (40 + 16, 0, {3: ("pmem", 512)}),  # GUID of another type of range
        (40 + 12, 3, {3: ("pmem", 1024)}),  # domain: node 3
    ],
)
def test_nfit_counts_ranges_of_persistent_memory_with_a_valid_domain(
    tmp_path: Path, at: int, value: int, left: dict[int, tuple[str, int]]
) -> None:
    table = bytearray.fromhex(recorded(NVDIMM)["tables"]["NFIT"])
    table[at] = value
    table[9] = (table[9] - sum(table)) % 256  # checksum
    changed = tmp_path / "NFIT"
    changed.write_bytes(table)
    assert sizes([changed]) == left


@pytest.mark.parametrize("path", [RECORDS[0], NVDIMM], ids=lambda path: path.stem)
def test_every_cut_and_every_wrong_byte_is_refused(path: Path, tmp_path: Path) -> None:
    record = recorded(path)
    bad = tmp_path / "table"
    for digits in record["tables"].values():
        whole = bytes.fromhex(digits)
        for length in range(4, len(whole)):
            bad.write_bytes(whole[:length])
            with pytest.raises(NearfarError, match="length that it states"):
                numa.describe([bad])
        for at in range(4, len(whole), 7):
            bad.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
            with pytest.raises(NearfarError):
                numa.describe([bad])
        # A wrong byte with a correct checksum gives a result or one clear line, no traceback.
        for at in range(36, len(whole)):
            for flip in (0x01, 0xFF):
                changed = bytearray(whole)
                changed[at] ^= flip
                changed[9] = (changed[9] - (changed[at] - whole[at])) % 256
                bad.write_bytes(changed)
                try:
                    numa.describe([bad])
                except NearfarError as error:
                    assert "\n" not in str(error)
        lines = dumped(whole).splitlines(keepends=True)
        bad.write_text("".join(lines[:2] + lines[3:]))
        with pytest.raises(NearfarError, match="a line is missing"):
            numa.describe([bad])
