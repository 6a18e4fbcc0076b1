"""What the engine declares, as Python source (`make declared`) and as tables of the site.

Everything is made of one JSON text, ``nearfar._engine.schema()``, and of :data:`IN_PYTHON`, the
declarations of commands whose home is Python:

* ``python/nearfar/declared/COMMAND.py``: options and rows of a command as types and as data;
* tables of the site, in place of ``<!-- declared: WHAT -->`` in ``docs/*.md``, where WHAT is
  ``options COMMAND``, ``columns COMMAND [TABLE]``, ``names REGISTRY``, ``policies`` (of tiering),
  ``record CASE TABLE`` (what a case of the bench recorded: ``TABLES`` of :data:`RECORDS`),
  ``conform`` (what ``make conform`` knows to differ), ``learnt``, ``found STUDY [PAPER]`` (of the
  papers, ``docs/learnt.py``).

``tests/test_declared.py`` fails when running this again would change a file.
"""

from __future__ import annotations

import importlib
import json
import keyword
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "python" / "nearfar" / "declared"

#: Modules that hold ``TABLES`` where rows are declared and, unless the engine reads the options,
#: ``OPTIONS``, by command.
IN_PYTHON = {
    "advise": "nearfar.advise.options",
    "apply": "nearfar.apply.options",
    "diff": "nearfar.diff",
    "explain": "nearfar.explain",
    "fit": "nearfar.fit.options",
    "info": "nearfar.info",
    "numa plan": "nearfar.numa.plan",
    "reproduce": "nearfar.reproduce._options",
    "run": "nearfar.live_result",
    "sweep": "nearfar.sweep.options",
    "workload": "nearfar.workload",
}

#: Modules below ``bench`` that hold ``TABLES`` of what a case recorded, by case.
RECORDS = {
    "kernel-faults": "kernel_tables",
    "mglru-guest": "cases.mglru_guest",
    "page-gain": "gain_tables",
    "guest-pages": "guest_tables",
    "real-programs": "cases.real_programs",
    "live": "cases.live",
    "epf": "cases.epf",
}

_HEAD = '''"""{what}. Made by ``make declared``; not to be edited."""

from __future__ import annotations

{imports}
'''

#: Types of Arrow in Python.
_PYTHON = {"bool": "bool", "double": "float", "int64": "int", "string": "str"}

_MARKED = re.compile(r"<!-- declared: ([^>]+?) -->\n")


def schema() -> dict[str, Any]:
    """What is declared: by the engine, and in Python in the same form."""
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
    """What the registry of tiering policies holds."""
    from nearfar import _engine

    found: list[dict[str, Any]] = json.loads(_engine.tiering_policies())
    return found


def source(command: str, declared: dict[str, Any]) -> str:
    """The module of a command, as ruff formats it."""
    options, tables = declared["options"], declared["tables"]
    types = [option["python"] for option in options]
    imports = []
    if any("Sequence" in one or "Mapping" in one for one in types):
        names = [name for name in ("Mapping", "Sequence") if any(name in one for one in types)]
        imports.append(f"from collections.abc import {', '.join(names)}")
    if any("Path" in one for one in types):
        imports.append("from pathlib import Path")
    imports.append("from typing import Final, TypedDict")
    if any(option["registry"] for option in options):
        imports.append("from nearfar.declared import names")
    names = ["Option"] if options else []
    if tables:
        names = ["Column", *names, "Rows"]
    names += [alias for alias in ("MachineLike", "PolicyLike") if any(alias in t for t in types)]
    imports.append(f"from nearfar.schema import {', '.join(names)}")
    parts = [
        _HEAD.format(what=f"Options and rows of ``nearfar {command}``", imports="\n".join(imports))
    ]
    if options:
        parts.append(_options(command, options))
    for name, table in tables.items():
        parts.append(_rows(command, "" if name == "rows" else name, table))
    return _formatted("\n\n".join(parts))


class _Name(str):
    """Source that is written as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def _options(command: str, options: list[dict[str, Any]]) -> str:
    lines = [
        "class Options(TypedDict, total=False):",
        f'    """Options of ``nearfar {command}``, by name."""',
        "",
    ]
    # What must be given is a parameter of the function's own, so that type checkers miss it.
    given = [option for option in options if not option["required"] and not option["argument"]]
    lines += [f"    {option['name']}: {option['python']}" for option in given]
    lines += ["", "", "OPTIONS: Final = ("]
    for option in options:
        given = {
            "type": option["python"],
            "what": option["what"],
            "default": option["default"],
            "shown": option["shown"],
            "required": option["required"],
            "metavar": option["metavar"],
            "choices": _Name(f"names.{option['registry'].upper()}")
            if option["registry"]
            else tuple(tuple(one) for one in option["choices"]),
            "open": option["open"],
            "recorded": option["recorded"],
            "argument": option["argument"],
        }
        usual = {
            "default": None,
            "shown": "",
            "required": False,
            "metavar": "",
            "choices": (),
            "open": True,
            "recorded": True,
            "argument": False,
        }
        words = [repr(option["name"])]
        words += [
            f"{key}={value!r}"
            for key, value in given.items()
            if key not in usual or value != usual[key]
        ]
        lines.append(f"    Option({', '.join(words)}),")
    return "\n".join([*lines, ")"])


def _rows(command: str, name: str, table: dict[str, Any]) -> str:
    kind = "".join(part.title() for part in name.split("-")) + "Row"
    constant = f"{name.replace('-', '_').upper()}_ROWS" if name else "ROWS"
    of = f"the table ``{name}`` of ``nearfar {command}``" if name else f"``nearfar {command}``"
    types = {
        column["name"]: column["python"] + (" | None" if column["nullable"] else "")
        for column in table["columns"]
    }
    if any(map(keyword.iskeyword, types)):
        # A word of the language is no name in a class.
        cells = ", ".join(f"{name!r}: {type_}" for name, type_ in types.items())
        lines = [f'{kind} = TypedDict("{kind}", {{{cells}}})', f'{kind}.__doc__ = "A row of {of}."']
    else:
        lines = [f"class {kind}(TypedDict):", f'    """A row of {of}."""', ""]
        lines += [f"    {name}: {type_}" for name, type_ in types.items()]
    lines += ["", "", f"{constant}: Final = Rows(", "    columns=("]
    for column in table["columns"]:
        words = [column[key] for key in ("name", "arrow", "nullable", "unit", "what")]
        title = f", title={column['title']!r}" if column["title"] else ""
        lines.append(f"        Column({', '.join(map(repr, words))}{title}),")
    keys = tuple(tuple(key.split("|")) if "|" in key else key for key in table["keys"])
    lines += ["    ),", f"    keys={keys!r},", f"    metrics={dict(table['metrics'])!r},"]
    if table["seed"]:
        lines.append(f"    seed={table['seed']!r},")
    return "\n".join([*lines, ")"])


def _formatted(text: str) -> str:
    """Formatted, imports in order, long texts cut."""
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        text = subprocess.run(
            [
                ruff,
                *command,
                "--config",
                ROOT / "pyproject.toml",
                "--stdin-filename",
                SOURCE / "made.py",
                "-",
            ],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


def with_tables(text: str, declared: dict[str, Any]) -> str:
    """The text of a page, with a table in place of each mark."""
    return _MARKED.sub(lambda mark: table(mark[1], declared), text)


def table(what: str, declared: dict[str, Any]) -> str:
    """A table of the docs, as Markdown."""
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
        made: str = importlib.import_module(RECORDS[case]).TABLES[table]()
        return made
    elif kind in ("learnt", "found"):
        sys.path.insert(0, str(ROOT / "docs"))
        learnt = importlib.import_module("learnt")
        text: str = learnt.summary() if kind == "learnt" else learnt.table(name)
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
        text = f"{text.rstrip('.')}: {names}"
    flag = "--" + option["name"].rstrip("_").replace("_", "-")
    name = option["metavar"] if option["argument"] else flag
    return f"| `{name}` | {shown} | {text} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def names(registries: dict[str, list[list[str]]]) -> str:
    """The module of the registries."""
    parts = [_HEAD.format(what="Names to choose from", imports="from typing import Final")]
    for name, entries in registries.items():
        parts.append(f"{name.upper()}: Final = {tuple(tuple(one) for one in entries)!r}")
    return _formatted("\n\n".join(parts))


def files(declared: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Every file that is made, with what belongs in it."""
    yield SOURCE / "names.py", names(declared["registries"])
    for command, one in declared["commands"].items():
        yield SOURCE / f"{_module(command)}.py", source(command, one)


def _module(command: str) -> str:
    """The name of the module of a command."""
    name = command.replace(" ", "_").replace("-", "_")
    return name + "_" if keyword.iskeyword(name) else name


def main() -> None:
    """Write every file that differs."""
    for path, text in files(schema()):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
