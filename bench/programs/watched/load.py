"""Start a program in a control group, fill it with data, and send requests at a steady rate.

usage: load.py PROGRAM GROUP FOLDER RATE COUNTER. Prints `ready PID`, then sends RATE requests a
second until it is terminated, and keeps their number in the file COUNTER (8 bytes). The popularity
of keys follows Zipf's law over blocks of :data:`BLOCK` values that were stored in sequence.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
#: Values, bytes of each, and values of a block, which are equally popular.
COUNT, BYTES, BLOCK = 30_000, 500, 8
#: Requests that are pipelined.
BATCH = 20
ZIPF_EXPONENT = 0.9
_LINES = (
    "import sys\n"
    f"values = [('%07d' % n) * {BYTES // 7} for n in range({COUNT})]\n"
    "for line in sys.stdin:\n    print(len(values[int(line)]), flush=True)\n"
)
_ARRAYS = (
    "import sys, numpy\n"
    f"values = numpy.random.default_rng(1).random(({COUNT}, 128))\n"
    "for line in sys.stdin:\n    print(values[int(line)].sum(), flush=True)\n"
)
_PERL = (
    f"$| = 1; my @values = map {{ sprintf('%07d', $_) x {BYTES // 7} }} 0 .. {COUNT - 1}; "
    "while (<STDIN>) { print substr($values[$_], 0, 9), qq(\\n) }"
)
_NODE = (
    "const values = new Map();"
    f"for (let n = 0; n < {COUNT}; n++) values.set(n, Buffer.alloc({BYTES}, 'v' + n).toString());"
    "gc(); require('readline').createInterface({input: process.stdin}).on('line', (line) => {"
    "const found = values.get(Number(line)); console.log(found.length + JSON.stringify(line)) })"
)
#: Programs that read a key from each line and print a line.
LINES: dict[str, list[str]] = {
    "python": [sys.executable, "-c", _LINES],
    "numpy": [sys.executable, "-c", _ARRAYS],
    "perl": ["perl", "-e", _PERL],
    "node": ["node", "--expose-gc", "-e", _NODE],
    "java": ["java", "-Xmx96m", "-XX:TieredStopAtLevel=1", "-cp", ".", "Values", str(COUNT)],
}
_TABLE = "create table t(id integer primary key, text text);"


class Program:
    """A running program; ``ask`` sends requests for a batch of keys and reads the answers."""

    def __init__(self, name: str, group: Path, folder: Path) -> None:
        self.folder, self.group = folder, group
        self.pid = 0
        self.ask: Callable[[list[int]], None]
        if name == "java":
            subprocess.run(["javac", "-d", str(folder), str(HERE / "Values.java")], check=True)
        if name in LINES:
            self._lines(self._start(LINES[name], pipes=True), "{}\n")
        elif name == "sqlite":
            child = self._start(["sqlite3", "-batch", ":memory:"], pipes=True)
            self._lines(child, "select length(text) from t where id = {};\n", self._rows())
        elif name == "postgres":
            self._postgres()
        elif name == "hot":
            child = self._start([str(folder / "hot"), "16", "64"], pipes=True)
            assert child.stdout is not None
            child.stdout.readline()
            self.ask = lambda keys: None
        else:
            getattr(self, f"_{name}")()

    def _start(self, words: list[str], *, pipes: bool = False) -> subprocess.Popen[bytes]:
        def enter() -> None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()))

        child = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=enter,
            cwd=self.folder,
        )
        self.pid = child.pid
        return child

    def _lines(self, child: subprocess.Popen[bytes], query: str, first: str = "") -> None:
        pipe, answers = child.stdin, child.stdout
        assert pipe is not None and answers is not None
        if first:
            pipe.write(first.encode())

        def ask(keys: list[int]) -> None:
            pipe.write("".join(map(query.format, keys)).encode())
            pipe.flush()
            for _ in keys:
                if not answers.readline():
                    raise SystemExit("it ended")

        self.ask = ask
        # Wait until the program has stored its data.
        ask([1])

    def _rows(self) -> str:
        made = (f"insert into t values({n}, '{_value(n)}');\n" for n in range(COUNT))
        return f"{_TABLE}\nbegin;\n{''.join(made)}commit;\n"

    def _postgres(self) -> None:
        place = max(Path("/usr/lib/postgresql").glob("*/bin"))
        data, user = str(self.folder / "data"), list[str]()
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody")
            user = ["setpriv", "--reuid=nobody", "--clear-groups"]
        words = [*user, str(place / "initdb"), "-D", data, "-A", "trust", "-U", "nobody", "-N"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)
        settings = [
            f"-cunix_socket_directories={self.folder}",
            "-clisten_addresses=",
            "-cshared_buffers=32MB",
        ]
        self._start([*user, str(place / "postgres"), "-D", data, *settings])
        server = self.pid
        psql = [str(place / "psql"), "-h", str(self.folder), "-U", "nobody", "-qAt", "postgres"]
        while subprocess.run([*psql, "-c", "select 1"], capture_output=True).returncode:
            time.sleep(0.2)
        # The client is not started in the group, because it is not to be watched.
        child = subprocess.Popen(psql, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines(child, "select length(text) from t where id = {};\n", self._rows())
        self.pid = server

    def _connected(self, port: int) -> socket.socket:
        while True:
            try:
                found = socket.create_connection(("127.0.0.1", port))
            except OSError:
                time.sleep(0.1)
                continue
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return found

    def _redis(self) -> None:
        port = _port()
        self._start(["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"])
        wire = self._connected(port)
        _store(wire, lambda key: f"SET {key} {_value(key)}\r\n", "+OK\r\n")
        self._wire(wire, "GET {}\r\n", lambda key: len(f"${BYTES}\r\n") + BYTES + 2)

    def _memcached(self) -> None:
        port = _port()
        words = ["memcached", "-p", str(port), "-m", "128", "-l", "127.0.0.1", "-t", "1"]
        self._start([*words, "-u", "nobody"])
        wire = self._connected(port)
        _store(wire, lambda key: f"set {key} 0 0 {BYTES}\r\n{_value(key)}\r\n", "STORED\r\n")
        self._wire(
            wire,
            "get {}\r\n",
            lambda key: len(f"VALUE {key} 0 {BYTES}\r\n") + BYTES + len("\r\nEND\r\n"),
        )

    def _nginx(self) -> None:
        port = _port()
        lines = "".join(f"{n} {_value(n)};\n" for n in range(COUNT))
        (self.folder / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {self.folder}/pid; error_log /dev/null crit;\n"
            "events {}\nhttp { access_log off; keepalive_requests 1000000000;\n"
            f"map_hash_max_size 65536; map_hash_bucket_size 1024; map $arg_k $value {{\n{lines}}}\n"
            f"server {{ listen 127.0.0.1:{port}; location / {{ return 200 $value; }} }} }}\n"
        )
        self._start(["nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf")])
        wire = self._connected(port)

        def ask(keys: list[int]) -> None:
            wire.sendall(
                "".join(f"GET /?k={key} HTTP/1.1\r\nHost: a\r\n\r\n" for key in keys).encode()
            )
            left, seen = len(keys), b""
            while left:
                seen += _more(wire, 1 << 18)
                while (end := seen.find(b"\r\n\r\n")) >= 0 and len(seen) >= end + 4 + BYTES:
                    seen, left = seen[end + 4 + BYTES :], left - 1

        self.ask = ask
        ask([1])

    def _wire(self, wire: socket.socket, query: str, length: Callable[[int], int]) -> None:
        """Ask by ``query``; the answer for a key has ``length`` bytes."""

        def ask(keys: list[int]) -> None:
            wire.sendall("".join(map(query.format, keys)).encode())
            left = sum(map(length, keys))
            while left > 0:
                left -= len(_more(wire, left))

        self.ask = ask
        ask([1])


def _store(wire: socket.socket, line: Callable[[int], str], answer: str) -> None:
    for at in range(0, COUNT, BATCH):
        wire.sendall("".join(map(line, range(at, at + BATCH))).encode())
        left = BATCH * len(answer)
        while left:
            left -= len(_more(wire, left))


def _more(wire: socket.socket, most: int) -> bytes:
    found = wire.recv(most)
    if not found:
        raise SystemExit("it ended")
    return found


def _value(key: int) -> str:
    """A text of :data:`BYTES` characters, of which a quarter are random hexadecimal digits."""
    draw = random.Random(key)
    return f"{draw.getrandbits(BYTES):0{BYTES // 4}x}".ljust(BYTES, "v")


def _port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


def keys() -> itertools.cycle[list[int]]:
    """Endless batches of keys by popularity."""
    draw = random.Random(2)
    blocks = list(range(COUNT // BLOCK))
    draw.shuffle(blocks)
    weights = [1 / rank**ZIPF_EXPONENT for rank in range(1, len(blocks) + 1)]
    chosen = draw.choices(blocks, weights, k=1 << 19)
    asked = [block * BLOCK + draw.randrange(BLOCK) for block in chosen]
    return itertools.cycle([asked[at : at + BATCH] for at in range(0, len(asked), BATCH)])


def main() -> None:
    """Start the program, and send requests until SIGTERM."""
    name, group, folder, rate, counter = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    program = Program(name, Path(group), Path(folder))
    print("ready", program.pid, flush=True)
    began, asked = time.monotonic(), 0
    with Path(counter).open("r+b", buffering=0) as file:
        for batch in keys():
            program.ask(batch)
            asked += len(batch)
            os.pwrite(file.fileno(), struct.pack("q", asked), 0)
            # A delay shifts the schedule: requests do not catch up.
            late = time.monotonic() - began - asked / float(rate)
            began += max(late, 0.0)
            time.sleep(max(-late, 0.0))


if __name__ == "__main__":
    main()
