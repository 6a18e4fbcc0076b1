"""Workloads: errors in files, reproducible inputs, captures of real programs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import needs_cc, needs_qemu
from conftest import DATA, HANG, Run, fetched, refused
from nearfar import inputs, workload, workload_guest
from nearfar.errors import NearfarError

SHORT = """
description = "does something"
stands_for = "nothing"
differs = "it does not"
papers = []
packages = ["coreutils", "nothing-else"]
command = ["sort", "text"]
expected = { records = 1, pages = 1, seconds = 1 }
small = { skip_refs = 200_000, max_refs = 5_000 }

[files]
text = { make = "words", bytes = 5000, seed = 3 }
"""


def short(**changes: str) -> str:
    """SHORT with these keys replaced or added."""
    lines = SHORT.strip().splitlines()
    for key, value in changes.items():
        lines = [line for line in lines if not line.startswith(f"{key} =")]
        lines.insert(lines.index("[files]"), f"{key} = {value}")
    return "\n".join(lines)


def test_the_programs_of_the_papers_are_there() -> None:
    found = {name: workload.load(name) for name in workload.names()}
    used = {paper: {n for n, w in found.items() if paper in w.papers} for paper in ("000", "001")}
    assert used["001"] == {"freecell", "gedit", "gqview", "kghostview"}
    assert used["000"] == {"game", "office", "photo", "pdf", "multimedia"}
    assert {"redis", "sqlite", "graph"} <= found.keys()


@pytest.mark.parametrize("name", workload.names())
def test_a_small_capture_of_each_workload_is_bundled(name: str) -> None:
    described = workload.load(name)
    info = json.loads((DATA / "captures" / f"{name}.trace" / "trace.json").read_text())
    assert info["complete"] and info["records"] == described.small["max_refs"]
    command = info["source"]["command"]
    assert Path(command[0]).name == Path(described.command[0]).name
    assert command[1:] == described.command[1:]
    assert (
        f"recording began after {described.small['skip_refs']} records"
        in (info["source"]["detail"])
    )
    # More than the dynamic loader or a waiting program touches.
    assert sum(info["pages_by_kinds"].values()) >= 30


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x = [", "mine.toml: "),
        (short(comand="[]"), "line 10 key comand: unknown key `comand`; did you mean `command`?"),
        (short().replace('command = ["sort", "text"]\n', ""), "key command: is missing"),
        (short(command="[]"), "key command: is empty"),
        (short(command='"sort"'), "key command: is not a list of texts"),
        (short(description='" "'), "key description: is not a text that is not empty"),
        (short(display="1"), "key display: is not true or false"),
        (short(max_refs="0"), "key max_refs: is not a whole number from 1"),
        (short(client="[[]]"), "key client: is not a list of commands"),
        (short(small="{ skip_refs = 1 }"), "key small: lacks `max_refs`"),
        (short(small="{ skip = 1 }"), "unknown key `skip`; did you mean `skip_refs`?"),
        (short(small="{ skip_refs = 0, max_refs = 0 }"), "key small.max_refs: is not 1 or more"),
        (short(ready='"socket"'), "there is no `client`"),
        (short() + '\n"../x" = { text = "" }', "is not a plain file name"),
        (short() + "\nx = { make = 'word' }", "no generator 'word'; did you mean `words`?"),
        (short() + "\nx = { make = 'words', byte = 3 }", "did you mean `bytes`?"),
        (short() + "\nx = { make = 'words', bytes = -3 }", "`bytes` is not a whole number"),
        (short() + "\nx = {}", "has neither `text"),
    ],
)
def test_wrong_files_get_one_clear_line(text: str, wanted: str) -> None:
    with pytest.raises(NearfarError, match="^[^\n]*$") as caught:
        workload.parse("mine.toml", text)
    assert wanted in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("name", inputs.INPUTS)
def test_inputs_are_the_same_every_time(name: str, tmp_path: Path) -> None:
    sizes = {"photo": {"width": 70, "height": 50}, "video": {"frames": 3},
             "redis-load": {"keys": 50, "commands": 300}, "pdf": {"pages": 2, "pixels": 60},
             "words": {"bytes": 100_000}, "sql-tables": {"customers": 50, "orders": 300},
             "edges": {"vertices": 500, "edges": 3000}}.get(name, {})  # fmt: skip

    def digest(seed: int) -> str:
        path = tmp_path / f"{seed}"
        inputs.INPUTS[name](path, seed=seed, **sizes)
        assert path.stat().st_size > 1000
        return hashlib.sha256(path.read_bytes()).hexdigest()

    assert digest(1) == digest(1) != digest(2)


def test_missing_programs_get_the_command_to_install_them(nearfar: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(short(command='["no-such-program"]'))
    done = nearfar("workload", "capture", path, "-o", tmp_path)
    assert done.returncode == 3
    assert done.stderr == (
        "nearfar: error: workload mine: not installed: no-such-program; "
        "apt-get install coreutils nothing-else\n"
    )


def test_capture_all_continues_and_lists_what_is_left_out(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = nearfar("workload", "capture", "--all", "--small", "-o", tmp_path / "out")
    assert done.returncode == 3
    *each, last = done.stderr.splitlines()
    assert len(each) == len(workload.names())
    assert "nearfar: workload redis: not installed: redis-server, redis-cli; apt-get" in done.stderr
    assert last.endswith(f"{len(each)} of {len(each)} left out, as listed above")
    assert not list(tmp_path.glob("out/*.trace"))


def test_list_and_show(nearfar: Run) -> None:
    listed = json.loads(nearfar("workload", "list", "--format", "json").stdout)["workloads"]
    assert [one["name"] for one in listed] == workload.names()
    shown = nearfar("workload", "show", "graph", "redis")
    assert shown.returncode == 0 and "igraph" in shown.stdout and "redis.sock" in shown.stdout
    for words in (["list", "redis"], ["show"], ["capture", "--all", "redis"], ["show", "redi"]):
        refused(nearfar("workload", *words))


@needs_qemu
def test_a_workload_is_captured_whole_and_small(nearfar: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(short())
    whole = workload.capture(workload.load(str(path)), tmp_path / "whole")
    small = workload.capture(workload.load(str(path)), tmp_path / "small", small=True)
    assert small.records == 5000 < whole.records and small.pages < whole.pages
    info = json.loads((whole.trace / "trace.json").read_text())
    assert info["source"]["command"][1:] == ["text"]
    assert "sort" in info["source"]["command"][0]
    done = nearfar("workload", "capture", path, "-o", tmp_path / "small", "--force")
    assert done.returncode == 0 and done.stdout.startswith(f"{tmp_path / 'small' / 'mine.trace'}:")


@needs_qemu
@pytest.mark.parametrize(
    ("changes", "code", "wanted"),
    [
        ({"command": '["sort", "no-such-file"]'}, 1, "did not run to its end: "),
        ({"prepare": '[["false"]]'}, 1, "`false` failed (1)"),
        ({"small": "{ skip_refs = 100_000_000, max_refs = 1 }"}, 1, "ended before `small"),
    ],
)
def test_failed_work_leaves_no_capture(
    changes: dict[str, str], code: int, wanted: str, tmp_path: Path
) -> None:
    one = workload.parse("mine.toml", short(**changes))
    with pytest.raises(NearfarError, match="^[^\n]*$") as caught:
        workload.capture(one, tmp_path, small="small" in changes)
    assert wanted in str(caught.value) and caught.value.exit_code == code
    assert list(tmp_path.iterdir()) == []


@needs_qemu
@pytest.mark.skipif(workload.load("redis").missing() != [], reason="redis is not installed")
def test_a_server_with_a_client_is_captured(tmp_path: Path) -> None:
    path = Path(__file__).parent.parent / "workloads" / "redis.toml"
    few = path.read_text().replace("keys = 15_000, commands = 30_000", "keys = 50, commands = 90")
    one = workload.parse("redis.toml", few)
    assert one.files["load.txt"]["keys"] == 50
    made = workload.capture(one, tmp_path)
    assert made.records > 1_000_000


@needs_qemu
def test_a_hung_program_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "PATIENCE", 1.0)
    text = short(command='["sleep", "1000"]', client='[["true"]]')
    with pytest.raises(NearfarError, match="did not end within 1 s of its last client"):
        workload.capture(workload.parse("mine.toml", text), tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_qemu
@pytest.mark.skipif(
    not (shutil.which("Xvfb") and shutil.which("xdotool")), reason="Xvfb is not installed"
)
def test_a_workload_has_a_display_of_its_own(tmp_path: Path) -> None:
    text = short(command='["xdotool", "getdisplaygeometry"]', display="true")
    made = workload.capture(workload.parse("mine.toml", text), tmp_path)
    assert made.records > 10_000
    # Without a display the same program fails.
    with pytest.raises(NearfarError, match="did not run to its end"):
        bare = workload.parse("other.toml", short(command='["xdotool", "getdisplaygeometry"]'))
        workload.capture(bare, tmp_path)


def test_a_guest_s_script_runs_what_a_capture_runs(tmp_path: Path) -> None:
    """It starts the program with its input, then the clients. Its waits are longer."""
    text = short(
        command='["sh", "-c", "cat >got; until [ -e done ]; do sleep 0.1; done"]',
        stdin='"typed"',
        client='[["sleep", "0"], ["sh", "-c", "cat >done", "<", "typed"]]',
    )
    made = workload.parse("mine.toml", text + '\ntyped = { text = "abc" }\n')
    workload.make_inputs(made, tmp_path)
    script = workload_guest.script(made.to_dict())
    # /work is the folder in a guest.
    own = script.replace("=/work", f"={tmp_path}")
    subprocess.run(["sh", "-c", own], cwd=tmp_path, check=True, timeout=HANG)
    assert (tmp_path / "got").read_text() == (tmp_path / "done").read_text() == "abc"
    assert "sleep 50" in workload_guest.script(workload.load("gedit").to_dict())


@pytest.mark.long("one more guest under TCG")
def test_a_workload_is_captured_in_a_guest(tmp_path: Path) -> None:
    """The kernel is recorded with the program, but nothing from before its start."""
    fetched("x86_64")
    made = workload.capture(workload.load("gunzip"), tmp_path, vm=True)
    assert made.trace == tmp_path / "gunzip-vm.trace"
    kinds = json.loads((made.trace / "trace.json").read_text())["records_by_kind"]
    assert kinds["load"] > 10_000_000 and kinds["kernel-fetch"] > 100_000
    # Much less than the memory that the guest's packages take.
    assert made.pages < 16_000


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_the_server_of_the_demonstration_is_a_workload() -> None:
    load = workload.load(str(EXAMPLES / "redis-benchmark.toml"))
    assert (load.name, load.command[0]) == ("redis-benchmark", "redis-server")
    assert [words[0] for words in load.client] == ["redis-benchmark", "redis-cli"]


@needs_cc
def test_the_graph_of_the_demonstration_is_searched_and_ranked(build: Callable[..., Path]) -> None:
    program = build((EXAMPLES / "graph.c").read_text(), "-Wall", "-Wextra", "-Werror")
    done = subprocess.run([program, "10", "4"], capture_output=True, text=True, check=True)
    targets, state, mask = [], 1, 2**64 - 1
    for _ in range(4 << 10):
        state = state + 0x9E3779B97F4A7C15 & mask
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        targets.append((z ^ z >> 31) >> 54)
    edges = [targets[4 * v : 4 * v + 4] for v in range(1024)]
    reached, front = {0}, {0}
    while front:
        front = {to for v in front for to in edges[v]} - reached
        reached |= front
    ranks = [1 / 1024] * 1024
    for _ in range(3):
        ranks = [0.15 / 1024 + 0.85 * sum(ranks[to] / 4 for to in edges[v]) for v in range(1024)]
    words = f"{len(reached)} of 1024 vertices reached, largest rank {max(ranks):.3g}\n"
    assert done.stdout == words
    assert subprocess.run([program, "40"], capture_output=True, check=False).returncode == 2
