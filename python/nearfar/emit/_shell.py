"""Shell of emitted scripts, and the same as one line of a systemd unit."""

from __future__ import annotations

from collections.abc import Sequence


def script(comments: Sequence[str], body: Sequence[str]) -> str:
    """A script that ends at the first command that fails."""
    return (
        "\n".join(["#!/bin/sh", *(f"# {line}".rstrip() for line in comments), "set -eu", *body])
        + "\n"
    )


def exec_line(lines: Sequence[str]) -> str:
    """The command of a unit (``ExecStart=``) that runs these lines."""
    # One line for systemd: `;` between commands, but none after `do`, a pattern of `case` or `;;`.
    text = ""
    for line in (line.strip() for line in lines):
        joint = " " if not text or text.endswith((" do", "*)", ";;")) else "; "
        text += joint + line
    # systemd expands $ and %; the shell is meant to have them.
    text = text.strip().replace("%", "%%").replace("$", "$$")
    return '/bin/sh -ec "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
