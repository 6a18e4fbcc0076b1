"""``nearfar guest``: run a command in a small Debian guest under QEMU, with given memory nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearfar.cli._study import Force, say_notes
from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from nearfar import guest

GROUP = "Record"
SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "Example: nearfar guest --memory 512M -- cat /proc/zoneinfo",
}


Words = list[str] | None


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ],
    arch: Annotated[
        Literal["auto", "x86_64", "aarch64"],
        typer.Option(
            metavar="NAME",
            help="Architecture of the guest: auto (this machine's), x86_64, aarch64.",
        ),
    ] = "auto",
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of node 0.")] = "512M",
    cpus: Annotated[
        int, typer.Option(metavar="COUNT", min=1, max=64, help="Processors, all on node 0.")
    ] = 1,
    far: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of node 1, which has no processors.")
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="NEAR,FAR",
            help="Latency of both nodes in the firmware's table (HMAT), such as 80ns,250ns.",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="NEAR,FAR",
            help="Bandwidth of both nodes in the firmware's table (HMAT), bytes per second, such "
            "as 100G,25G.",
        ),
    ] = None,
    zram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of a zram swap device, before compression [default: no swap].",
        ),
    ] = None,
    package: Annotated[
        Words,
        typer.Option(metavar="NAME", help="Debian package to install in the guest; repeatable."),
    ] = None,
    put: Annotated[
        Words,
        typer.Option(
            metavar="PATH[=GUEST]",
            help="File or folder to copy into the guest [default: to /work]; repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Folder for a copy of the guest's /out."
        ),
    ] = None,
    force: Force = False,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Time limit of the command; 0 = none."),
    ] = 600,
    icount: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=10,
            help="Advance the clock by 2^N ns per instruction (QEMU's -icount).",
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            metavar="PACKAGE",
            help="Debian package of the kernel [default: Debian's cloud kernel 6.12].",
        ),
    ] = None,
    module: Annotated[
        Words, typer.Option(metavar="NAME", help="Kernel module to load; repeatable.")
    ] = None,
    append: Annotated[str, typer.Option(metavar="TEXT", help="Extra kernel parameters.")] = "",
) -> None:
    """Boot a Debian guest under QEMU, run a command in it as root in /work, and shut it down.

    apt downloads the kernel and packages to a cache folder; no privileges are needed. Exit code:
    the command's; 1 to 3, with a line that begins `nearfar: error:`, if the guest failed.
    """
    from nearfar import guest
    from nearfar.sizes import parse_bytes

    def show(stream: str, written: bytes) -> None:
        to = (sys.stdout if stream == "output" else sys.stderr).buffer
        to.write(written)
        to.flush()

    nodes = [guest.Node(parse_bytes(memory, "--memory"), cpus)]
    nodes += [guest.Node(parse_bytes(far, "--far"))] if far is not None else []
    links = _links(len(nodes), latency, bandwidth)
    if far is not None and not links:
        why = "both nodes are one memory tier, so nothing is demoted"
        say_notes([f"{why}; --latency and --bandwidth make two tiers"])
    finished = guest.Guest(
        architecture=arch,
        hardware=guest.Hardware(nodes, links=links),
        kernel=kernel,
        packages=package or (),
        modules=module or (),
        zram=parse_bytes(zram, "--zram") if zram is not None else 0,
        icount=icount,
        parameters=append.split(),
    ).run(
        command,
        files=dict(map(guest.placed, put or ())),
        out=out,
        force=force,
        timeout=timeout or None,
        stream=show,
    )
    raise typer.Exit(finished.exit_code)


def _links(
    nodes: int, latency: str | None, bandwidth: str | None
) -> dict[tuple[int, int], guest.Link]:
    """The link from the processors to each node."""
    from nearfar import guest
    from nearfar.sizes import parse_bytes, parse_time

    if latency is None and bandwidth is None:
        return {}
    if latency is None or bandwidth is None:
        given, other = ("bandwidth", "latency") if latency is None else ("latency", "bandwidth")
        raise NearfarError(
            f"--{given}: the kernel makes memory tiers only with --{other}; give both"
        )
    times = [parse_time(text, "--latency") for text in _each(nodes, latency, "--latency")]
    rates = [parse_bytes(text, "--bandwidth") for text in _each(nodes, bandwidth, "--bandwidth")]
    pairs = enumerate(zip(times, rates, strict=True))
    return {(0, node): guest.Link(*pair) for node, pair in pairs}


def _each(nodes: int, text: str, flag: str) -> list[str]:
    """The items of a list, one per node."""
    words = text.split(",")
    if len(words) != nodes:
        raise NearfarError(f"{flag}: {text} is not one value per node; give {nodes} values")
    return words
