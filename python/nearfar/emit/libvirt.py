"""Changes to a libvirt domain: ``virt-xml`` commands, and XML to merge by hand.

Sets: for 2 MiB and larger, ``memoryBacking/hugepages``, which backs the guest with the host's
hugetlbfs pages of that size; with ``--set-memory`` also ``memory`` and ``currentMemory``. The rest
of the domain does not change.

Cannot: set a multi-size THP size (16 KiB to 1 MiB), for which libvirt has no element. QEMU requests
transparent huge pages for guest memory, so set the size on the host (``sysfs``, ``systemd``).
Cannot set the guest's own page size: see ``kernel-cmdline``.

Do not use: hugetlbfs if the host should swap the guest: such pages are never swapped, and must be
reserved first (``hugetlb``). ``--set-memory`` with a domain whose memory is divided into NUMA
cells, because libvirt then uses their sizes.
"""

from __future__ import annotations

from nearfar.emit._page import KIB, MIB, PageRow, guest_memory, heading, not_set, uses_hugetlb
from nearfar.emit._page import NEEDS as NEEDS
from nearfar.emit._shell import script
from nearfar.sizes import short

SUMMARY = "virt-xml commands for a domain, and XML to merge"
SUFFIX = ".sh"


def emit(row: PageRow) -> str:
    """A script that edits the domain ``$1``, by default the VM's name; comments have the XML."""
    size = row["settable_page_bytes"]
    backed, memory = uses_hugetlb(row, "libvirt"), guest_memory(row)
    edits, xml = [], []
    if backed:
        edits.append(f"--memorybacking hugepages.page0.size={size // KIB},hugepages.page0.unit=KiB")
        xml += [
            "<memoryBacking>",
            "  <hugepages>",
            f"    <page size='{size // KIB}' unit='KiB'/>",
            "  </hugepages>",
            "</memoryBacking>",
        ]
    if memory:
        mib = memory // MIB
        edits.append(f"--memory memory={mib},currentMemory={mib}")
        xml += [f"<{name} unit='MiB'>{mib}</{name}>" for name in ("memory", "currentMemory")]
    comments = [heading(row), *not_set(row, "libvirt")]
    if not edits:
        return script([*comments, "4 KiB is the default of libvirt: nothing to set."], [":"])
    comments += [
        f"Changes {row['vm']} at its next start: sh FILE [DOMAIN [--print-diff]].",
        f"{'Sets' if memory else 'Keeps'} its memory size; no other setting changes.",
    ]
    if backed:
        comments.append(
            f"The host needs free {short(size)} pages for all of the guest's memory: "
            f"--emit hugetlb."
        )
    body = [
        f"domain=${{1:-{row['vm']}}}",
        "[ $# -eq 0 ] || shift",
        *(f'virt-xml "$domain" --edit {edit} "$@"' for edit in edits),
        "# By hand, with `virsh edit`: merge into <domain>, replacing present values.",
        *(f"#   {line}" for line in xml),
    ]
    return script(comments, body)
