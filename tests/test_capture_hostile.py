"""A program that finds the memory that it shares with the capture, and writes to it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import NEARFAR, info, needs_cc, needs_qemu, records
from nearfar.info import info as look

HOSTILE = r"""
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static volatile long cell;
static char *what;
static int is(const char *name) { return !strcmp(what, name); }
static void work(int turns) { for (int i = 0; i < turns; i++) (void)cell; }
/* Fill the first ring, again and again, while it is read. */
static void fill(uint64_t *ring, const uint64_t *words, int count) {
    for (int turn = 0; turn < 20; turn++)
        for (int i = 0; i + count <= 1 << 17; i += count) memcpy(ring + i, words, 8 * count);
}
int main(int argc, char **argv) {
    /* QEMU shows its own idea of /proc/self/maps, but not of this one. */
    FILE *maps = fopen("/proc/thread-self/maps", "r");
    char line[4096];
    unsigned char *start = 0, *end = 0;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "nearfar-capture")) sscanf(line, "%p-%p", (void **)&start, (void **)&end);
    if (!start) return 9;
    what = argv[1];
    work(2000000);
    uint32_t *header = (uint32_t *)start;
    uint64_t *slot = (uint64_t *)(start + 4096);
    /* Behind all slots and blocks, 2048 rings of 1 MiB. */
    uint64_t *ring = (uint64_t *)(end - (2048L << 20));
    uint64_t control = 1UL << 63, transfer = control | 121UL << 56, event = control | 122UL << 56;
    if (is("zeros")) memset(start, 0, 4096);
    if (is("started")) header[7] = 0;
    if (is("stop")) header[5] = 1;
    if (is("random")) for (int i = 0; i < 1024; i++) header[i] = rand();
    if (is("ahead")) slot[7] += 1L << 40;
    if (is("slots") || is("orders")) header[11] = 2048;
    if (is("slots")) for (int i = 16; i < 2048 * 16; i++) slot[i] = rand() % 4;
    if (is("orders")) for (int i = 1; i < 2048; i++) memcpy(slot + 16 * i, slot, 128);
    if (is("transfers")) fill(ring, (uint64_t[]){transfer | 5, 0, -1, 0, 0, 5UL << 30}, 6);
    if (is("long")) fill(ring, (uint64_t[]){event | 1UL << 50}, 1);
    if (is("maps")) fill(ring, (uint64_t[]){event | 9, 0, -4096UL, 8192, 0, 7, 1, 1, 0, 0}, 10);
    if (is("truncate")) {
        char path[300];
        snprintf(path, sizeof path, "/proc/%d/fd", getppid());
        DIR *all = opendir(path);
        int cut = 0;
        for (struct dirent *one; all && (one = readdir(all));) {
            snprintf(path, sizeof path, "/proc/%d/fd/%s", getppid(), one->d_name);
            ssize_t bytes = readlink(path, line, sizeof line - 1);
            if (bytes < 0 || !strstr((line[bytes] = 0, line), "nearfar-capture")) continue;
            int fd = open(path, O_RDWR);
            cut |= fd >= 0 && (!ftruncate(fd, 0) || !ftruncate(fd, 1L << 40));
        }
        if (cut) return 8;
    }
    if (argc == 2) work(500000);
    _exit(0);
}
"""
#: What is done to the memory, and whether the trace can be anything but whole then.
ATTACKS = {
    "nothing": False,
    "truncate": False,
    "zeros": True,
    "started": False,
    "stop": True,
    "random": True,
    "ahead": True,
    "slots": True,
    "orders": True,
    "transfers": True,
    "long": True,
    "maps": True,
}
#: What is written to the ring matters only if something is read there later.
WITHIN = ("transfers", "long", "maps")


@needs_qemu
@needs_cc
@pytest.mark.parametrize("then", ["works on", "ends"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_recorded_stays(
    build: Callable[..., Path], tmp_path: Path, attack: str, then: str
) -> None:
    """The trace can be read and says what is missing; the capture takes little memory and ends."""
    trace = tmp_path / "a.trace"
    words = [attack] if then == "works on" else [attack, then]
    program = build(HOSTILE)
    with (tmp_path / "said").open("w+") as said:
        run = subprocess.Popen(
            [*NEARFAR, "capture", "-o", trace, "--", program, *words], stdout=said, stderr=said
        )
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = code = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    assert "Traceback" not in text and "panicked" not in text, text
    assert "exited with status" not in text, text
    found = info(trace)
    assert code == (0 if found["complete"] else 1), text
    assert used.ru_maxrss < 1 << 20, "more than 1 GiB"
    look(trace, verify=True, reuse=False, heatmap=False)
    # What it did before.
    assert found["records"] == records(trace).num_rows > 2_000_000
    if attack in WITHIN and then == "ends":
        return
    if ATTACKS[attack]:
        assert "has written to the memory" in str(found["incomplete_reason"]), text
    else:
        assert found["complete"], text
