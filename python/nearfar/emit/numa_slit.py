"""Shell lines that make a SLIT in which far memory comes after all DRAM, to be read by the kernel.

Sets: the distances that order the kernel's fallback: 100 is added to those to and from the far
nodes, so that the order is near DRAM, far DRAM, near persistent memory, far persistent memory,
which is aliusM's but for interleaving. The table is the firmware's own, read when the script runs,
with a higher revision; the kernel takes it from an archive in front of its initrd (ACPI table
upgrade, CONFIG_ACPI_TABLE_UPGRADE, as in Debian).

Cannot: interleave nodes once DRAM is full, which is a policy of whoever allocates (``numactl``);
put the archive in front of the initrd, which is the boot loader's (GRUB_EARLY_INITRD_LINUX_CUSTOM).

Do not use: where the kernel is locked down (Secure Boot), as it then refuses tables; where domains
are not numbered as nodes.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import added, heading, refuse_memory_mode
from nearfar.emit._shell import script
from nearfar.errors import NearfarError

SUMMARY = "shell lines that make a table of distances with far memory last"
SUFFIX = ".sh"
TABLE = "/sys/firmware/acpi/tables/SLIT"
#: In awk, of the table's bytes: distances, revision (byte 24 on), checksum (byte 9).
_PROGRAM = """
  { byte[NR - 1] = $1 }
  END {
    for (number = split(nodes, list); number; number--) far[list[number]]
    size = byte[36]
    for (a = 0; a < size; a++) for (b = 0; b < size; b++) {
      at = 44 + a * size + b
      if (a != b && (a in far || b in far)) byte[at] = byte[at] < 154 ? byte[at] + 100 : 254
    }
    for (at = 24; at < 28; at++) { byte[at] = (byte[at] + 1) % 256; if (byte[at]) break }
    byte[9] = 0
    for (at = 0; at < NR; at++) sum += byte[at]
    byte[9] = (256 - sum % 256) % 256
    for (at = 0; at < NR; at++) printf "\\\\%03o", byte[at]
  }"""


def emit(row: Row) -> str:
    """A shell script that writes ``slit.cpio`` into the current folder."""
    refuse_memory_mode(row)
    nodes = " ".join(map(str, added(row)))
    if not nodes:
        why = f"{row['mode']} adds no memory, so that none is to come last"
        raise NearfarError(f"{row['vm']}: {why}; emit numactl instead")
    body = [
        "made=kernel/firmware/acpi",
        "mkdir -p $made",
        f"bytes=$(od -An -v -tu1 -w1 {TABLE} | awk -v 'nodes={nodes}' '{_PROGRAM.rstrip()}')",
        'printf "$bytes" > $made/slit.aml',
        "for path in kernel kernel/firmware $made $made/slit.aml; do",
        "  echo $path",
        "done | cpio -o -H newc > slit.cpio",
    ]
    comments = [
        heading(row),
        "",
        "Makes slit.cpio. The kernel reads it in front of its initrd: copy it to /boot, and have",
        "GRUB_EARLY_INITRD_LINUX_CUSTOM=slit.cpio in /etc/default/grub, then update-grub.",
    ]
    return script(comments, body)
