"""Writes what the engine declares as Python source (`make declared`) and as tables of the site.

The sources are one JSON text, ``nearfar._engine.schema()``, and the declarations in Python
(:data:`IN_PYTHON`). The results are:

* ``python/nearfar/declared.json`` and ``declared.pyi``: options and rows of all commands, as data
  and as types (:mod:`nearfar.declared`);
* tables of the site, in place of ``<!-- declared: WHAT -->`` in ``docs/*.md``, where WHAT is
  ``options COMMAND``, ``columns COMMAND [TABLE]``, ``names REGISTRY``, ``policies`` (of tiering),
  ``record CASE TABLE`` (what a case of the bench recorded: ``TABLES`` of its module),
  ``conform`` (what ``make conform`` knows to differ), ``learnt``, ``found STUDY [PAPER]``,
  ``vms STUDY`` (of the papers, ``docs/learnt.py``).

``tests/test_declared.py`` fails if a generated file is out of date.
"""

from __future__ import annotations

import functools
import importlib
import json
import keyword
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from nearfar.declared import module_name, table_names

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "python" / "nearfar" / "declared.py"

#: For each command with declarations in Python, the module with its ``TABLES`` (of rows) and,
#: unless the engine reads the options, its ``OPTIONS``.
IN_PYTHON = {
    "advise": "nearfar.advise.options",
    "apply": "nearfar.apply.options",
    "devices": "nearfar.devices.options",
    "diff": "nearfar.diff",
    "explain": "nearfar.explain_tables",
    "fit": "nearfar.fit.options",
    "info": "nearfar.info",
    "numa plan": "nearfar.numa.plan",
    "reproduce": "nearfar.reproduce._options",
    "run": "nearfar.live_result",
    "size": "nearfar.size.options",
    "watch": "nearfar.watch.options",
    "sweep": "nearfar.sweep.options",
    "thp": "nearfar.thp",
    "workload": "nearfar.workload",
}

#: The module below ``bench`` with the ``TABLES`` of a case, if it is not that of the case.
RECORDS = {
    "kernel-faults": "kernel_tables",
    "page-gain": "gain_tables",
    "guest-pages": "guest_tables",
}

_STUB = """# Types of what nearfar.declared holds. Made by `make declared`; not to be edited.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias, TypedDict

from nearfar.schema import MachineLike, Option, PolicyLike, Rows

_Names: TypeAlias = tuple[tuple[str, str], ...]

def module_name(command: str) -> str: ...
def table_names(table: str) -> tuple[str, str]: ...
"""

#: The Python type of each Arrow type.
_PYTHON = {"bool": "bool", "double": "float", "int64": "int", "string": "str"}

_MARKER = re.compile(r"<!-- declared: ([^>]+?) -->\n")


@functools.cache
def schema() -> dict[str, Any]:
    """All declarations: those of the engine, and those in Python in the same form."""
    from nearfar import _engine

    found: dict[str, Any] = json.loads(_engine.schema())
    for command, module in IN_PYTHON.items():
        made = _in_python(importlib.import_module(module))
        own = found["commands"].setdefault(command, made)
        if own is not made:
            own["tables"] = made["tables"] | own["tables"]
    return found


def _in_python(module: ModuleType) -> dict[str, Any]:
    from nearfar.declared import names

    registries = {value: name.lower() for name, value in vars(names).items() if name.isupper()}
    options = [
        {**asdict(one), "python": one.type, "registry": registries.get(one.choices, "")}
        for one in getattr(module, "OPTIONS", ())
    ]
    tables = {name: asdict(rows) for name, rows in getattr(module, "TABLES", {}).items()}
    for one in tables.values():
        one["keys"] = ["|".join(key) if isinstance(key, tuple) else key for key in one["keys"]]
        for column in one["columns"]:
            column["python"] = column["python"] or _PYTHON[column["arrow"]]
    return {"options": options, "tables": tables}


def tiering_policies() -> list[dict[str, Any]]:
    """The entries of the registry of tiering policies."""
    from nearfar import _engine

    found: list[dict[str, Any]] = json.loads(_engine.tiering_policies())
    return found


def as_json(declared: dict[str, Any]) -> str:
    """The JSON of :mod:`nearfar.declared`: one option or column in a line, without defaults."""
    commands = []
    for command, one in declared["commands"].items():
        tables = []
        for name, table in one["tables"].items():
            keys = [key.split("|") if "|" in key else key for key in table["keys"]]
            rest = {"keys": keys, "metrics": dict(table["metrics"]), "seed": table["seed"]}
            columns = _lines(map(_column, table["columns"]))
            tables.append(f'"{name}": {{"columns": [{columns}], {_json(rest)[1:]}')
        options = _lines(map(_option, one["options"]))
        commands.append(
            f'"{command}": {{"options": [{options}], "tables": {{{", ".join(tables)}}}}}'
        )
    registries = [
        f'"{name}": [{_lines(entries)}]' for name, entries in declared["registries"].items()
    ]
    parts = ",\n".join(registries), ",\n".join(commands)
    return f'{{"registries": {{\n{parts[0]}\n}}, "commands": {{\n{parts[1]}\n}}}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(values: Iterable[Any]) -> str:
    return ",".join(f"\n {_json(value)}" for value in values)


def _given(values: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The values of these names, without empty ones and defaults."""
    defaults = {"open": True, "recorded": True, "required": False, "argument": False}
    return {
        name: values[name]
        for name in names
        if values[name] != defaults.get(name) and values[name] not in (None, "", [], ())
    }


def _option(option: dict[str, Any]) -> dict[str, Any]:
    names = ["name", "what", "shown", "required", "metavar", "open", "recorded", "argument"]
    names.append("registry" if option["registry"] else "choices")
    given = {"type": option["python"], **_given(option, names)}
    return given | ({} if option["default"] is None else {"default": option["default"]})


def _column(column: dict[str, Any]) -> dict[str, Any]:
    given = {name: column[name] for name in ("name", "arrow", "nullable", "unit", "what")}
    return given | _given(column, ["title"])


def stub(declared: dict[str, Any]) -> str:
    """The stub with the types, formatted."""
    parts = [_STUB, "class names:"]
    parts += [f"    {name.upper()}: _Names" for name in declared["registries"]]
    for command, one in declared["commands"].items():
        parts.append(f"class {module_name(command)}:")
        # Required options and arguments are parameters of the function itself.
        given = [
            option for option in one["options"] if not option["required"] and not option["argument"]
        ]
        parts += ["    class Options(TypedDict, total=False):"]
        parts += [f"        {option['name']}: {option['python']}" for option in given] or [
            "        ..."
        ]
        parts.append("    OPTIONS: Final[tuple[Option, ...]]")
        for name, table in one["tables"].items():
            rows, row = table_names(name)
            types = {
                column["name"]: column["python"] + (" | None" if column["nullable"] else "")
                for column in table["columns"]
            }
            if any(map(keyword.iskeyword, types)):
                # A keyword cannot be an attribute of a class.
                cells = ", ".join(f"{name!r}: {type_}" for name, type_ in types.items())
                parts.append(f'    {row} = TypedDict("{row}", {{{cells}}})')
            else:
                parts.append(f"    class {row}(TypedDict):")
                parts += [f"        {name}: {type_}" for name, type_ in types.items()]
            parts.append(f"    {rows}: Final[Rows]")
    return _formatted("\n".join(parts))


def _formatted(text: str) -> str:
    """Format with ruff: sort imports, remove unused ones, wrap lines."""
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        text = subprocess.run(
            [
                ruff,
                *command,
                "--config",
                ROOT / "pyproject.toml",
                "--stdin-filename",
                SOURCE.with_suffix(".pyi"),
                "-",
            ],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def with_tables(text: str, declared: dict[str, Any]) -> str:
    """The text of a page, with a table in place of each marker."""
    return _MARKER.sub(lambda marker: table(marker[1], declared), text)


def table(what: str, declared: dict[str, Any]) -> str:
    """The Markdown table that the marker ``what`` names."""
    kind, _, name = what.partition(" ")
    if kind == "options":
        lines = ["| option | default | |", "|---|---|---|"]
        for option in declared["commands"][name]["options"]:
            lines.append(_option_row(option))
    elif kind == "columns":
        command, table = (name, "rows") if name in declared["commands"] else name.rsplit(" ", 1)
        columns = declared["commands"][command]["tables"][table]["columns"]
        lines = ["| column | unit | |", "|---|---|---|"]
        lines += [f"| `{one['name']}` | {one['unit']} | {_cell(one['what'])} |" for one in columns]
    elif kind == "policies":
        lines = ["| policy | is | follows | leaves out | not for |", "|---|---|---|---|---|"]
        keys = ("what", "follows", "leaves_out", "not_for")
        for policy in tiering_policies():
            lines.append(f"| `{policy['name']}` | {' | '.join(_cell(policy[k]) for k in keys)} |")
    elif kind == "record":
        sys.path.insert(0, str(ROOT / "bench"))
        case, table = name.split()
        module = RECORDS.get(case, f"cases.{case.replace('-', '_')}")
        made: str = importlib.import_module(module).TABLES[table]()
        return made
    elif kind in ("learnt", "found", "vms"):
        sys.path.insert(0, str(ROOT / "docs"))
        learnt = importlib.import_module("learnt")
        tables = {"learnt": learnt.summary, "found": learnt.table, "vms": learnt.in_vms}
        text: str = tables[kind](*filter(None, [name]))
        return text
    elif kind == "conform":
        sys.path.insert(0, str(ROOT / "tests"))
        listed: str = importlib.import_module("conform").reasons()
        return listed
    elif kind == "names":
        lines = [f"| {name.replace('_', ' ')} | |", "|---|---|"]
        lines += [f"| `{entry}` | {_cell(text)} |" for entry, text in declared["registries"][name]]
    else:
        raise SystemExit(f"declared: {what}: is nothing that is declared")
    return "\n".join(lines) + "\n"


def _option_row(option: dict[str, Any]) -> str:
    default = option["default"]
    if option["required"]:
        shown = "must be given"
    elif default is None or default is False:
        shown = option["shown"] or "off"
    elif default is True:
        shown = "on"
    else:
        shown = f"`{','.join(map(str, default)) if isinstance(default, list) else default}`"
    text = _cell(option["what"])
    if option["choices"] and not option["open"]:
        names = ", ".join(f"`{name}`" for name, _ in option["choices"])
        text = f"{text} One of: {names}."
    flag = "--" + option["name"].rstrip("_").replace("_", "-")
    name = option["metavar"] if option["argument"] else flag
    return f"| `{name}` | {shown} | {text} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def files(declared: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Every generated file, with its content."""
    yield SOURCE.with_suffix(".json"), as_json(declared)
    yield SOURCE.with_suffix(".pyi"), stub(declared)


def main() -> None:
    """Write every file that differs."""
    for path, text in files(schema()):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
