"""A libvirt domain: memory size and what backs it; merge it into the domain you have.

Sets: ``memory`` (whole pages), and for 2 MiB and larger ``memoryBacking/hugepages``, which backs
the guest with the host's hugetlbfs pages of that size.

Cannot: set a multi-size THP size (16 KiB to 1 MiB): libvirt has no element for it. QEMU asks for
transparent huge pages for its guests' memory, so the host's setting (``sysfs``, ``systemd``) is
what is needed, and the comment says so. Cannot set the guest's own page size: see
``kernel-cmdline``.

Do not use: hugetlbfs where the host should swap the guest: such pages are never swapped, and must
have been reserved (``hugepages=N`` on the host).
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from nearfar.emit import Row
from nearfar.emit._page import KIB, MIB, granule, heading, kib, short
from nearfar.errors import NearfarError

SUMMARY = "a libvirt domain"
SUFFIX = ".xml"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")

_MACHINES = {"x86-64": ("x86_64", "q35"), "aarch64": ("aarch64", "virt")}


def emit(row: Row) -> str:
    """A whole domain that `virt-xml-validate` accepts; comments say what libvirt cannot set."""
    if row["mechanism"] == "granule":
        raise NearfarError(granule(row))
    size = int(row["settable_page_bytes"])
    large = size >= 2 * MIB
    unit = size if large else 4 * KIB
    memory = -(-int(row["memory_bytes"]) // unit) * unit
    arch, machine = _MACHINES[str(row["arch"])]
    # `--` may not stand in an XML comment.
    lines = [f"<!-- {escape(heading(row)).replace('--', '- -')} -->", "<domain type='kvm'>"]
    if row["mechanism"] == "mthp":
        lines.append(
            f"  <!-- libvirt cannot set {short(size)} pages; the host does (emit sysfs) -->"
        )
    lines += [
        f"  <name>{escape(str(row['vm']))}</name>",
        f"  <memory unit='KiB'>{kib(memory)}</memory>",
    ]
    if large:
        backing = f"<page size='{size // KIB}' unit='KiB'/>"
        lines += [
            "  <memoryBacking>",
            f"    <hugepages>{backing}</hugepages>",
            "  </memoryBacking>",
        ]
    lines += [f"  <os><type arch='{arch}' machine='{machine}'>hvm</type></os>", "</domain>"]
    return "\n".join(lines) + "\n"
