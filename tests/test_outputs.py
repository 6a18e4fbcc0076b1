"""Outputs: never over an input or in a trace, over files only with --force; one writer."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import Run, refused
from nearfar import _engine
from nearfar.errors import NearfarError
from nearfar.output import claimed, write_whole

CORPUS = Path(__file__).parents[1] / "fuzz/corpus/numa"


@pytest.fixture
def place(tmp_path: Path, mixed: Path) -> Path:
    """A folder of inputs: a trace, a run, a table, TOML files."""
    shutil.copytree(mixed, tmp_path / "in.trace")
    (tmp_path / "in.din").write_text("0 1000\n1 2000\n")
    (tmp_path / "knobs.toml").write_text("[nomad]\n")
    (tmp_path / "nodes.txt").write_text((CORPUS / "dump").read_text())
    (tmp_path / "run").mkdir()
    for name in ("run.json", "result.parquet"):
        (tmp_path / "run" / name).write_text("{}")
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


#: Commands whose output is refused even with --force.
WRONG = {
    "a part": "info in.trace --html in.trace/part-00000.parquet",
    "trace.json": "paging in.trace --memory 50% --html in.trace/trace.json",
    "a new file of a trace": "export in.trace --format csv -o in.trace/new.csv",
    "a folder in a trace": "paging in.trace --memory 50% -o in.trace/run",
    "a trace in a trace": "generate uniform --refs 9 --pages 9 -o in.trace/new.trace",
    "a trace, as an export": "export in.trace --format csv -o in.trace",
    "the folder of an input": "paging run/../in.trace --memory 50% -o .",
    "an imported file": "import in.din --format dinero -o in.din",
    "knobs": "tiering --knobs knobs.toml --policy nomad --html knobs.toml",
    "a run, as a page": "report run -o run/result.parquet",
    "a description of nodes": "numa import nodes.txt -o nodes.txt",
    "a machine": "numa alloc --size 1G --machine ./machine.toml --html machine.toml",
    "the file of a sweep": "sweep study.toml -o in.trace/sweep",
    "an argument of the command": "apply --page 4K --yes -o in.din -- cat in.din",
    "somebody's folder": "generate uniform --refs 9 --pages 9 -o full",
    "somebody's folder, as a run": "numa alloc --size 1G -o full",
    "a device": "numa alloc --size 1G --html null",
}


@pytest.mark.parametrize("words", WRONG.values(), ids=list(WRONG))
def test_no_input_is_ever_replaced(
    place: Path, nearfar: Run, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "machine.toml").write_text(
        nearfar("machine", "show", "optane-ssd", "--format", "toml").stdout
    )
    (place / "study.toml").write_text(
        'study = "numa-alloc"\n[options]\nsize = ["1G"]\n', encoding="utf-8"
    )
    (place / "full").mkdir()
    (place / "full" / "theirs").write_text("x")
    (place / "null").symlink_to(os.devnull)
    before = content(place)
    given, *command = words.split(" -- ")
    rest = ["--", *command[0].split()] if command else []
    done = nearfar(*given.split(), "--force", *rest)
    refused(done)
    assert content(place) == before
    assert Path(os.devnull).is_char_device()


#: Commands, each with the path that it writes.
MAKES = {
    "generate uniform --refs 9 --pages 9 -o out": "out",
    "import in.din --format dinero -o out": "out",
    "export in.trace --format csv -o out": "out",
    "info in.trace --html out": "out",
    "paging in.trace --memory 50% --page-sizes 4K -o out": "out",
    "paging in.trace --memory 50% --page-sizes 4K --html out --no-heatmap": "out",
    "advise in.trace --memory 50% -o out": "out",
    "ssd in.trace --dram 1M -o out": "out",
    "numa alloc --size 1G -o out": "out",
    "numa alloc --size 1G --html out": "out",
    "numa import nodes.txt -o out.toml": "out.toml",
    "tiering --policy tpp --scale 1/4096 -o out": "out",
    "tiering --policy tpp --scale 1/4096 --html out": "out",
    "reproduce numa --html out": "out",
    "apply --page 4K --yes -o out -- true": "out",
    "sweep study.toml -o out": "out",
    "report made -o out": "out",
}


@pytest.mark.parametrize("words", MAKES)
def test_nothing_is_replaced_without_force(
    place: Path, nearfar: Run, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "study.toml").write_text('study = "numa-alloc"\n[options]\nsize = ["1G"]\n')
    if words.startswith("report"):
        assert nearfar("numa", "alloc", "--size", "1G", "-o", "made").returncode == 0
    theirs = place / MAKES[words]
    theirs.write_text("theirs")
    # A sweep continues in its folder instead, and has its own message.
    says = () if words.startswith("sweep") else ("exists already",)
    refused(nearfar(*words.split()), *says)
    assert theirs.read_text() == "theirs"


@pytest.mark.parametrize(
    "words", ["report made -o out", "ssd in.trace --dram 1M --epf none -o out"]
)
def test_force_replaces_an_earlier_output(
    place: Path, nearfar: Run, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert nearfar("numa", "alloc", "--size", "1G", "-o", "made").returncode == 0
    assert nearfar(*words.split()).returncode == 0
    refused(nearfar(*words.split()), "exists already")
    assert nearfar(*words.split(), "--force").returncode == 0


def test_three_commands_at_once_leave_one_whole_trace(tmp_path: Path, nearfar: Run) -> None:
    """Each succeeds, or fails because another command is writing the trace."""
    path = tmp_path / "out"
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            done = list(
                pool.map(
                    lambda seed: nearfar(
                        *["generate", "uniform", "--refs", "400000", "--pages", "900", "--force"],
                        "-o", path, "--seed", seed,
                    ),
                    range(3),
                )
            )  # fmt: skip
        good = [seed for seed, one in enumerate(done) if one.returncode == 0]
        assert good
        for one in done:
            busy = one.returncode == 2 and "another command is writing it" in one.stderr
            assert one.returncode == 0 or busy and one.stderr.count("\n") == 1, one.stderr
        assert nearfar("info", path, "--verify", "--no-reuse").returncode == 0
        command = json.loads((path / "trace.json").read_text())["source"]["command"]
        assert int(command[command.index("--seed") + 1]) in good
        assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_name_that_is_being_written_is_refused(tmp_path: Path) -> None:
    page, run = tmp_path / "page.html", tmp_path / "run"
    with claimed(page, force=True) as temporary:
        temporary.write_text("one")
        with pytest.raises(NearfarError, match="another command is writing it"):
            write_whole(page, "other", force=True)
    assert page.read_text() == "one"
    with claimed(run, force=False, holds="run.json") as temporary:
        (temporary / "run.json").touch()
        with pytest.raises(NearfarError, match="another command is writing it"):
            _engine.Output(run, holds="run.json", force=True, inputs=[])
    with pytest.raises(RuntimeError), claimed(run, force=True, holds="run.json") as temporary:
        raise RuntimeError
    assert sorted(file.name for file in tmp_path.iterdir()) == ["page.html", "run"]
    assert [file.name for file in run.iterdir()] == ["run.json"]
