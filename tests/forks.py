"""Commands as forks of one process that has imported nearfar, so that Python starts once for many.

A server waits at a socket. Who wants a command sends its words, folder and environment, and the
three standard streams; the server forks, the fork is the command, and the answer is its exit code
as a shell has it. As a program this file sends one command (:mod:`test_docs`)::

    python -IS tests/forks.py SOCKET [WORD...]
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn

#: Seconds after which what a test waits for hangs. No test may take a busy machine for a hang.
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
                    asked, _ = listener.accept()
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        return _become(asked, known)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asked))
                    continue
                pid, asked = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                # Who asked may be gone.
                with asked, contextlib.suppress(BrokenPipeError):
                    asked.send(str(code if code >= 0 else 128 - code).encode())
                selector.unregister(key.fileobj)
                os.close(key.fd)


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python or nearfar may read when they start."""
    return {k: v for k, v in environment.items() if k.startswith(("PYTHON", "NEARFAR"))}


def _become(asked: socket.socket, known: Mapping[str, str]) -> list[str]:
    """Take over streams, folder and environment of a request; returns its words.

    The code in FORKS_FIRST runs before the command. Where the server would have imported something
    else in that environment, Python starts again.
    """
    head, streams, _, _ = socket.recv_fds(asked, 8, 3)
    body = b""
    while len(body) < int.from_bytes(head):
        body += asked.recv(1 << 20)
    asked.close()
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
    """End as Python does, but keep the modules: to destroy them would copy the server's heap."""
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
    import pyarrow.compute  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import scipy.optimize  # noqa: F401

    import nearfar

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
