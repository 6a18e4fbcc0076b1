"""A cell of a sweep in parts: the same result, by whoever runs them and however they end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nearfar.paging
import nearfar.tiering
from conftest import DATA, HANG, Run, until
from nearfar import importer
from nearfar.sweep import load, sweep
from nearfar.sweep.split import in_rows
from sweeping import both_there, bytes_of, cluster, stand_still, start

STUDY = """
study = "paging"

[options]
trace = "gzip.trace"
machine = "optane-ssd"
page_sizes = "512,1K,...,2M"
view = "paper"
"""
SIZES = [512 << at for at in range(13)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("gzip", "sqlite"):
        shutil.copytree(DATA / "captures" / f"{name}.trace", tmp_path / f"{name}.trace")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], bytes]:
    """The dataset and the result of the study where it stays whole."""
    base = tmp_path_factory.mktemp("whole")
    shutil.copytree(DATA / "captures" / "gzip.trace", base / "gzip.trace")
    (base / "study.toml").write_text(STUDY, encoding="utf-8")
    found = sweep(base / "study.toml", base / "out", workers=1)
    assert found.result is not None
    return bytes_of(base / "out"), (found.result / "result.parquet").read_bytes()


def joined(study: Any, only: list[list[int]], **options: Any) -> Any:
    """The study from parts with these pieces, each through JSON as in a sweep."""
    parts = [(one, json.loads(json.dumps(study.part(one, **options)))) for one in only]
    return study.joined(parts, 1.0, **options)


def same(one: Any, other: Any, folder: Path) -> None:
    """All that the folders of two results hold but the time is the same, byte for byte."""
    texts = []
    for name, result in (("one", one), ("other", other)):
        result.write(folder / name, force=True)
        run = json.loads((folder / name / "run.json").read_text())
        del run["wall_seconds"]
        tables = sorted((folder / name).glob("*.parquet"))
        texts.append((json.dumps(run), {table.name: table.read_bytes() for table in tables}))
    assert texts[0] == texts[1]


def dealt(pieces: list[int], places: list[int]) -> list[list[int]]:
    """The pieces by the part that each is dealt to."""
    hands: dict[int, list[int]] = {}
    for piece, place in zip(pieces, places, strict=False):
        hands.setdefault(place, []).append(piece)
    return list(hands.values())


PLACES = st.lists(st.integers(0, 3), min_size=13, max_size=13)


@given(
    references=st.lists(
        st.tuples(st.integers(0, 300_000), st.sampled_from("LS"), st.sampled_from([1, 8, 64])),
        min_size=20,
        max_size=400,
    ),
    places=PLACES,
    memory=st.sampled_from(["20%,100%", "64K", "8K,10%,100%"]),
    replacement=st.sampled_from(["clock", "lru", "linux"]),
    view=st.sampled_from(["paper", "machine"]),
)
@settings(max_examples=25, deadline=None)
def test_a_random_study_in_random_parts_is_the_study(
    tmp_path_factory: pytest.TempPathFactory,
    references: list[tuple[int, str, int]],
    places: list[int],
    memory: str,
    replacement: str,
    view: str,
) -> None:
    assume(len({at >> 12 for at, _, _ in references}) >= 8)
    folder = tmp_path_factory.mktemp("random")
    lines = [f" {kind} {0x40_0000 + at:08x},{size}" for at, kind, size in references]
    (folder / "a.lackey").write_text("\n".join(lines) + "\n")
    trace = importer.import_trace(folder / "a.lackey", folder / "a.trace")
    options = {
        "trace": trace,
        "memory": memory,
        "replacement": replacement,
        "view": view,
        "machine": "nvme",
        "storage": "nvme",
    }
    pieces = list(nearfar.paging.pieces(**options))
    whole = nearfar.paging.paging(**options)
    same(whole, joined(nearfar.paging, dealt(pieces, places), **options), folder)


@pytest.mark.parametrize(
    "options",
    [
        {"machine": "optane-ssd"},
        {"machine": "nvme,optane-ssd", "page_cache": "warm", "write_back": True},
        {"machine": "nvme", "replacement": "linux", "tlb": "64+1536x12"},
        {"machine": "nvme", "lifetimes": "off"},
    ],
)
@pytest.mark.parametrize("trace", ["gzip", "sqlite"])
def test_a_real_study_in_parts_is_the_study(
    tmp_path: Path, trace: str, options: dict[str, Any]
) -> None:
    options = {"trace": DATA / "captures" / f"{trace}.trace", **options}
    pieces = list(nearfar.paging.pieces(**options))
    assert pieces in (SIZES, [size for size in SIZES if size > 2048 and size != 8192])
    parts = [pieces[1::2], pieces[:1], pieces[2::2]]
    same(nearfar.paging.paging(**options), joined(nearfar.paging, parts, **options), tmp_path)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"seeds": 4}, [[4, 1], [2], [3]]),
        ({"seeds": [7, 3, 5], "fast": "50%,60%", "slow": "100%"}, [[5], [3, 7]]),
        ({"workload": str(DATA / "captures" / "gzip.trace"), "seeds": 2}, [[2], [1]]),
    ],
)
def test_seeds_apart_are_the_seeds_together(
    tmp_path: Path, options: dict[str, Any], parts: list[list[int]]
) -> None:
    options = {"policy": "nomad,ssp", "scale": "1/1024", "rounds": 1, **options}
    assert sorted(nearfar.tiering.pieces(**options)) == sorted(sum(parts, []))
    whole = nearfar.tiering.tiering(**options)
    same(whole, joined(nearfar.tiering, parts, **options), tmp_path)


def test_what_would_not_gain_stays_whole(folder: Path) -> None:
    trace = folder / "gzip.trace"
    assert not nearfar.paging.pieces(trace, sample=0.5)
    assert not nearfar.paging.pieces(trace, filter="cache", machine="optane-ssd")
    assert not nearfar.tiering.pieces(seeds=[1, 2, 1])
    study = {"study": "paging", "options": {"trace": str(trace), "sample": 0.9}}
    assert sweep(study, folder / "out", parts=4, workers=2).ran == 1
    assert not (folder / "out" / "parts").exists()


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    count=st.integers(1, 12),
)
def test_no_other_rows_have_less_for_the_busiest(weights: list[float], count: int) -> None:
    pieces = dict(enumerate(weights))
    rows = in_rows(pieces, count)
    assert sum(rows, []) == list(pieces)
    assert all(rows) and len(rows) <= count

    def least(first: int, rest: int) -> float:
        """By trying every end of the first row."""
        if first == len(weights):
            return 0.0
        if rest == 0:
            return float("inf")
        ends = range(first + 1, len(weights) + 1)
        return min(max(sum(weights[first:end]), least(end, rest - 1)) for end in ends)

    busiest = max(sum(weights[piece] for piece in row) for row in rows)
    assert busiest == pytest.approx(least(0, count))


# --- sweeps


def test_a_sweep_in_parts_is_the_sweep(
    folder: Path, expected: tuple[dict[str, bytes], bytes], nearfar: Run
) -> None:
    out = folder / "out"
    words = ["sweep", folder / "study.toml", "-o", out, "--parts", 4, "--workers", 2]
    done = nearfar(*words)
    assert done.returncode == 0, done.stderr
    assert f"result: {out}/result" in done.stdout
    assert bytes_of(out) == expected[0]
    assert (out / "result" / "result.parquet").read_bytes() == expected[1]
    assert not (out / "parts").exists()
    assert "0 cells run now" in nearfar(*words).stdout
    # It is the folder that the study's own command makes.
    direct = folder / "direct"
    options = ["--machine", "optane-ssd", "--page-sizes", "512,1K,...,2M", "--view", "paper"]
    assert nearfar("paging", folder / "gzip.trace", *options, "-o", direct).returncode == 0
    assert (direct / "result.parquet").read_bytes() == expected[1]
    runs = [json.loads((at / "run.json").read_text()) for at in (direct, out / "result")]
    assert [run.pop("wall_seconds") > 0 for run in runs] == [True, True]
    # A sweep names the file of a machine, whose contents its cells depend on.
    commands = [run.pop("command").partition(" --page-sizes ") for run in runs]
    assert commands[0][2] == commands[1][2]
    assert runs[0] == runs[1]
    # And is read as that is.
    for words in (
        ["report", out / "result", "-o", folder / "page.html"],
        ["explain", out / "result"],
        ["diff", direct, out / "result"],
    ):
        done = nearfar(*words)
        assert done.returncode == 0, done.stderr


def test_a_grid_in_parts_is_the_grid(folder: Path) -> None:
    text = STUDY.replace('trace = "gzip.trace"', "").replace(
        "[options]", '[grid]\ntrace = ["gzip.trace", "sqlite.trace"]\n[options]'
    )
    (folder / "grid.toml").write_text(text, encoding="utf-8")
    whole = sweep(folder / "grid.toml", folder / "whole", workers=2)
    split = sweep(folder / "grid.toml", folder / "split", workers=2, parts=3)
    assert (whole.ran, split.ran, split.result) == (2, 2, None)
    assert bytes_of(folder / "whole") == bytes_of(folder / "split")


def parts_of(out: Path) -> list[Path]:
    return sorted(out.glob("parts/*/[!.]*.json"))


@pytest.fixture
def held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study in parts, which stands still at two finished ones until there is a file ``go``."""
    stand_still(folder, monkeypatch, "nearfar.paging", "part", "out/parts/*/[!.]*.json", 1)
    return folder


def test_a_half_done_split_goes_on(held: Path, expected: tuple[dict[str, bytes], bytes]) -> None:
    out = held / "out"
    running = start("sweep", held / "study.toml", "-o", out, "--workers", 1, "--parts", 5)
    until(lambda: len(parts_of(out)) == 2, "two parts")
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=HANG)
    assert running.returncode == 130, said
    kept = {part: part.stat().st_ino for part in parts_of(out)}
    assert len(kept) == 2
    done = [json.loads(part.read_text())["only"] for part in kept]
    # What is left is dealt anew, to as many as there are then.
    (held / "sitecustomize.py").write_text(
        "import pathlib, nearfar.paging as p\n"
        "run, log = p.part, pathlib.Path(__file__).parent / 'log'\n"
        "def part(only, *a, **k):\n"
        "    with log.open('a') as file: print(only, file=file)\n"
        "    return run(only, *a, **k)\n"
        "p.part = part\n"
    )
    result = sweep(held / "study.toml", out, workers=2, parts=2)
    assert (result.ran, result.failed) == (1, [])
    ran = [json.loads(line) for line in (held / "log").read_text().splitlines()]
    assert len(ran) == 2
    assert sorted(sum(done + ran, [])) == SIZES
    assert bytes_of(out) == expected[0]
    assert (out / "result" / "result.parquet").read_bytes() == expected[1]


def test_a_sweep_that_ends_before_it_joins_joins_later(
    folder: Path, expected: tuple[dict[str, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfar.sweep import cell

    def killed(job: object) -> object:
        raise KeyboardInterrupt

    out = folder / "out"
    with monkeypatch.context() as patched:
        patched.setattr(cell, "join", killed)
        with pytest.raises(Exception, match="interrupted: 0 of 1 cells"):
            sweep(folder / "study.toml", out, workers=2, parts=3)
    assert len(parts_of(out)) == 3
    # A part that is damaged is none.
    damaged = parts_of(out)[1]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert sweep(folder / "study.toml", out, workers=1).ran == 1
    assert bytes_of(out) == expected[0]


def test_parts_whose_worker_dies_each_time_fail_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nearfar: Run
) -> None:
    (folder / "sitecustomize.py").write_text(
        "import os, nearfar.paging as p\n"
        "run = p.part\n"
        "def part(only, *a, **k):\n"
        "    if 4096 in only: os.kill(os.getpid(), 9)\n"
        "    return run(only, *a, **k)\n"
        "p.part = part\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    out = folder / "out"
    result = sweep(folder / "study.toml", out, workers=2, parts=4)
    (cell,) = result.failed
    assert "died 3 times (signal SIGKILL)" in str(cell["error"])
    assert (result.ran, result.result) == (1, None)
    # The other parts are kept; the next sweep runs what is missing.
    assert len(parts_of(out)) == 3
    monkeypatch.delenv("PYTHONPATH")
    assert not sweep(folder / "study.toml", out, workers=1).failed


def test_a_dask_cluster_splits_by_itself_and_a_worker_dies(
    folder: Path, expected: tuple[dict[str, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sitecustomize.py").write_text(
        "import os, pathlib, time, nearfar.paging as p\n"
        "run, here = p.part, pathlib.Path(__file__).parent\n"
        "def part(only, *a, **k):\n"
        "    while 4096 in only and not (here / 'go').exists():\n"
        "        (here / f'stands-{os.getpid()}').touch()\n"
        "        time.sleep(0.01)\n"
        "    return run(only, *a, **k)\n"
        "p.part = part\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    out = folder / "out"
    with cluster(folder, workers=3) as (file, _, workers):
        both_there(file, 3)
        running = start("sweep", folder / "study.toml", "-o", out, "--dask", file)
        until(lambda: len(parts_of(out)) == 2, "two parts")
        # A worker is at the third: it dies there.
        (stands,) = until(lambda: [*folder.glob("stands-*")], "a worker that stands still")
        (victim,) = (one for one in workers if stands.name == f"stands-{one.pid}")
        victim.kill()
        (folder / "go").touch()
        printed, said = running.communicate(timeout=HANG)
    assert running.returncode == 0, said
    assert "1 cells, 1 done" in printed
    assert bytes_of(out) == expected[0]
    assert (out / "result" / "result.parquet").read_bytes() == expected[1]
    assert load(out).failed == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('trace = "gzip.trace"', 'trace = "gone.trace"', "no trace there"),
        ('"512,1K,...,2M"', '"5000"', "5000 is not a page size"),
        ('view = "paper"', 'view = "machine"\ntlb = "32"', "means nothing to --view machine"),
        ('view = "paper"', 'replacement = "fifo"', "no policy 'fifo'"),
    ],
)
def test_bad_input_is_one_line_and_no_part(
    folder: Path, nearfar: Run, old: str, new: str, line: str
) -> None:
    assert old in STUDY
    (folder / "study.toml").write_text(STUDY.replace(old, new), encoding="utf-8")
    out = folder / "out"
    done = nearfar("sweep", folder / "study.toml", "-o", out, "--parts", 4, "--workers", 2)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert line in done.stderr
    assert not (out / "parts").exists()
    done = nearfar("sweep", folder / "study.toml", "-o", out, "--parts", "some")
    assert (done.returncode, "--parts" in done.stderr) == (2, True)


# --- clusters, as the page and the examples have them

ROOT = Path(__file__).parent.parent
SLURM = (ROOT / "examples" / "sweep-slurm.sh").read_text(encoding="utf-8")
KUBERNETES = (ROOT / "examples" / "sweep-kubernetes.yaml").read_text(encoding="utf-8")


def shell_blocks() -> list[str]:
    page = (ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")
    return [part.partition("\n```")[0] + "\n" for part in page.split("```sh\n")[1:]]


#: What SLURM does: as many tasks as there are, which end with the script.
SRUN = """#!/bin/bash
for task in $(seq "$SLURM_NTASKS"); do "$@" & done
trap 'kill $(jobs -p)' EXIT TERM
wait
"""


def test_the_script_for_slurm_runs(
    folder: Path, expected: tuple[dict[str, bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    (certificates,) = (block for block in shell_blocks() if "openssl" in block)
    assert "--interface ib0" in SLURM
    script = SLURM.replace("--interface ib0", "--interface lo")
    (folder / "sweep.sh").write_text(script, encoding="utf-8")
    tools = folder / "tools"
    tools.mkdir()
    # Dask's nanny imports the script of its process again.
    once = "if __name__ == '__main__':\n    main()\n"
    code = {
        "srun": SRUN,
        "dask": f"#!{sys.executable}\nfrom dask.__main__ import main\n{once}",
        "nearfar": f"#!{sys.executable}\nfrom nearfar.cli import main\n{once}",
    }
    for name, text in code.items():
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    # Left by a job before: nobody is there.
    (folder / "scheduler.json").write_text('{"address": "tls://127.0.0.1:1"}', encoding="utf-8")
    for words in (["-c", certificates], ["sweep.sh"]):
        done = subprocess.run(
            ["bash", *words], cwd=folder, capture_output=True, text=True, timeout=HANG, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "1 cells, 1 done" in done.stdout
    assert bytes_of(folder / "study.sweep") == expected[0]


def test_the_other_scripts_are_shell() -> None:
    for script in shell_blocks():
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_file_for_kubernetes_is_of_one_piece() -> None:
    kinds = {found["kind"]: found for found in yaml.safe_load_all(KUBERNETES)}
    assert list(kinds) == ["PersistentVolumeClaim", "NetworkPolicy", "DaskCluster", "Job"]
    cluster, job = kinds["DaskCluster"], kinds["Job"]["spec"]["template"]
    worker, scheduler = (cluster["spec"][name] for name in ("worker", "scheduler"))
    # Workers and the sweep see the same folder under the same path, and it is the claim.
    for pod in (worker["spec"], job["spec"]):
        (container,), (volume,) = pod["containers"], pod["volumes"]
        claim = kinds["PersistentVolumeClaim"]["metadata"]["name"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        (mount,) = container["volumeMounts"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/sweep")
    (sweeping,) = job["spec"]["containers"]
    assert sweeping["workingDir"] == "/sweep"
    words = [*sweeping["command"], *sweeping["args"]]
    # The operator calls the service of a cluster so.
    port = scheduler["service"]["ports"][0]["port"]
    address = f"tcp://{cluster['metadata']['name']}-scheduler:{port}"
    assert words[words.index("--dask") + 1] == address
    assert int(words[words.index("--parts") + 1]) == worker["replicas"]
    name = {"dask.org/cluster-name": cluster["metadata"]["name"]}
    assert scheduler["service"]["selector"].items() >= name.items()
    assert job["metadata"]["labels"] == name
    policy = kinds["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == name
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": name}}]}]


@pytest.mark.parametrize("kind", ["scheduler", "worker"])
def test_the_commands_of_the_file_for_kubernetes_are_of_dask(kind: str) -> None:
    pytest.importorskip("distributed")
    cluster = next(one for one in yaml.safe_load_all(KUBERNETES) if "worker" in one["spec"])
    (container,) = cluster["spec"][kind]["spec"]["containers"]
    dask, *words = container["command"]
    assert (dask, words[0]) == ("dask", kind)
    done = subprocess.run(
        [sys.executable, "-m", "dask", *words, "--help"],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout
