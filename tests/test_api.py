"""The Python API: ``import nearfar`` offers each command as a function."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nearfar

ROOT = Path(__file__).resolve().parents[1]


def test_submodules_named_after_commands_are_callable(mixed: Path) -> None:
    from nearfar.paging import paging

    options = {"page_sizes": "4K,8K", "memory": "50%"}
    assert nearfar.paging(mixed, **options).rows == paging(mixed, **options).rows
    assert inspect.signature(nearfar.paging) == inspect.signature(paging)
    assert inspect.ismodule(nearfar.paging)
    assert nearfar.tiering.policies()
    commands = ["advise", "capture", "diff", "explain", "generate", "info", "report", "reproduce"]
    for command in [*commands, "ssd", "sweep", "tiering"]:
        assert callable(getattr(nearfar, command)), command
    assert not callable(nearfar.machine)


@pytest.mark.parametrize(
    "code",
    [
        "import nearfar; nearfar.generate('zipf', 'z.trace', refs=1000, pages=10)",
        "import nearfar.generate; nearfar.generate('zipf', 'z.trace', refs=1000, pages=10)",
        "from nearfar import generate; generate('zipf', 'z.trace', refs=1000, pages=10)",
        "from nearfar.generate import generate; generate('zipf', 'z.trace', refs=1000, pages=10)",
    ],
)
def test_every_way_of_importing_a_command_makes_it_callable(code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "z.trace" / "trace.json").is_file()


def test_a_type_checker_finds_misspelt_options_and_columns(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import nearfar\n"
        "from nearfar.paging import paging\n"
        "found = nearfar.paging('a.trace', page_sizes='4K')\n"
        "again = paging('a.trace', page_sizes='4K')\n"
        "print(found.rows[0]['tlb_misses'], again.rows[0]['frames'])\n"
        "nearfar.paging('a.trace', page_size='4K')\n"
        "print(found.rows[0]['tlb_miss'])\n"
    )
    # The cache of `make lint` has nearfar's modules. It keeps errors by path of the script, so
    # the path is relative to be the same in each run.
    flags = ["--strict", "--no-error-summary", "--config-file", ROOT / "pyproject.toml"]
    flags += ["--cache-dir", ROOT / ".mypy_cache"]
    command = [sys.executable, "-m", "mypy", *flags, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line.split(": ", 1) for line in done.stdout.splitlines() if ": error: " in line]
    assert [place for place, _ in errors] == ["script.py:6", "script.py:7"], done.stdout
    assert '"page_size"' in errors[0][1] and '"tlb_miss"' in errors[1][1]


def test_a_misspelt_hook_of_a_tiering_policy_is_an_error() -> None:
    from nearfar.tiering import Policy

    with pytest.raises(TypeError, match="Mine.hint_falt: no such hook; did you mean hint_fault?"):
        type("Mine", (Policy,), {"hint_falt": lambda self, memory, page, write: None})
    type("Mine", (Policy,), {"hint_fault": lambda self, memory, page, write: None, "note": print})


def test_a_result_converts_to_arrow_polars_and_pandas(mixed: Path) -> None:
    import polars
    import pyarrow

    found = nearfar.paging(mixed, page_sizes="4K", memory="50%")
    assert pyarrow.table(found) == found.to_arrow() == found.table
    assert polars.DataFrame(found).equals(found.to_polars())
    assert found.to_pandas()["frames"].tolist() == found.to_polars()["frames"].to_list()


def test_importing_loads_no_submodule_and_unknown_names_are_errors() -> None:
    code = "import sys, nearfar; print('scipy' in sys.modules, 'nearfar.paging' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    assert {"paging", "NearfarError"} <= set(dir(nearfar))
    assert not {"schema", "declared", "importlib", "paging_answers"} & set(dir(nearfar))
    with pytest.raises(AttributeError, match="no attribute 'pagign'"):
        _ = nearfar.pagign
