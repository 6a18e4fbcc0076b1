"""``nearfar guest``: run a command in a small Debian under QEMU, with memory nodes as described."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from nearfar import guest

#: Where `nearfar --help` lists it.
GROUP = "Record"
SETTINGS = {
    "context_settings": {"ignore_unknown_options": False, "allow_interspersed_args": False},
    "epilog": "Example: nearfar guest --far 256M --latency 80ns,250ns -- cat /proc/zoneinfo",
}


Words = list[str] | None


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ],
    arch: Annotated[
        str, typer.Option(help="Architecture of the guest: auto (this machine's), x86_64, aarch64.")
    ] = "auto",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of node 0.")] = "512M",
    cpus: Annotated[int, typer.Option(min=1, max=64, help="Processors, all on node 0.")] = 1,
    far: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of node 1, without processors.")
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="NEAR,FAR", help="Latency of both nodes, such as 80ns,250ns; for HMAT."
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="NEAR,FAR",
            help="Bandwidth of both nodes in bytes per second, such as 100G,25G.",
        ),
    ] = None,
    zram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Swap on compressed memory.")
    ] = None,
    package: Annotated[
        Words,
        typer.Option(metavar="NAME", help="Debian package to install in the guest; repeatable."),
    ] = None,
    put: Annotated[
        Words,
        typer.Option(
            metavar="PATH[=GUEST]",
            help="File or folder to copy into the guest [to /work]; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for what the command leaves in /out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that the command may take; 0: no limit.")
    ] = 600,
    icount: Annotated[
        int | None,
        typer.Option(min=0, max=10, help="Clock by instructions, each 2^N ns (QEMU's -icount)."),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="PACKAGE", help="Debian's kernel [6.12, for clouds].")
    ] = None,
    module: Annotated[
        Words, typer.Option(metavar="NAME", help="Kernel module to load; repeatable.")
    ] = None,
    append: Annotated[str, typer.Option(help="Extra kernel parameters.")] = "",
) -> None:
    """Boot Debian's kernel under QEMU, run a command as root in /work, and switch off.

    Kernel and packages come with apt, into a cache folder; no privileges are needed. Exit code:
    that of the command; 1 to 3, with a line that begins `nearfar: error:`, when the guest failed.
    """
    from nearfar import guest
    from nearfar.sizes import parse_bytes

    def show(stream: str, written: bytes) -> None:
        to = (sys.stdout if stream == "output" else sys.stderr).buffer
        to.write(written)
        to.flush()

    nodes = [guest.Node(parse_bytes(memory, "--memory"), cpus)]
    nodes += [guest.Node(parse_bytes(far, "--far"))] if far is not None else []
    finished = guest.Guest(
        architecture=arch,
        hardware=guest.Hardware(nodes, links=_links(len(nodes), latency, bandwidth)),
        kernel=kernel,
        packages=package or (),
        modules=module or (),
        zram=parse_bytes(zram, "--zram") if zram is not None else 0,
        icount=icount,
        parameters=append.split(),
    ).run(
        command,
        files=dict(map(_placed, put or ())),
        out=out,
        force=force,
        timeout=timeout or None,
        stream=show,
    )
    raise typer.Exit(finished.exit_code)


def _links(
    nodes: int, latency: str | None, bandwidth: str | None
) -> dict[tuple[int, int], guest.Link]:
    """What processors see of each node."""
    from nearfar import guest
    from nearfar.sizes import parse_bytes, parse_time

    if latency is None:
        if bandwidth is not None:
            raise NearfarError("--bandwidth: goes with --latency; give that, too")
        return {}
    times = [parse_time(text, "--latency") for text in _each(nodes, latency, "--latency")]
    rates: list[int | None] = [None] * nodes
    if bandwidth is not None:
        words = _each(nodes, bandwidth, "--bandwidth")
        rates = [parse_bytes(text, "--bandwidth") for text in words]
    pairs = enumerate(zip(times, rates, strict=True))
    return {(0, node): guest.Link(*pair) for node, pair in pairs}


def _each(nodes: int, text: str, flag: str) -> list[str]:
    """The items of a list, one a node."""
    words = text.split(",")
    if len(words) != nodes:
        raise NearfarError(f"{flag}: {text} is not one value a node, of which there are {nodes}")
    return words


def _placed(put: str) -> tuple[str, Path]:
    """Where a file of the host lies in the guest, and the file."""
    source, _, place = put.partition("=")
    return place or f"/work/{Path(source).absolute().name}", Path(source)
