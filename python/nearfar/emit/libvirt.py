"""Changes to a libvirt domain: ``virt-xml`` commands, and the XML to merge by hand.

Sets: for 2 MiB and larger ``memoryBacking/hugepages``, which backs the guest with the host's
hugetlbfs pages of that size; with ``--set-memory`` also ``memory`` and ``currentMemory``. All else
of the domain stays as it is.

Cannot: set a multi-size THP size (16 KiB to 1 MiB): libvirt has no element for it. QEMU asks for
transparent huge pages for its guests' memory, so the host's setting (``sysfs``, ``systemd``) is
what is needed. Cannot set the guest's own page size: see ``kernel-cmdline``.

Do not use: hugetlbfs where the host should swap the guest: such pages are never swapped, and must
have been reserved (``hugetlb``). ``--set-memory`` with a domain whose memory is divided into NUMA
cells: their sizes are what counts there.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import KIB, MIB, guest_memory, heading, large, short
from nearfar.emit._shell import script

SUMMARY = "virt-xml commands, and XML to merge"
SUFFIX = ".sh"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """A script that edits the domain of the VM's name, or another; comments have the XML."""
    size = int(row["settable_page_bytes"])
    backed, memory = large(row, "libvirt"), guest_memory(row)
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
    says = [heading(row)]
    if not edits:
        return script([*says, "4 KiB is what libvirt gives: nothing to set."], [":"])
    says += [
        f"Changes {row['vm']} from its next start on: sh FILE [DOMAIN [--print-diff]].",
        f"Its memory {'is set' if memory else 'keeps its size'}; all else stays.",
    ]
    if backed:
        says.append(f"The host needs free pages of {short(size)} for all of it: --emit hugetlb.")
    body = [
        f"domain=${{1:-{row['vm']}}}",
        "[ $# -eq 0 ] || shift",
        *(f'virt-xml "$domain" --edit {edit} "$@"' for edit in edits),
        "# By hand, with `virsh edit`: merge into <domain>, in place of what is there.",
        *(f"#   {line}" for line in xml),
    ]
    return script(says, body)
