"""Shell lines as a script, or as the command of a systemd unit."""

from __future__ import annotations

from collections.abc import Sequence


def script(comments: Sequence[str], body: Sequence[str]) -> str:
    """A script that stops at the first command that fails."""
    lines = ["#!/bin/sh", *(f"# {line}".rstrip() for line in comments), "set -eu", *body]
    return "\n".join(lines) + "\n"


def exec_line(lines: Sequence[str]) -> str:
    """The command of a unit (``ExecStart=``) that runs these lines."""
    # Join lines with `;`, except after `do`, a `case` pattern or `;;`.
    text = ""
    for line in (line.strip() for line in lines):
        separator = " " if not text or text.endswith((" do", "*)", ";;")) else "; "
        text += separator + line
    # Escape $ and %, which systemd would expand.
    text = text.strip().replace("%", "%%").replace("$", "$$")
    return '/bin/sh -ec "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
