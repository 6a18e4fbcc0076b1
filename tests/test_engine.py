"""The engine's type stub agrees with the engine: names, parameters, types of simple results."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest

import nearfar
from conftest import HANG
from nearfar import _engine

STUB = ast.parse((Path(nearfar.__file__).parent / "_engine.pyi").read_text(encoding="utf-8"))
STUBS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}


def test_the_stub_matches_the_engine(tmp_path: Path) -> None:
    """By stubtest, which compares a stub with the built module."""
    # `__all__`, which a native module has and a stub need not.
    allowed = tmp_path / "allowed"
    allowed.write_text("nearfar._engine.__all__\n")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy.stubtest", "nearfar._engine", "--allowlist", allowed]
    command += ["--mypy-config-file", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert _engine.__version__ == version("nearfar")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("machine_builtin", ()),
        ("machine_schema", ()),
        ("schema", ()),
        ("capture_probe", ("nowhere",)),
    ],
)
def test_results_have_the_stubs_type(name: str, arguments: tuple[Any, ...]) -> None:
    returns = STUBS[name].returns
    assert returns is not None
    stated = eval(ast.unparse(returns))
    assert is_of(getattr(_engine, name)(*arguments), stated), f"{name} is not {stated}"


def test_access_times_of_a_machine_have_the_stubs_type() -> None:
    machine = _engine.Machine.load("desktop-nvm", "nowhere")
    times = machine.access_times()
    assert isinstance(times, _engine.AccessTimes)
    assert is_of((times.tlb_ns, times.dram_ns, times.stlb_ns), tuple[float, float, float | None])
    assert is_of(machine.io_ns("nvm-1x", [512, 4096]), list[float])


def is_of(value: Any, stated: Any) -> bool:
    """Whether `value` is of a type made of `list`, `tuple`, unions and plain classes."""
    origin, inner = typing.get_origin(stated), typing.get_args(stated)
    if origin is list:
        return type(value) is list and bool(value) and all(is_of(v, inner[0]) for v in value)
    if origin is tuple:
        return (
            type(value) is tuple
            and len(value) == len(inner)
            and all(is_of(v, t) for v, t in zip(value, inner, strict=True))
        )
    if origin is types.UnionType:
        return any(is_of(value, one) for one in inner)
    return type(value) is stated
