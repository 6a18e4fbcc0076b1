"""What the sources in JSON share: strict reading, and the devices in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError


def is_json_with(text: str, key: str) -> bool:
    """Whether it looks like JSON that has this key."""
    return text.lstrip()[:1] in "[{" and f'"{key}"' in text


def mappings(path: Path, text: str, tool: str, key: str) -> Iterator[Mapping[str, Any]]:
    """Every mapping with ``key`` in what ``tool`` printed, at any depth.

    Raises:
        NearfarError: it is not JSON.
    """
    try:
        listed = json.loads(text)
    except json.JSONDecodeError as error:
        raise NearfarError(f"{path}: not JSON ({error}); save `{tool}` again") from None
    return _mappings(listed, key)


def _mappings(listed: Any, key: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(listed, dict):
        if key in listed:
            yield listed
        listed = listed.values()
    elif not isinstance(listed, list):
        return
    for item in listed:
        yield from _mappings(item, key)
