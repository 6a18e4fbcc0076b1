"""Imports in ``python/nearfar`` follow the table of floors (layers) in ``ARCHITECTURE.md``.

Imports are read from the source; those inside functions and those for types alone count. A
module's parent packages, which Python loads with it, do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from nearfar import result

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "python"
TABLE: Final = re.compile(r"^\| floor \| modules \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)

Graph = dict[str, set[str]]


def floors(text: str) -> dict[str, int]:
    """The floor of each name in the table; the lowest is 0."""
    found = TABLE.search(text)
    assert found, "ARCHITECTURE.md has no table of floors"
    return {
        name: number
        for number, row in enumerate(found[1].splitlines())
        for name in re.findall(r"`(\w+)`", row)
    }


def sources(root: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name; the engine's stub stands for the engine."""
    found = {}
    for path in [*root.rglob("*.py"), *root.rglob("*.pyi")]:
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that a source imports; relative imports, of which there are none, are refused."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: write the whole name of the module"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                name = inner if inner in modules else node.module
                if name in modules:
                    yield str(name)


def graph(root: Path) -> Graph:
    """What each module imports."""
    modules = sources(root)
    return {
        name: set(imported(ast.parse(path.read_text(encoding="utf-8")), modules)) - {name}
        for name, path in modules.items()
    }


def table_name(module: str) -> str:
    """The name of a module in the table: its first part below the package."""
    return ".".join(module.split(".")[1:2]) or module


def upward_imports(found: Graph, known: Mapping[str, int]) -> list[str]:
    """Imports from a lower floor to a higher one."""
    return [
        f"{name} imports {other}"
        for name, others in found.items()
        for other in sorted(others)
        if known[table_name(other)] > known[table_name(name)]
    ]


@pytest.fixture(scope="module")
def known() -> dict[str, int]:
    return floors((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def test_every_module_has_a_floor(known: dict[str, int]) -> None:
    assert {table_name(name) for name in sources(PACKAGE)} == set(known)


def test_nothing_imports_from_a_higher_floor(known: dict[str, int]) -> None:
    assert upward_imports(graph(PACKAGE), known) == []


def test_imports_have_no_cycle() -> None:
    tuple(TopologicalSorter(graph(PACKAGE)).static_order())


def subclasses(base: type[result.Result]) -> Iterator[type[result.Result]]:
    for kind in base.__subclasses__():
        yield kind
        yield from subclasses(kind)


def test_pages_and_charts_named_by_results_exist() -> None:
    """Pages and charts are named as text, which neither Python nor mypy looks up."""
    for name in sources(PACKAGE):
        if name.count(".") == 1 and name != "nearfar.__main__":
            __import__(name)
    named = {kind: (kind.page, kind.chart) for kind in subclasses(result.Result)}
    assert sum(page is not None for page, _ in named.values()) >= 7
    for pair in named.values():
        for entry in filter(None, pair):
            assert entry.startswith("nearfar.report.") and callable(result.load(entry))
