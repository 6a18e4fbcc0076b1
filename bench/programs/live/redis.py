"""A Redis server saves a dump while keys are written, and new servers load it; prints digests.

usage: redis.py FOLDER KEYS [LOADS]. LOADS new servers, one after another, must each load the keys
as of the start of the dump.
"""

import random
import socket
import subprocess
import sys
import time
from pathlib import Path

folder, keys = Path(sys.argv[1]), int(sys.argv[2])
loads = int(sys.argv[3]) if len(sys.argv) > 3 else 1


class Server:
    """A Redis server that has loaded the folder's dump, if there is one."""

    def __init__(self) -> None:
        """Start the server, and wait until it answers."""
        path = folder / "socket"
        self.process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                "0",
                "--unixsocket",
                path,
                "--dir",
                folder,
                "--save",
                "",
                "--enable-debug-command",
                "yes",
                "--daemonize",
                "no",
            ],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(3000):
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(str(path))
                break
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"the server ended with {self.process.returncode}") from None
                time.sleep(0.02)
        self.file = self.socket.makefile("rb")
        while self.ask("PING").startswith("-LOADING"):
            time.sleep(0.02)

    def encoded(self, *words: str | bytes) -> bytes:
        """Encode a command in Redis's protocol."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        body = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        return b"*%d\r\n%s" % (len(parts), body)

    def answer(self) -> str:
        """Read a reply other than a list."""
        line = self.file.readline()
        if line.startswith(b"$") and line != b"$-1\r\n":
            return self.file.read(int(line[1:]) + 2).decode().strip()
        if not line:
            raise SystemExit("the server is gone")
        return line.decode().strip()

    def ask(self, *words: str | bytes) -> str:
        """Send a command; return its reply."""
        self.socket.sendall(self.encoded(*words))
        return self.answer()

    def many(self, commands: list[tuple[str | bytes, ...]]) -> None:
        """Send commands in batches; exit if one is refused."""
        for at in range(0, len(commands), 500):
            part = commands[at : at + 500]
            self.socket.sendall(b"".join(self.encoded(*words) for words in part))
            for _ in part:
                if (reply := self.answer()).startswith("-"):
                    raise SystemExit(reply)

    def end(self) -> None:
        """Shut the server down without a dump."""
        self.socket.sendall(self.encoded("SHUTDOWN", "NOSAVE"))
        self.process.wait()


draw = random.Random(1)
first = Server()
first.many([("SET", f"key:{n}", draw.randbytes(400)) for n in range(keys)])
first.many([("HSET", f"hash:{n % 999}", f"field:{n}", draw.randbytes(60)) for n in range(keys)])
at_fork = first.ask("DEBUG", "DIGEST")
saving = first.ask("BGSAVE")
if not saving.startswith("+Background saving started"):
    raise SystemExit(saving)
first.many([("SET", f"key:{n}", draw.randbytes(400)) for n in range(0, keys, 2)])
first.many([("DEL", f"hash:{n}") for n in range(0, 999, 3)])
while "rdb_bgsave_in_progress:1" in (info := first.ask("INFO", "persistence")):
    time.sleep(0.02)
if "rdb_last_bgsave_status:ok" not in info:
    raise SystemExit("the dump failed")
print("at the fork", at_fork)
print("at the end", first.ask("DEBUG", "DIGEST"))
first.end()
wrong = 0
for _ in range(loads):
    other = Server()
    digest = other.ask("DEBUG", "DIGEST")
    wrong += digest != at_fork
    other.end()
print(f"{wrong} of {loads} loads were wrong")
raise SystemExit(wrong > 0)
