"""Makes configuration files, shell scripts and commands of systemd units from their lines."""

from __future__ import annotations

from collections.abc import Sequence


def config(comments: Sequence[str], body: Sequence[str]) -> str:
    """A configuration file with comments at its top."""
    return "\n".join([*(f"# {line}".rstrip() for line in comments), *body]) + "\n"


def script(comments: Sequence[str], body: Sequence[str]) -> str:
    """A script that stops at the first command that fails."""
    return "#!/bin/sh\n" + config(comments, ["set -eu", *body])


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
