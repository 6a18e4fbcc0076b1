"""Generated pages of the documentation list every key, command, option and module."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learnt
import reference

ROOT = Path(__file__).resolve().parents[1]


def keys(node: dict[str, Any], defs: dict[str, Any]) -> Iterator[str]:
    """Keys that a person can write, read from the schema without the code that makes the page."""
    text = json.dumps(node)
    for name in re.findall(r'"\$ref": "#/\$defs/(\w+)"', text):
        shape = defs[name]
        if name.startswith("Sourced") or shape.get("type") != "object":
            continue
        yield from shape["properties"]
        yield from keys(shape, defs)


def test_every_key_of_a_machine_file_is_listed() -> None:
    from nearfar import machine

    page = reference.machine_file()
    schema = machine.schema()
    wanted = set(keys(schema, schema["$defs"]))
    assert {"read_latency", "gc_start_free", "pages_per_block", "hint_fault"} <= wanted
    for key in wanted:
        assert f"| `{key}` |" in page or f".{key}]`" in page, key
    for section in ("[cpu]", "[cache.NAME]", "[tlb.first]", "[node.NAME.local]", "[flash]",
                    "[storage.NAME.hdd]", "[cost]"):  # fmt: skip
        assert f"## `{section}`" in page
    assert 'text such as `"2.4GHz"`, in Hz, kHz, MHz, GHz | yes |' in page
    assert "one of `dram`, `cxl`, `pmem`" in page
    assert "see the schema" not in page


def test_every_command_and_option_is_listed() -> None:
    from nearfar.cli import _reference

    page = _reference.write_markdown()
    for found in _reference.commands():
        assert f"# {found.words}\n" in page
        for name, _ in found.options:
            assert f"| `{name}` |" in page
    # Every row has the two cells of its table's head.
    for line in page.splitlines():
        if line.startswith("| `"):
            assert len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) == 3, line


def test_every_module_for_users_has_a_page() -> None:
    listed = reference.modules()
    assert {"nearfar.paging", "nearfar.tiering", "nearfar.result", "nearfar.numa.plan"} <= {*listed}
    assert not any("cli" in name or "._" in name for name in listed)
    page = reference.python()
    for name in listed:
        assert f"[{name}](api/{name}.md)" in page
        assert f".. automodule:: {name}\n" in reference.module(name)


def test_validation_shows_each_row() -> None:
    found = learnt.recorded()["numa"]
    page = reference.validation()
    assert page.count("\n| aliusM (004) |") == len(found)
    hold = sum(row["holds"] is True for row in found)
    judged = sum(row["holds"] is not None for row in found)
    assert f"\n## numa\n\n{hold} of {judged} rows hold" in page


def test_the_contents_name_pages_that_exist() -> None:
    text = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    listed = re.findall(r'"(docs/\w+|[A-Z]+)"', text[text.index("CONTENTS") :])
    assert len(listed) > 20
    for page in listed:
        assert (ROOT / f"{page}.md").is_file(), page
