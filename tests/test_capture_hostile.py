"""A captured program that writes to the memory that it shares with the capture."""

from __future__ import annotations

import subprocess
import sys
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
/* Fill the first ring repeatedly while the capture reads it. */
static void fill(uint64_t *ring, const uint64_t *words, int count) {
    for (int turn = 0; turn < 20; turn++)
        for (int i = 0; i + count <= 1 << 17; i += count) memcpy(ring + i, words, 8 * count);
}
int main(int argc, char **argv) {
    /* QEMU emulates /proc/self/maps, but not this file. */
    FILE *maps = fopen("/proc/thread-self/maps", "r");
    char line[4096];
    unsigned char *start = 0, *end = 0;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "nearfar-capture")) sscanf(line, "%p-%p", (void **)&start, (void **)&end);
    if (!start) return 9;
    what = argv[1];
    work(400000);
    uint32_t *header = (uint32_t *)start;
    uint64_t *slot = (uint64_t *)(start + 4096);
    /* The last part of the memory: 2048 rings of 1 MiB. */
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
    if (argc == 2) work(300000);
    _exit(0);
}
"""
#: Attacks on the memory, and whether they make the trace incomplete.
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
#: Attacks on the ring, which have an effect only if the capture reads the ring later.
WITHIN = ("transfers", "long", "maps")


#: Runs a command and writes its peak resident KiB to a file. A process's peak includes that of its
#: parent before exec, so a small process starts the command, not a large test worker.
PEAK = """
import pathlib, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1]).write_text(str(peak))
sys.exit(code)
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("then", ["works on", "ends"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_records_before_an_attack_are_kept(
    build: Callable[..., Path], tmp_path: Path, attack: str, then: str
) -> None:
    """The trace is readable and says what is missing; the capture ends and uses little memory."""
    trace = tmp_path / "a.trace"
    words = [attack] if then == "works on" else [attack, then]
    program = build(HOSTILE)
    capture = [*NEARFAR, "capture", "-o", trace, "--", program, *words]
    run = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "peak", *capture],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    code, text = run.returncode, run.stdout
    assert "Traceback" not in text and "panicked" not in text, text
    assert "exited with status" not in text, text
    found = info(trace)
    assert code == (0 if found["complete"] else 1), text
    assert int((tmp_path / "peak").read_text()) < 1 << 20, "more than 1 GiB"
    look(trace, verify=True, reuse=False, heatmap=False)
    # The references before the attack.
    assert found["records"] == records(trace).num_rows > 400_000
    if attack in WITHIN and then == "ends":
        return
    if ATTACKS[attack]:
        assert "has written to the memory" in str(found["incomplete_reason"]), text
    else:
        assert found["complete"], text
