"""Run commands as forks of one process that has imported nearfar, so that Python starts only once.

A server listens at a socket. A client sends a command's words, folder, environment and three
standard streams; the server forks, the fork runs the command, and the server replies with a shell's
exit code. As a program, this file is a client (:mod:`test_docs`)::

    python -IS tests/forks.py SOCKET [WORD...]
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn

#: Seconds after which a test takes a process for hanging; enough for a busy machine.
HANG = 900.0


def run(
    at: str, words: Iterable[str], streams: tuple[int, int, int], environment: Mapping[str, str]
) -> int:
    """Have a command run, in this folder, by the server at this socket; returns its exit code."""
    request = json.dumps([[*words], os.getcwd(), {**environment}]).encode()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(HANG)
        server.connect(at)
        socket.send_fds(server, [len(request).to_bytes(8)], streams)
        server.sendall(request)
        answer = server.recv(16)
    if not answer:
        raise ConnectionError("the server of commands is gone")
    return int(answer)


def serve(at: str) -> list[str]:
    """Fork a command for each request; in the fork, returns its words. The server never returns."""
    import contextlib
    import gc
    import selectors

    gc.freeze()
    known = _at_import(os.environ)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(at + ".new")
        listener.listen()
        os.rename(at + ".new", at)  # noqa: PTH104
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        return _become(client, known)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))
                    continue
                pid, client = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                # The client may be gone.
                with client, contextlib.suppress(BrokenPipeError):
                    client.send(str(code if code >= 0 else 128 - code).encode())
                selector.unregister(key.fileobj)
                os.close(key.fd)


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python or nearfar may read at import."""
    return {k: v for k, v in environment.items() if k.startswith(("PYTHON", "NEARFAR"))}


def _become(client: socket.socket, known: Mapping[str, str]) -> list[str]:
    """Take over streams, folder and environment of a request; returns its words.

    The code in FORKS_FIRST runs before the command. If the variables that count at import differ
    from the server's (``known``), Python starts anew.
    """
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    body = b""
    while len(body) < int.from_bytes(head):
        body += client.recv(1 << 20)
    client.close()
    words, folder, environment = json.loads(body)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    first = environment.pop("FORKS_FIRST", "")
    os.environ.clear()
    os.environ.update(environment)
    exec(first)
    if _at_import(environment) != known:
        os.execv(sys.executable, [sys.executable, "-m", "nearfar", *words])
    return list(words)


def _leave(code: int) -> NoReturn:
    """Exit as Python does, but keep the modules: destroying them would copy the shared heap."""
    import atexit
    import threading

    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def preload() -> None:
    """Import what commands import. The threads of OpenBLAS and jemalloc start again in a fork."""
    import importlib
    import pkgutil

    import altair  # noqa: F401
    import pandas  # noqa: F401
    import plotext  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import pyarrow.csv  # noqa: F401
    import pyarrow.pandas_compat  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich.cells
    import scipy.optimize  # noqa: F401

    import nearfar

    rich.cells.cell_len("\N{EM DASH}")  # loads a table of characters

    for found in pkgutil.walk_packages(nearfar.__path__, "nearfar."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)


if __name__ == "__main__":
    if sys.argv[1] != "serve":
        sys.exit(run(sys.argv[1], sys.argv[2:], (0, 1, 2), os.environ))
    preload()
    sys.argv = ["nearfar", *serve(sys.argv[2])]
    from nearfar.cli import main

    try:
        main()
    except SystemExit as end:
        _leave(int(end.code or 0))
