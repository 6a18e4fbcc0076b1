"""``nearfar machine measure``: samples, the machine file, refusals, and restored settings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Run, refused, until, words
from nearfar import machine
from nearfar.errors import NearfarError
from nearfar.measure import faults, storage, system
from nearfar.measure.bench import Bench
from nearfar.measure.documented import documented
from nearfar.measure.samples import Samples, rate_text, size_text, time_text

# --- samples


def test_one_outlier_is_not_noise_and_several_are() -> None:
    quiet = (100.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0)
    assert not Samples((*quiet, 500.0)).noisy
    assert Samples((*quiet, 120.0, 125.0, 130.0, 140.0)).noisy
    assert Samples((100.0, 89.0, 111.0)).noisy and not Samples((100.0, 91.0, 109.0)).noisy
    # A difference around 0 is noisy; a single run has no spread.
    assert Samples((-5.0, 0.0, 5.0)).noisy and not Samples((1.0,)).noisy


def test_a_source_has_median_and_range() -> None:
    assert (
        Samples((84.1, 83.2, 86.04)).described("ns")
        == "measured: median 84.1 ns, 83.2-86 in 3 runs"
    )
    noisy = Samples((1.0, 2.0, 3.0)).scaled(2).described("GB/s")
    assert noisy == "noisy, measured: median 4 GB/s, 2-6 in 3 runs"


@pytest.mark.parametrize("value", [0.27012, 1.0875, 84.14, 999.96, 4312345.6, 1e-9, 2.3e9])
def test_written_values_can_be_parsed(value: float) -> None:
    """The strict parser accepts only whole picoseconds and bytes per second."""
    text = f"""
    description = "d"
    [storage.d.nvme]
    read_latency = {{ value = "{time_text(value)}", source = "s" }}
    write_latency = {{ value = "1s", source = "s" }}
    measured_at = {{ value = "{size_text(4096)}", source = "s" }}
    unit = {{ value = "{size_text(520)}", source = "s" }}
    read_bandwidth = {{ value = "{rate_text(1e9 + value)}", source = "s" }}
    write_bandwidth = {{ value = "{rate_text(1e3 * value + 7e13 / (value + 1))}", source = "s" }}
    """
    try:
        machine.parse("x", text)
    except NearfarError as error:
        assert "would take" in str(error)  # the values parse, but contradict each other


# --- documented processors, and the system's description


def test_documented_processors() -> None:
    genoa, alder_lake = documented("AuthenticAMD", 0x19, 0x11), documented("GenuineIntel", 6, 0x97)
    assert genoa and alder_lake
    assert (genoa.window, genoa.coalesced, genoa.second) == (320, 16384, (3072, 24))
    assert "57647" in genoa.guide and alder_lake.window == 512
    milan, vermeer = (documented("AuthenticAMD", 0x19, model) for model in (0x01, 0x21))
    assert milan == vermeer != genoa
    assert documented("AuthenticAMD", 0x0F, 1) is documented("GenuineIntel", 6, 1) is None


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def two_sockets(root: Path) -> Path:
    """Two sockets of two cores with two threads each, and a node without cores; 8 KiB of L1."""
    files = {
        "proc/cpuinfo": "model name\t: Made Up 3000\naddress sizes\t: 48 bits physical, "
        "57 bits virtual",
        "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nMemFree: 2097152 kB",
        "proc/self/cgroup": "2:memory:/small\n0::/",
        "sys/fs/cgroup/memory/small/memory.limit_in_bytes": str(1 << 30),
        "sys/fs/cgroup/memory/small/memory.usage_in_bytes": str(1 << 29),
    }
    for cpu in range(8):
        place = f"sys/devices/system/cpu/cpu{cpu}"
        first = cpu // 2 * 2
        files[f"{place}/topology/physical_package_id"] = str(cpu // 4)
        files[f"{place}/topology/core_cpus_list"] = f"{first}-{first + 1}"
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "8K", f"{first}-{first + 1}"),
                (2, "Unified", "96K", ("0-3", "4-7")[cpu // 4]),
            ]
        ):
            cache = f"{place}/cache/index{index}"
            files |= {
                f"{cache}/level": str(level),
                f"{cache}/type": kind,
                f"{cache}/size": size,
                f"{cache}/ways_of_associativity": "4",
                f"{cache}/coherency_line_size": "64",
                f"{cache}/shared_cpu_list": shared,
            }
    for node, (cpus, row) in enumerate(
        [("0-3", "10 21 17"), ("4-7", "21 10 28"), ("", "17 28 10")]
    ):
        place = f"sys/devices/system/node/node{node}"
        files |= {
            f"{place}/cpulist": cpus,
            f"{place}/distance": row,
            f"{place}/meminfo": f"Node {node} MemTotal: 2796202 kB",
        }
    return fill(root, files)


def test_a_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 5})
    found = system.read(two_sockets(tmp_path))
    assert (found.model, found.cores, found.sockets) == ("Made Up 3000", 2, 2)
    assert found.one_per_core == {0, 2, 5}
    assert (found.memory, found.levels) == (8 << 30, 5)
    assert found.available == 1 << 29  # the control group has less than the machine
    assert {name: (c.size, c.ways, c.line, c.cores) for name, c in found.caches.items()} == {
        "l1d": (8192, 4, 64, 1),
        "l2": (98304, 4, 64, 2),
    }
    assert [(n.node, n.cpus, n.socket) for n in found.nodes] == [(0, 4, 0), (1, 4, 1), (2, 0, 0)]
    assert found.node_cpus == {0: (0, 1, 2, 3), 1: (5,), 2: ()}


def test_a_system_with_only_proc_meminfo_has_one_node(tmp_path: Path) -> None:
    found = system.read(fill(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB"}))
    assert len(found.nodes) == 1 and found.nodes[0].size == 1 << 20
    assert found.sockets == 1 and found.cores >= 1 and found.levels is None
    with pytest.raises(NearfarError, match="mount /proc"):
        system.read(tmp_path / "nothing")


# --- the machine file


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of a quick measurement of this machine, and its standard error."""
    folder = tmp_path_factory.mktemp("measured")
    code = "from nearfar.cli import main; main()"
    command = ["machine", "measure", "--quick", "-o", "here.toml", "--storage", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=folder, capture_output=True, text=True
    )
    if "O_DIRECT" in done.stderr:
        pytest.skip("the folder for temporary files is not on a device")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    # The scratch file of the storage requests is removed.
    assert [path.name for path in folder.iterdir()] == ["here.toml"]
    return folder / "here.toml", done.stderr


def test_the_file_is_a_machine(measured: tuple[Path, str], nearfar: Run) -> None:
    path, stderr = measured
    assert nearfar("machine", "check", str(path)).stdout == f"{path}: good\n"
    text = path.read_text()
    assert "Measured on " in text and "quick: rough values" in text and "Linux" in text
    one = machine.load(path)
    # The processor of a virtual machine may not report its TLBs; a message then says so.
    if "[tlb.first]" not in stderr:
        assert one.access_times().tlb_ns < one.access_times().dram_ns
    assert one.fault_times().fault_ns > 0
    found = one.to_dict()
    assert set(found["fault"]) >= {"4KiB"}
    assert set(found["storage"]) - {"swap"} == {storage.name_of(path.parent)}
    assert all(line.startswith("nearfar: ") for line in stderr.splitlines())


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    if "source" in value:
        return {path: value}
    found = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{path}.{key}".strip("."))
    return found


def test_every_value_states_its_source(measured: tuple[Path, str]) -> None:
    path, stderr = measured
    found = leaves(machine.load(path).to_dict())
    origins = ("measured", "noisy, measured", "/sys/", "/proc/", "cpuid", "assumption", "AMD, ",
               "Intel 64", "logical block", "the size of a request", "a page")  # fmt: skip
    for key, value in found.items():
        assert value["source"].startswith(origins), (key, value)
        assert not value["source"].startswith("noisy") or f"nearfar: {key}: noisy: " in stderr
    if latency := found.get("node.dram.local.read_latency"):
        assert latency["source"].count("runs, ") == 1


def test_latencies_grow_from_l1_to_memory(measured: tuple[Path, str]) -> None:
    """Unlike values, this order holds on a busy machine too."""
    found = machine.load(measured[0]).to_dict()
    if not {"l1d", "l2"} <= set(found.get("cache", {})):
        pytest.skip("this machine shows no caches")

    def ns(text: str) -> float:
        number = float(text.rstrip("nums"))
        return number * {"ns": 1, "us": 1e3, "ms": 1e6}[text.lstrip("0123456789.")]

    first, second = (ns(found["cache"][name]["hit_time"]["value"]) for name in ("l1d", "l2"))
    memory = ns(next(iter(found["node"].values()))["local"]["read_latency"]["value"])
    assert first < second < memory


# --- what is refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure", "here"], "argument(s) (here)"),
        (["measure", "--format", "json"], "--format: no such option"),
        (["measure", "--set", "cpu.cores=1"], "--set: no such option"),
        (["measure", "--quick"], "need -o FILE"),
        (["measure", "--storage", "absent"], "absent"),
        (["measure", "--storage", "/dev/null"], "is not a file, block device or folder"),
        (["measure", "-o", "taken.toml"], "taken.toml"),
        (["measure", "-o", "no/folder/x.toml"], "no/folder"),
        (["show", "nvme", "-o", "x"], "-o: no such option"),
        (["check", "taken.toml", "--storage", "."], "--storage: no such option"),
    ],
)
def test_bad_usage_is_one_line_before_the_work(
    nearfar: Run, tmp_path: Path, arguments: list[str], said: str
) -> None:
    work, config = tmp_path / "work", tmp_path / "config"
    work.mkdir()
    (work / "taken.toml").write_text("mine")
    first = f"import os; os.chdir({str(work)!r}); os.environ['XDG_CONFIG_HOME'] = {str(config)!r}"
    refused(nearfar("machine", *arguments, first=first), said)
    assert [path.name for path in work.iterdir()] == ["taken.toml"]
    assert (work / "taken.toml").read_text() == "mine"
    assert not list(config.rglob("*.toml"))


def test_a_default_machine_that_cannot_be_written_is_refused_before_the_work(nearfar: Run) -> None:
    """``XDG_CONFIG_HOME`` is ``/dev/null`` in tests."""
    first = "from nearfar import measure; measure.measure = None"
    refused(nearfar("machine", "measure", first=first), "/dev/null")


def test_a_small_file_and_one_with_holes_are_refused(tmp_path: Path) -> None:
    small, holes = tmp_path / "small", tmp_path / "holes"
    small.write_bytes(bytes(100))
    with holes.open("wb") as file:
        file.truncate(64 << 20)
    for path, said in ((small, "is smaller than"), (holes, "has holes")):
        try:
            storage.check(path, True)
        except NearfarError as error:
            if "O_DIRECT" in str(error):
                pytest.skip("the folder for temporary files is not on a device")
            assert said in str(error)
        else:
            pytest.fail(f"{path} was taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["holes", "small"]


def test_checking_tmpfs_leaves_no_file() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no /dev/shm")
    before = set(memory.iterdir())
    try:
        storage.check(memory, True)
    except NearfarError as error:
        assert "O_DIRECT" in str(error) or "free" in str(error)
    assert not {path for path in set(memory.iterdir()) - before if "nearfar" in path.name}


def test_two_storages_of_the_same_name_are_refused(nearfar: Run, tmp_path: Path) -> None:
    for folder in ("a/disk", "b/disk"):
        (tmp_path / folder).mkdir(parents=True)
    flags = ["--storage", "a/disk", "--storage", "b/disk"]
    there = f"import os; os.chdir({str(tmp_path)!r}); os.environ['XDG_CONFIG_HOME'] = 'config'"
    done = nearfar("machine", "measure", *flags, first=there)
    assert done.returncode == 2 and "two devices would be named disk" in done.stderr


# --- the kernel's settings for large pages


@pytest.mark.parametrize(
    ("page", "set_", "wanted", "changed"),
    [
        # `sysfs` has madvise, which 2M inherits, always for 128K, and never for other sizes.
        (4096, {}, "small", False),
        (2 << 20, {}, "huge", False),
        (64 << 10, {}, "unasked", True),
        (64 << 10, {64: "madvise"}, "unasked", True),  # madvise() would give 2M
        (64 << 10, {64: "madvise", 2048: "never", 128: "never"}, "huge", False),
        (128 << 10, {}, "unasked", False),  # the largest size that is `always`
        (64 << 10, {64: "always"}, "unasked", True),  # the kernel would give 128K
    ],
)
def test_settings_are_changed_only_where_needed(
    sysfs: Path, tmp_path: Path, page: int, set_: dict[int, str], wanted: str, changed: bool
) -> None:
    for size, word in set_.items():
        (sysfs / f"hugepages-{size}kB" / "enabled").write_text(word)
    before = words(sysfs)
    mapping, switched = faults._mapping_for(page, sysfs, tmp_path / "run")
    with switched:
        assert (mapping, words(sysfs) != before) == (wanted, changed)
        if changed:
            assert words(sysfs)[f"hugepages-{page >> 10}kB/enabled"] == "always"
    assert {name: word.strip("[]") for name, word in words(sysfs).items()} == before


def test_without_root_disabled_page_sizes_are_left_out_with_notes(
    sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults.os, "access", lambda path, mode: False)
    bench = Bench(system.read(), quick=True, say=lambda what: None)
    found, zeroing = faults.zero_fill(bench, 1.0, sysfs, tmp_path / "run")
    assert "4KiB" in found and zeroing is not None
    assert not {"16KiB", "64KiB"} & set(found)
    left_out = [note for note in bench.notes if "run as root" in note]
    assert [note.partition(":")[0] for note in left_out] == ["fault.64KiB", "fault.16KiB"]
    assert not (tmp_path / "run").exists()


def test_a_page_size_that_the_kernel_did_not_give_is_left_out(sysfs: Path, tmp_path: Path) -> None:
    """The kernel gives smaller pages, as it does not read the settings in the test's folder."""
    bench = Bench(system.read(), quick=True, say=lambda what: None)
    before = words(sysfs)
    found, _ = faults.zero_fill(bench, 1.0, sysfs, tmp_path / "run")
    real = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not real.exists() or "[always]" not in real.read_text():
        assert "64KiB" not in found
        assert any("fault.64KiB: left out: the kernel gave smaller" in note for note in bench.notes)
    assert {name: word.strip("[]") for name, word in words(sysfs).items()} == before


def test_swap_that_is_off_or_unused_is_left_out(tmp_path: Path) -> None:
    from nearfar.measure.swap import devices, swap

    bench = Bench(system.read(), quick=True, say=lambda what: None)
    head = "Filename\tType\tSize\tUsed\tPriority"
    assert swap(bench, 1.0, fill(tmp_path, {"proc/swaps": head})) is None
    full = f"{head}\n/dev/zram0\tpartition\t8388604\t8388600\t100"
    assert devices(fill(tmp_path, {"proc/swaps": full})) == {"/dev/zram0": 4096}
    assert swap(bench, 1.0, tmp_path) is None
    assert bench.notes == ["storage.swap: left out: no swap is on, or it is full"] * 2
    if not devices():
        fill(tmp_path, {"proc/swaps": full.replace("8388600", "0")})
        assert swap(bench, 1.0, tmp_path) is None
        assert bench.notes[-1] == "storage.swap: left out: the kernel wrote little to /dev/zram0"


#: Measures faults with the settings in a folder; sleeps once it has changed that of 16 KiB.
WAITS = """
import sys, time
from pathlib import Path
from nearfar.errors import NearfarError
from nearfar.measure import faults, system
from nearfar.measure.bench import Bench
def wait(page, *rest):
    if page == 16384:
        print('up', flush=True)
        time.sleep(86400)
    raise NearfarError("none")
faults._times = wait
bench = Bench(system.read(), quick=True, say=lambda what: None)
faults.zero_fill(bench, 1.0, Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_interrupts_restore_settings(sysfs: Path, tmp_path: Path, number: signal.Signals) -> None:
    before, runtime = words(sysfs), tmp_path / "run"
    running = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(sysfs), str(runtime)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    with running.stdout:
        assert running.stdout.readline() == "up\n"
        assert words(sysfs)["hugepages-16kB/enabled"] == "always"
        running.send_signal(number)
        running.wait()

    def is_put_back() -> bool:
        return {name: word.strip("[]") for name, word in words(sysfs).items()} == before

    until(is_put_back, "the switches put back")
    until(lambda: not (runtime / "apply.json").exists(), "the journal removed")


def test_the_schema_has_measured_keys() -> None:
    keys = set(json.dumps(machine.schema()).split('"'))
    assert {"fault", "walk", "host_page", "reorder_window", "coalesced"} <= keys
