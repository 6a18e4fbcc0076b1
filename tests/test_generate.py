"""Generators from Python and the command line; their statistics are tested in Rust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Run
from nearfar import generate
from nearfar.errors import NearfarError


def files(trace: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in trace.iterdir()}


def test_help_names_the_generators_and_those_that_take_an_option(nearfar):
    shown = "".join(nearfar("generate", "--help").stdout.split())  # names wrap at hyphens
    assert ",".join(generate.generators()) in shown
    assert "--alphaNUMBERSkew,0(even)to100(zipf,scrambled-zipf).[default:1]" in shown


def test_spellings_of_one_value_give_the_same_bytes(tmp_path, nearfar):
    given = {"refs": 100, "pages": 10, "page_bytes": 8192, "stride": 4096, "write_ratio": 0.5}
    one = files(generate.generate("strided", tmp_path / "one.trace", **given))
    line = "--refs 100 --pages 10 --page-bytes 8K --stride 4K --write-ratio 0.50"
    done = nearfar("generate", "strided", "-o", tmp_path / "two.trace", *line.split())
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "two.trace") == one
    command = json.loads(one["trace.json"])["source"]["command"]
    assert command[-2:] == ["--stride", "4096"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("zipf", {"alpha": float("nan")}, "--alpha: 'NaN'"),
        ("zipf", {"pages": 0}, "--pages: 0 is out of range"),
        ("zipf", {"refs": 0}, "--refs: 0 is out of range"),
        ("zipf", {"write_ratio": 1.5}, "--write-ratio: 1.5"),
        ("strided", {"stride": 0}, "--stride: '0'"),
        ("zipf", {"stride": 8}, "zipf takes no such option"),
        ("zipf", {"page_bytes": 4095}, "not a power of two"),
        ("mix", {"mix": "zipf"}, "is not name:weight"),
        ("zopf", {}, "choose one of zipf"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, name, arguments, says):
    arguments = {"refs": 10, "pages": 10, **arguments}
    with pytest.raises(NearfarError, match=says) as caught:
        generate.generate(name, tmp_path / "t.trace", **arguments)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_refused_command_keeps_the_earlier_trace(tmp_path, nearfar: Run):
    words = ["generate", "strided", "-o", tmp_path / "s.trace", "--refs", "100", "--pages", "10"]
    done = nearfar(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["info"]["pages_by_kinds"] == {"load": 10}
    done = nearfar(*words, "--force", "--stride", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("nearfar: error: --stride: '0' is not")
    assert (tmp_path / "s.trace" / "trace.json").is_file(), "a failed run removed the old trace"
