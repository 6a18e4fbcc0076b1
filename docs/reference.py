"""Writes the pages of the site that are generated from the program itself.

``docs/conf.py`` calls :func:`write` before Sphinx reads any page: commands (from the declarations
behind ``--help``), the machine file (from its JSON Schema), the papers' numbers beside ours (as
:mod:`learnt` recorded them) and the Python API (Sphinx reads the docstrings).
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learnt

#: Modules without a page of their own: commands, and parts of a module that has a page.
NOT_API = ("nearfar.cli", "nearfar.report", "nearfar.reproduce.", "nearfar.emit.")


def write(folder: Path) -> list[Path]:
    """Write every page to ``folder``. Returns their paths."""
    from nearfar.cli._reference import write_markdown

    pages = {
        "commands": write_markdown(),
        "machine-file": machine_file(),
        "validation": validation(),
        "python": python(),
        **{f"api/{name}": module(name) for name in modules()},
    }
    written = []
    for name, text in pages.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads a page again if the file is newer.
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


# --- the machine file


def machine_file() -> str:
    """Every section and key of a machine file, from the JSON Schema of its reader."""
    from nearfar import machine

    schema = machine.schema()
    parts = [
        "# Keys of a machine file",
        schema["description"] + " `nearfar machine schema` prints the JSON Schema that this page "
        "is made of; [machine.md](../../docs/machine.md) explains.",
        'A quantity is written `{ value = ..., source = "..." }`. What is not marked as needed '
        "may be left out.",
    ]
    for name, section in schema["properties"].items():
        if name == "description":
            continue
        parts += sections(f"{name}", section, schema["$defs"])
    return "\n\n".join(parts) + "\n"


def sections(path: str, node: dict[str, Any], defs: dict[str, Any]) -> Iterator[str]:
    """A section and its subsections: heading, description, table of keys."""
    resolved = resolve(node, defs)
    if "additionalProperties" in resolved and isinstance(resolved["additionalProperties"], dict):
        yield from sections(
            f"{path}.NAME",
            {**resolved["additionalProperties"], "description": node.get("description", "")},
            defs,
        )
        return
    if "oneOf" in resolved:
        for choice in resolved["oneOf"]:
            for key, inner in choice["properties"].items():
                merged = {**inner, "description": choice["description"]}
                yield from sections(f"{path}.{key}", merged, defs)
        return
    yield f"## `[{path}]`"
    yield node.get("description", resolved.get("description", ""))
    rows, inner = [], []
    for key, value in resolved["properties"].items():
        shape = resolve(value, defs)
        if "value" not in shape.get("properties", {}) and "properties" in shape:
            inner.append((key, value))
            continue
        need = "yes" if key in resolved.get("required", []) else ""
        rows.append(f"| `{key}` | {kind(shape, defs)} | {need} | {cell(value['description'])} |")
        # The keys of tables in a list get a section of their own.
        written = resolve(shape.get("properties", {}).get("value", {}), defs)
        items = resolve(written.get("items", {}), defs)
        if "properties" in items:
            inner.append((key, items))
    if rows:
        yield "\n".join(["| key | written | needed | meaning |", "|---|---|---|---|", *rows])
    for key, value in inner:
        yield from sections(f"{path}.{key}", value, defs)


def resolve(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """Follow references; of a nullable type, return the type without null."""
    for choice in node.get("anyOf", ()):
        if choice.get("type") != "null":
            return resolve(choice, defs)
    if "$ref" in node:
        return resolve(defs[node["$ref"].rsplit("/", 1)[1]], defs)
    return node


def kind(shape: dict[str, Any], defs: dict[str, Any]) -> str:
    """How a value is written, for the table of keys."""
    if "properties" in shape:
        shape = resolve(shape["properties"]["value"], defs)
    if "examples" in shape:
        # The pattern of a quantity ends in an optional fraction, spaces and a group of its units.
        units = re.search(r"\)\?\\s\*\((.*?)\)", shape.get("pattern", ""))
        listed = f", in {units[1].replace('|', ', ')}" if units else ""
        return f'text such as `"{shape["examples"][0]}"`{listed}'
    if "oneOf" in shape:
        # Alternatives: words, or sections with one key.
        words = [
            one["const"] if "const" in one else [*one["properties"]][0] for one in shape["oneOf"]
        ]
        return "one of " + ", ".join(f"`{word}`" for word in words)
    words = {"integer": "a whole number", "number": "a number", "string": "text"}
    if shape.get("type") == "array":
        return "a list"
    return words.get(str(shape.get("type")), "see the schema")


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("\n", " ").replace("|", "\\|")


# --- the papers' numbers


def validation() -> str:
    """Every published number and statement beside ours, as recorded in ``docs/found.json``."""
    from nearfar.report.reproduce import summary
    from nearfar.reproduce import Reproduced

    parts = [
        "# Validation",
        "What the papers publish and what `nearfar reproduce --all` finds, from the small captures "
        "in the repository. A row holds if ours lies within the tolerance, which is stated before "
        "anything is run ([reproduce.md](../../docs/reproduce.md)).",
    ]
    for study, rows in sorted(learnt.recorded().items()):
        parts += [f"## {study}", summary(Reproduced(rows, {})), learnt.table(study).rstrip()]
    return "\n\n".join(parts) + "\n"


# --- Python


def modules() -> list[str]:
    """Modules of the package that are for users, by name."""
    import nearfar

    found = pkgutil.walk_packages(nearfar.__path__, "nearfar.")
    return sorted(
        module.name
        for module in found
        if not module.name.startswith(NOT_API) and "._" not in module.name
    )


LEAD = (
    "Every command is a function of the same name. What it returns has `.table` (Arrow), "
    "`.to_polars()`, `.to_json()` and `.plot()` (Altair), prints as its answer and a small table "
    "(in a notebook with its chart), and, for the studies, has `.write(folder)`. A trace is a path "
    "or what `nearfar.open` gave; options of several values take a list, or text with commas. Bad "
    "input raises `nearfar.NearfarError` with the line that the command prints."
)


def python() -> str:
    """The page that lists the modules."""
    import importlib

    rows = []
    for name in modules():
        doc = (importlib.import_module(name).__doc__ or "").strip().split("\n\n")[0]
        summary = re.sub(r":\w+:`~?\.?([^`]*)`", r"`\1`", " ".join(doc.split()))
        rows.append(f"| [{name}](api/{name}.md) | {cell(summary)} |")
    return (
        "\n\n".join(
            [
                "# Python",
                LEAD,
                "\n".join(["| module | about |", "|---|---|", *rows]),
            ]
        )
        + "\n"
    )


def module(name: str) -> str:
    """The page of one module: Sphinx fills it from the docstrings."""
    return f"""# {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
   :ignore-module-all:
   :show-inheritance:
   :inherited-members: dict, list, Enum, str, NamedTuple, BaseException
```
"""
