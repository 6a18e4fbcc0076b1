"""Run commands at a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess

from conftest import until


class Terminal:
    """A command at a terminal, and what it has printed so far."""

    def __init__(self, words: list[str]) -> None:
        self.text = b""
        self.main, side = pty.openpty()
        environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
        self.child = subprocess.Popen(
            words, stdin=side, stdout=side, stderr=side, env=environment, close_fds=True
        )
        os.close(side)
        os.set_blocking(self.main, False)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.main)

    def read(self) -> bytes:
        """All that the command has printed so far."""
        try:
            while more := os.read(self.main, 65536):
                self.text += more
        except OSError:  # nothing now, or the other end is closed
            pass
        return self.text

    def end(self) -> int:
        """Wait until the command ends; its exit code."""

        def ended() -> bool:
            self.read()
            return self.child.poll() is not None

        until(ended, "the end of the command")
        self.read()
        return self.child.wait()
