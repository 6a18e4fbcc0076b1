"""Runs queries in PostgreSQL's single-user mode, then on a server with two clients; prints answers.

usage: postgres.py FOLDER QUERIES. Only the server programs keep LD_PRELOAD, the library of nearfar
run. PostgreSQL refuses root, for whom it runs as `nobody`, with the capability that the library's
userfaultfd needs.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

folder, queries = Path(sys.argv[1]), Path(sys.argv[2])
programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
settings = ["-c", "work_mem=256MB", "-c", "max_parallel_workers_per_gather=0", "-c", "fsync=off"]
user: list[str] = []
folder.mkdir()
if os.geteuid() == 0:
    shutil.chown(folder, "nobody", "nogroup")
    right = "+sys_ptrace"
    user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    user += [f"--inh-caps={right}", f"--ambient-caps={right}"]
data = str(folder / "data")
subprocess.run(
    [*user, programs / "initdb", "-D", data, "-A", "trust", "-U", "nobody", "--no-sync"],
    check=True,
    env=plain,
    stdout=subprocess.DEVNULL,
    cwd=folder,
)
lines = [line for line in queries.read_text().splitlines() if line]
alone = subprocess.run(
    [*user, programs / "postgres", "--single", *settings, "-D", data, "postgres"],
    input="\n".join(lines) + "\n",
    capture_output=True,
    text=True,
    cwd=folder,
)
# Single-user mode prints each column of a result as `1: name = "value" (...)`.
answers = [line.strip() for line in alone.stdout.splitlines() if " = " in line]
print(alone.returncode, *answers, sep="\n")
if alone.returncode:
    print(alone.stderr, file=sys.stderr)
server = subprocess.Popen(
    [
        *user,
        programs / "postgres",
        *settings,
        "-D",
        data,
        "-k",
        str(folder),
        "-c",
        "listen_addresses=",
    ],
    stderr=subprocess.DEVNULL,
    cwd=folder,
)
psql = [programs / "psql", "-h", folder, "-U", "nobody", "-d", "postgres", "-qAt"]
for _ in range(600):
    if subprocess.run([*psql, "-c", "select 1"], env=plain, capture_output=True).returncode == 0:
        break
    if server.poll() is not None:
        raise SystemExit(f"the server ended with {server.returncode}")
    time.sleep(0.1)
selects = "\n".join(line for line in lines if line.startswith("select"))
clients = [
    subprocess.Popen(
        psql,
        env=plain,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for _ in range(2)
]
for client in clients:
    assert client.stdin is not None
    client.stdin.write(selects)
    client.stdin.close()
for client in clients:
    assert client.stdout is not None
    print(client.stdout.read(), client.wait())
server.terminate()
print(server.wait())
