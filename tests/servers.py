"""Start, query and end servers under ``nearfar run``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ends
from chaos_commands import alive, children
from conftest import HANG


@dataclass
class Server:
    """A server under ``nearfar run``.

    Attributes:
        launcher: the process of ``nearfar run``.
        reader: read end of the pipe that is standard output of all processes of the server.
        said: standard error of the launcher, and of the server if it redirects none.
    """

    launcher: subprocess.Popen[bytes]
    reader: int
    said: IO[str]

    def end(self) -> tuple[int, list[str]]:
        """Wait until all processes end; exit code, and standard error without the summary."""
        hang = not ends.drained(self.reader)
        code = self.launcher.wait(timeout=HANG)
        self.said.seek(0)
        reasons = ends.without_summary(self.said.read())
        assert not hang, f"processes run on; standard error: {reasons}"
        return code, reasons


@contextmanager
def server(options: str, words: list[str]) -> Iterator[Server]:
    """Start a server; kill its remaining processes at the end."""
    reader, writer = os.pipe()
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as said:
        command = [sys.executable, "-m", "nearfar", "run", *options.split(), "--", *words]
        launcher = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=writer, stderr=said, start_new_session=True
        )
        os.close(writer)
        try:
            yield Server(launcher, reader, said)
        finally:
            os.close(reader)
            for pid in [*children(launcher.pid), launcher.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()


def until(condition: Callable[[], object], at: Server | None, what: str) -> None:
    """Wait until the condition is true; fails at once when the run has ended."""
    end = time.monotonic() + ends.PATIENCE
    while not condition():
        if at is not None and at.launcher.poll() is not None:
            raise AssertionError(f"{what}: the run has ended: {at.end()}")
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def gone(pid: int) -> None:
    """Wait until a process ends that need not be a child of this one."""
    until(lambda: not alive(pid), None, f"process {pid} ends")


class Redis:
    """A connection to a Redis server at a socket in a folder."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(HANG)
        self.socket.connect(str(folder / "socket"))
        self.file = self.socket.makefile("rb")

    @classmethod
    def listening(cls, folder: Path, at: Server | None) -> Redis:
        """A connection as soon as the server listens, which is after its socket exists."""
        found: list[Redis] = []

        def connects() -> bool:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                found.append(cls(folder))
            return bool(found)

        until(connects, at, "redis-server listens")
        return found[0]

    @staticmethod
    def words(folder: Path) -> list[str]:
        """The command that starts such a server."""
        options = "--port 0 --save --appendonly no --enable-debug-command yes --unixsocket"
        log = ["--logfile", str(folder / "log"), "--dir", str(folder)]
        return ["redis-server", *options.split(), str(folder / "socket"), *log]

    def ask(self, *words: object) -> str:
        """Send a command; its answer."""
        parts = [str(word).encode() for word in words]
        text = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(b"*%d\r\n%s" % (len(parts), text))
        line = self.file.readline().decode().rstrip()
        assert line and line[0] in "+:$", line
        if line == "$-1" or line[0] != "$":
            return line[1:]
        return self.file.read(int(line[1:]) + 2).decode()

    def fill(self, count: int) -> None:
        """Set ``count`` keys to different values of 1,000 bytes."""
        script = (
            "for i = ARGV[1], ARGV[2] do "
            "redis.call('SET', 'key:' .. i, string.rep(redis.sha1hex(i .. ARGV[3]), 25)) end"
        )
        for start in range(0, count, 2000):
            self.ask("EVAL", script, 0, start, min(start + 1999, count - 1), "first")
