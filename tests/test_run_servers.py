"""``nearfar run``: servers whose first process is killed, or forks, give no wrong answer."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ends
import servers
from chaos_commands import children
from conftest import HANG
from servers import Redis, Server, gone, server, until
from test_run_programs import needs
from tiers import needs_userfaultfd

pytestmark = needs_userfaultfd


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name that other users may enter."""
    with tempfile.TemporaryDirectory(prefix="nearfar-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def first(at: Server, program: str) -> int:
    """The server's first process."""
    found = [pid for pid in children(at.launcher.pid) if _comm(pid).startswith(program)]
    return found[0]


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# --- Redis


@contextmanager
def redis(at: Path, options: str, keys: int) -> Iterator[tuple[Server, Redis]]:
    """A server with ``keys`` keys, most of them in far memory."""
    with server(options, Redis.words(at)) as running:
        client = Redis.listening(at, running)
        client.fill(keys)
        yield running, client


def digest_of_dump(at: Path) -> str:
    """The digest of a dump that a server without nearfar has loaded."""
    (at / "socket").unlink(missing_ok=True)
    alone = subprocess.Popen(Redis.words(at), stdout=subprocess.DEVNULL)
    try:
        client = Redis.listening(at, None)
        until(lambda: "\nloading:0" in client.ask("INFO", "persistence"), None, "a dump is loaded")
        return client.ask("DEBUG", "DIGEST")
    finally:
        alone.kill()
        alone.wait()


def check_dump(options: str, keys: int, folder: Path) -> None:
    """Check that the dump by a forked child has the data at the time of the fork."""
    needs("redis-server")
    with redis(folder, options.replace("FAR", str(folder / "far")), keys) as (running, client):
        digest = client.ask("DEBUG", "DIGEST")
        client.ask("BGSAVE")
        number = 0
        while "rdb_bgsave_in_progress:0" not in client.ask("INFO", "persistence"):
            for _ in range(50):
                number = (number + 7919) % keys
                client.ask("SET", f"key:{number}", "overwritten" * 90)
        assert "rdb_last_bgsave_status:ok" in client.ask("INFO", "persistence")
        client.socket.sendall(b"SHUTDOWN NOSAVE\r\n")
        assert running.end() == (0, [])
    assert digest_of_dump(folder) == digest


def test_redis_saves_the_data_at_the_fork(folder: Path) -> None:
    check_dump("--fast 6M --far-size 128M --far file:FAR", 30_000, folder)


@pytest.mark.long("much memory")
def test_redis_saves_much_data_as_at_the_fork(folder: Path) -> None:
    check_dump("--fast 32M --far file:FAR", 200_000, folder)


@pytest.mark.parametrize("far", ["zstd", "shm"])
@pytest.mark.long("servers whose processes are killed")
def test_a_dump_is_right_if_redis_is_killed_while_saving(far: str, folder: Path) -> None:
    """The saving child ends when it reports to the killed Redis; a finished dump is right."""
    needs("redis-server")
    with redis(folder, f"--fast 6M --far-size 128M --far {far}", 20_000) as (running, client):
        digest = client.ask("DEBUG", "DIGEST")
        client.ask("BGSAVE")
        os.kill(first(running, "redis-server"), signal.SIGKILL)
        assert running.end() == (137, [])
    assert not (folder / "dump.rdb").exists() or digest_of_dump(folder) == digest


# --- nginx

#: Few, as nginx sorts its locations by insertion, which takes long in little memory.
PLACES = 300


def body(number: int) -> str:
    """The answer for a location."""
    return (f"{number}-{number * 2654435761 % 2**32:08x};" * 250)[:3000]


def conf(folder: Path) -> str:
    """The configuration of nginx; all answers but one file are in memory."""
    places = "".join(
        f'location = /{number} {{ return 200 "{body(number)}"; }}\n' for number in range(PLACES)
    )
    (folder / "file").write_text("".join(map(body, range(200))))
    return f"""
daemon off; worker_processes 3; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fast; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen unix:{folder}/socket; root {folder};
{places} }}
}}
"""


def get(folder: Path, place: str) -> str | None:
    """The server's answer; None if it is missing or incomplete."""
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(HANG)
        try:
            client.connect(str(folder / "socket"))
            client.sendall(f"GET /{place} HTTP/1.0\r\n\r\n".encode())
            with client.makefile("rb") as stream:
                answer = stream.read().decode(errors="replace")
        except OSError:
            return None
    head, _, text = answer.partition("\r\n\r\n")
    length = re.search(r"Content-Length: (\d+)", head)
    if length is None or len(text) < int(length[1]):
        return None
    assert " 200 " in head, head
    return text


@pytest.mark.parametrize("far", ["zstd", "shm"])
@pytest.mark.long("servers whose processes are killed")
def test_nginx_answers_without_its_master(far: str, folder: Path) -> None:
    """New workers outlive the master, and all their answers are right."""
    needs("nginx")
    (folder / "conf").write_text(conf(folder))
    words = ["nginx", "-c", str(folder / "conf"), "-e", str(folder / "log")]
    expected = {str(number): body(number) for number in range(PLACES)}
    expected["file"] = (folder / "file").read_text()
    draw = random.Random(1)
    with server(f"--fast 1M --far-size 64M --far {far}", words) as running:
        until(lambda: get(folder, "7") == body(7), running, "nginx answers")
        master = first(running, "nginx")
        old = set(children(master))
        for place in sorted(expected):
            assert get(folder, place) == expected[place], place
        # The master makes new workers, and is killed before it ends the old ones.
        os.kill(master, signal.SIGHUP)
        end = time.monotonic() + ends.PATIENCE
        while not (new := set(children(master)) - old):
            assert time.monotonic() < end, "there are no new workers"
        os.kill(master, signal.SIGKILL)
        answered = 0
        for place in draw.choices(sorted(expected), k=1000):
            found = get(folder, place)
            assert found in (None, expected[place]), place
            answered += found is not None
        assert answered == 1000, f"{answered} of 1000 were answered; alive: {_alive(new)}"
        for pid in _alive(new | old):
            os.kill(pid, signal.SIGTERM)
        assert running.end() == (137, [])


def _alive(pids: set[int]) -> list[int]:
    return [pid for pid in sorted(pids) if servers.alive(pid)]


# --- PostgreSQL

ROWS = 2000
TABLES = f"""
create table account (id int primary key, amount bigint not null);
insert into account select i, 1000 from generate_series(1, {ROWS}) i;
create table entry (client int, number int, hash text not null, primary key (client, number));
"""
CHECK = (
    "select (select sum(amount) from account), (select count(*) from account), "
    "(select count(*) from entry where hash <> md5(client || ':' || number))"
)
#: The answer to CHECK while all is well.
RIGHT = f"{1000 * ROWS}|{ROWS}|0"


def postgres_tool(name: str) -> str | None:
    """A program of PostgreSQL, which Debian has in a folder of each version."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def as_postgres(*right: str) -> list[str]:
    """Prefix of a command that runs as the user `postgres`, with these rights."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *right]


def transfers(client: int, count: int) -> str:
    """Transactions that move amounts between accounts, each followed by CHECK."""
    draw = random.Random(client)
    lines = []
    for number in range(count):
        one, other = draw.sample(range(1, ROWS + 1), 2)
        amount = draw.randrange(1, 100)
        lines.append(
            f"begin; update account set amount = amount - {amount} where id = {min(one, other)}; "
            f"update account set amount = amount + {amount} where id = {max(one, other)}; "
            f"insert into entry values ({client}, {number}, md5('{client}:{number}')); commit;\n"
            f"\\echo done {number}\n{CHECK};\n"
        )
    return "".join(lines)


class Asker(threading.Thread):
    """Runs CHECK again and again, each time in a new connection."""

    def __init__(self, psql: list[str]) -> None:
        super().__init__(daemon=True)
        self.psql, self.over, self.answers = psql, threading.Event(), set[str]()
        self.asked = 0

    def run(self) -> None:
        while not self.over.is_set():
            words = [*self.psql, "-c", CHECK]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=HANG)
            self.asked += 1
            if done.returncode == 0:
                self.answers.add(done.stdout.strip())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("far", ["zstd"])
@pytest.mark.long("servers whose processes are killed")
def test_postgresql_loses_its_first_process(far: str, folder: Path) -> None:
    """All answers are right, and all commits are there after a restart without nearfar."""
    postgres, initdb = postgres_tool("postgres"), postgres_tool("initdb")
    for name, path in (("postgres", postgres), ("initdb", initdb)):
        if path is None:
            pytest.skip(f"no {name}")
    needs("setpriv")
    needs("psql")
    assert postgres and initdb
    shutil.chown(folder, "postgres", "postgres")
    data, log = folder / "data", folder / "log"
    make = [initdb, "-D", str(data), "-A", "trust", "-N", "-k", "--no-instructions", "-E", "UTF8"]
    subprocess.run([*as_postgres(), *make], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    start = f"exec {postgres} -D {data} -k {folder} -c listen_addresses= -c shared_buffers=16MB"
    words = ["sh", "-c", f"{start} 2>> {log}"]
    psql = ["psql", "-h", str(folder), "-U", "postgres", "-d", "postgres", "-XAtq"]
    psql += ["-v", "ON_ERROR_STOP=1"]

    def answers() -> bool:
        return subprocess.run([*psql, "-c", ""], capture_output=True, check=False).returncode == 0

    right = ["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]
    with server(
        f"--fast 1M --far-size 256M --far {far}", [*as_postgres(*right), *words]
    ) as running:
        until(answers, running, "PostgreSQL answers")
        subprocess.run([*psql, "-c", TABLES], check=True, timeout=HANG)
        asker = Asker(psql)
        asker.start()
        clients = []
        for number in range(2):
            (folder / f"{number}.sql").write_text(transfers(number, 5000))
            clients.append(
                subprocess.Popen(
                    [*psql, "-f", str(folder / f"{number}.sql")],
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                )
            )  # fmt: skip
        until(lambda: asker.asked >= 20, running, "clients are busy")
        postmaster = int((data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        said = [client.communicate(timeout=HANG)[0].splitlines() for client in clients]
        asker.over.set()
        asker.join(HANG)
        code, reasons = running.end()
        assert (code, reasons) == (137, []), log.read_text()[-2000:]
    assert asker.answers == {RIGHT}
    lines = [line for text in said for line in text if not line.startswith("done ")]
    assert len(lines) > 10 and set(lines) == {RIGHT}
    last = [max(int(line[5:]) for line in text if line.startswith("done ")) for text in said]
    alone = subprocess.Popen([*as_postgres(), *words], cwd=folder)
    try:
        until(answers, None, "PostgreSQL answers alone")
        found = subprocess.run([*psql, "-c", CHECK], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == RIGHT
        for client, number in enumerate(last):
            query = f"select count(*) from entry where client = {client} and number <= {number}"
            found = subprocess.run([*psql, "-c", query], capture_output=True, text=True, check=True)
            assert int(found.stdout) == number + 1, client
    finally:
        alone.send_signal(signal.SIGQUIT)
        alone.wait()
    gone(alone.pid)
    if tool := postgres_tool("pg_checksums"):
        # pg_checksums needs a server that was shut down cleanly.
        alone = subprocess.Popen([*as_postgres(), *words], cwd=folder)
        until(answers, None, "PostgreSQL answers again")
        alone.send_signal(signal.SIGINT)
        alone.wait()
        subprocess.run([*as_postgres(), tool, "--check", "-D", str(data)], check=True, cwd=folder)
