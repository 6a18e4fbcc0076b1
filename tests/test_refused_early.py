"""Commands refuse wrong options and outputs before they simulate, record or measure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import DATA, Run, refused
from nearfar.errors import NearfarError
from nearfar.output import check_output
from test_workload import short

GNUGO, REDIS, PIGZ = (
    DATA / "captures" / f"{name}.trace" for name in ("gnugo", "redis", "pigz-45-pages")
)

#: Replaces all long work by an exit with code 70.
NO_WORK = """
import importlib, os
from nearfar import _engine

def work(*args, **options):
    os._exit(70)

for name in ("paging", "filter_view", "ssd", "tiering_run", "export_trace"):
    assert hasattr(_engine, name), name
    setattr(_engine, name, work)
importlib.import_module("nearfar.measure").measure = work
importlib.import_module("nearfar.workload").make_inputs = work
"""

ADVISE = ["advise", GNUGO, "--machine", "optane-ssd"]


@pytest.mark.parametrize(("words", "says"), [
    ([*ADVISE, "--emit", "qemu"], "--emit: 2 files to make; give -o FOLDER"),
    ([*ADVISE, REDIS, "--storage", "nvme", "--emit", "qemu"], "--emit: 2 files to make"),
    ([*ADVISE, "--storage", "nvme", "--memory", "40%,50%", "--emit", "qemu"], "2 files"),
    ([*ADVISE, "--emit", "numactl"], "--emit: `nearfar advise` has no emitter 'numactl'"),
    ([*ADVISE, "--slowdown", "x"], "--slowdown: 'x' is not"),
    ([*ADVISE, "--model", "x"], "--model: 'x' is not a model"),
    ([*ADVISE, "--html", "new.html", "--memory", "1%,1.1%,...,30%"], "more than one page holds"),
    ([*ADVISE, "--html", "taken.html"], "taken.html: exists already"),
    ([*ADVISE, "--out", "/dev/null/new"], "/dev/null is not a folder"),
    (["ssd", GNUGO, "--html", "new.html", "--epf", "none", "--dram",
      ",".join(f"{size}M" for size in range(1, 202))], "more than one page holds"),
    (["paging", GNUGO, "--out", "taken.html"], "taken.html: exists already"),
    (["tiering", "--out", "taken.html"], "taken.html: exists already"),
    (["tiering", "--html", "taken.html"], "taken.html: exists already"),
    (["export", GNUGO, "--format", "csv", "--filter", "cache", "-o", "taken.html"], "taken.html"),
    (["export", GNUGO, "--format", "oracle-general", "--filter", "cache", "-o", "-"], "seek"),
    (["export", GNUGO, "--format", "csw", "--filter", "cache", "-o", "new"], "did you mean csv"),
    (["machine", "measure"], "/dev/null"),  # the tests' XDG_CONFIG_HOME
    (["machine", "measure", "-o", "taken.html"], "taken.html: exists already"),
    (["machine", "measure", "--quick"], "need -o FILE"),
    (["workload", "capture", "new.toml", "taken.toml", "-o", "."], "taken.trace: exists already"),
])  # fmt: skip
def test_wrong_options_and_outputs_are_refused_before_the_work(
    words: list[object], says: str, nearfar: Run, tmp_path: Path
) -> None:
    (tmp_path / "taken.html").write_text("mine")
    shutil.copytree(GNUGO, tmp_path / "taken.trace")
    for name in ("new", "taken"):
        (tmp_path / f"{name}.toml").write_text(short())
    refused(nearfar(*words, first=f"{NO_WORK}\nos.chdir({str(tmp_path)!r})"), says)
    names = ["new.toml", "taken.html", "taken.toml", "taken.trace"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert (tmp_path / "taken.html").read_text() == "mine"


def test_an_output_in_a_read_only_folder_is_refused() -> None:
    with pytest.raises(NearfarError, match="/proc/new/app.run: /proc does not accept new files"):
        check_output(Path("/proc/new/app.run"), force=False, holds="run.json")
