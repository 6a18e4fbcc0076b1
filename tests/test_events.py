"""Events of address spaces: captures of programs whose events are known, under the real QEMU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capturing import LOAD, STORE, columns, info, nearfar, needs_cc, needs_qemu, regions
from mappings import stray

PAGE = 4096
Build = Callable[..., Path]
pytestmark = [needs_qemu, needs_cc]
CROSS = "aarch64-linux-gnu-gcc"


@pytest.fixture(
    name="build", params=["cc", *[CROSS] * (shutil.which(CROSS) is not None)], scope="module"
)
def _build(request: pytest.FixtureRequest, build: Build) -> Build:
    """Compile for this machine, and for aarch64 if there is a compiler."""
    static = ["-static"] if request.param == CROSS else []
    return lambda text, *flags: build(text, *flags, *static, compiler=request.param)


HEAD = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096L
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
static volatile char *map(long pages) { return mmap(0, pages * PAGE, RW, ANON, -1, 0); }
/* Addresses for the test, written without stdio, whose buffers would grow the heap. */
static uint64_t sent[64];
static int sends;
static void put(volatile void *p) { sent[sends++] = (uint64_t)p; }
static void say(void) { if (write(1, sent, 8 * sends) < 0) abort(); }
"""


class Run:
    """A captured run of a program: the numbers that it sent, and its trace."""

    def __init__(self, trace: Path, *words: str | Path) -> None:
        self.trace = trace
        done = nearfar("-o", trace, *words, errors="surrogateescape")
        assert done.returncode == 0, done.stderr
        text = done.stdout.encode(errors="surrogateescape")
        self.sent = [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]
        self.events = regions(trace)
        self.rows = columns(trace)
        self._places: dict[tuple[int, str], list[int]] = {}
        for at, (addr, kind, *_) in enumerate(self.rows):
            self._places.setdefault((addr, kind), []).append(at)
        assert stray(trace) == []

    def of(self, start: int, length: int) -> list[tuple[Any, ...]]:
        """Name, offset and pages of events whose range, or its new place, overlaps this range."""
        found = []
        for event in self.events:
            first, bytes_, to = event["addr"], event["length"], event["to"]
            here = first < start + length and start < first + bytes_
            moved = event["event"] == "move" and to < start + length and start < to + bytes_
            if bytes_ and (here or moved):
                found.append((event["event"], first - start, bytes_ // PAGE))
        return found

    def named(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in kinds]

    def touches(self, addr: int, kind: str = STORE) -> list[int]:
        """Numbers of the records of an address and kind."""
        return self._places.get((addr, kind), [])

    def at(self, kind: str, addr: int) -> list[int]:
        """Record numbers of the events of a kind that begin at an address."""
        return [e["at"] for e in self.events if (e["event"], e["addr"]) == (kind, addr)]


def run(build: Build, folder: Path, text: str, *flags: str, options: tuple[str, ...] = ()) -> Run:
    program = build(HEAD + text, *flags)
    return Run(folder / "t.trace", *options, "--", program)


HANDED = r"""
static sem_t go[2];
static volatile char *box;
static void *other(void *none) {
    for (int i = 0; i < 20; i++) {
        sem_wait(&go[1]);
        for (long k = 0; k < 100; k++) box[4 * PAGE - 1 - k] = 1;   /* touches what A mapped */
        munmap((void *)box, PAGE);
        box = mmap((void *)box, PAGE, RW, ANON | MAP_FIXED, -1, 0);
        sem_post(&go[0]);
    }
    return none;
}
int main(void) {
    pthread_t t;
    sem_init(&go[0], 0, 0); sem_init(&go[1], 0, 0);
    pthread_create(&t, 0, other, 0);
    for (int i = 0; i < 20; i++) {
        char *at = (char *)0x5000000000L + i * (16 * PAGE);
        volatile char *p = mmap(at, 4 * PAGE, RW, ANON | MAP_FIXED, -1, 0);
        p[4 * PAGE - 1] = 1;
        box = p;
        sem_post(&go[1]); sem_wait(&go[0]);
        p[0] = 1;                     /* touches what B mapped over it */
        munmap((void *)p, 4 * PAGE);
    }
    pthread_join(t, 0);
    return 0;
}
"""


def test_mappings_are_ordered_with_the_records_of_all_threads(build: Build, tmp_path: Path) -> None:
    got = run(build, tmp_path, HANDED, "-pthread")
    for turn in range(20):
        base = 0x5000000000 + turn * 16 * PAGE
        assert got.of(base, 4 * PAGE) == [
            ("map", 0, 4), ("unmap", 0, 1), ("map", 0, 1), ("unmap", 0, 4),
        ]  # fmt: skip
        (whole, again), (first, last) = got.at("map", base), got.at("unmap", base)
        mine, theirs = got.touches(base + 4 * PAGE - 1)
        rest = [at for k in range(1, 100) for at in got.touches(base + 4 * PAGE - 1 - k)]
        assert len(rest) == 99
        assert whole <= mine < theirs < min(rest) and max(rest) < first <= again
        assert again <= got.touches(base)[0] < last and len(got.touches(base)) == 1
        assert {got.rows[mine][3], got.rows[theirs][3]} == {0, 1}


STACKS = r"""
static char *volatile at;
static void *deep(void *none) {
    char room[PAGE * 8];
    at = room;
    for (long k = 0; k < 8; k++) ((volatile char *)room)[k * PAGE] = 1;
    return none;
}
int main(void) {
    for (int i = 0; i < 5; i++) {
        pthread_t t;
        pthread_create(&t, 0, deep, 0);
        pthread_join(t, 0);
        put(at);
    }
    say();
    return 0;
}
"""


def test_a_reused_thread_stack_is_one_mapping(build: Build, tmp_path: Path) -> None:
    got = run(build, tmp_path, STACKS, "-pthread")
    assert len(set(got.sent)) == 1 and len(got.sent) == 5
    room = got.sent[0]
    (stack,) = [e for e in got.named("map") if e["name"] == "[thread stack]"]
    # Mapped without rights, which `mprotect` then gives.
    assert stack["prot"] == "---p" and stack["addr"] <= room < stack["addr"] + stack["length"]
    # glibc keeps the stack, and releases its lower part at the end of each thread.
    events = [event for event, *_ in got.of(stack["addr"], stack["length"])]
    assert events == ["map"] + ["dontneed"] * 5
    released = [e["at"] for e in got.named("dontneed")]
    touched = got.touches(room)
    assert len(touched) == 5
    ordered = [at for pair in zip(touched, released, strict=True) for at in pair]
    assert ordered == sorted(ordered)


HEAP = r"""
int main(void) {
    char *start = sbrk(0);
    put(start);
    brk(start + 5 * PAGE); for (long k = 0; k < 5; k++) ((volatile char *)start)[k * PAGE] = 1;
    brk(start + 2 * PAGE);
    brk(start + 2 * PAGE);
    brk(start + 3 * PAGE + 8); ((volatile char *)start)[3 * PAGE] = 1;
    brk(start);
    brk(start + PAGE); ((volatile char *)start)[0] = 1;
    say();
    return 0;
}
"""


def test_the_heap_grows_and_shrinks_to_nothing(build: Build, tmp_path: Path) -> None:
    got = run(build, tmp_path, HEAP, "-static")
    found = got.named("brk")
    # The C library may have grown the heap before `main`.
    main = [e["length"] for e in found if e["addr"] + e["length"] >= got.sent[0]]
    start = found[0]["addr"]
    assert {e["addr"] for e in found} == {start} and found[0]["length"] == 0
    assert {(e["name"], e["prot"]) for e in found} == {("[heap]", "rw-p")}
    taken = got.sent[0] - start
    grown = [0, 5, 2, 3, 0, 1]
    assert [(n - taken) // PAGE for n in main[-6:]] == grown
    assert main[-3] == taken + 3 * PAGE + 8
    places = [e["at"] for e in found][-5:]
    for step, count in zip([places[0], places[2], places[4]], [5, 1, 1], strict=True):
        inside = [row for row in got.rows[step:] if row[0] % PAGE == got.sent[0] % PAGE]
        assert len([row for row in inside[:count] if row[1] == STORE]) == count


MOVED = r"""
int main(void) {
    int fd = memfd_create("kept", 0);
    if (ftruncate(fd, 16 * PAGE)) abort();
    volatile char *p = map(4);                                     put(p);
    p[3 * PAGE] = 1;
    p = mremap((void *)p, 4 * PAGE, 9 * PAGE, MREMAP_MAYMOVE);     put(p);
    p[8 * PAGE] = 1;
    p = mremap((void *)p, 9 * PAGE, 2 * PAGE, 0);                  put(p);
    p[PAGE] = 1;
    volatile char *q = map(8);                                     put(q);
    p = mremap((void *)p, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q + 3 * PAGE);
    p[0] = 1;
    volatile char *r = mmap(0, 4 * PAGE, RW, MAP_SHARED, fd, PAGE); put(r);
    r = mremap((void *)r, 4 * PAGE, 6 * PAGE, MREMAP_MAYMOVE);      put(r);
    r[5 * PAGE] = 1;
    volatile char *s = map(3);                                     put(s);
    volatile char *t = mremap((void *)s, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | 4 /* DONTUNMAP */);
    put(t);
    if (t != MAP_FAILED) { s[0] = 1; t[0] = 1; }
    if (mremap((void *)1, PAGE, PAGE, 0) != MAP_FAILED) abort();
    say();
    return 0;
}
"""


def test_mremap_moves_grows_and_shrinks_mappings(build: Build, tmp_path: Path) -> None:
    got = run(build, tmp_path, MOVED)
    p, grown, shrunk, q, r, wide, s, kept = got.sent
    # 4 pages move, 5 are added, 7 are unmapped, and 2 move into another mapping.
    assert grown != p and shrunk == grown
    assert got.of(p, 4 * PAGE)[:2] == [("map", 0, 4), ("move", 0, 4)]
    assert got.of(grown, 9 * PAGE)[:4] == [
        ("move", p - grown, 4), ("map", 4 * PAGE, 5), ("unmap", 2 * PAGE, 7), ("move", 0, 2),
    ]  # fmt: skip
    moves = got.named("move")
    assert [(e["addr"], e["to"], e["length"] // PAGE) for e in moves[:3]] == [
        (p, grown, 4), (grown, q + 3 * PAGE, 2), (r, wide, 4),
    ]  # fmt: skip
    assert moves[0]["prot"] == "rw-p" and moves[0]["name"] == ""
    # Pages added to a file's mapping are the next part of the file.
    (file,) = [e for e in got.named("map") if e["addr"] == r and "kept" in e["name"]]
    (more,) = [e for e in got.named("map") if e["addr"] == wide + 4 * PAGE]
    assert (file["offset"], file["prot"]) == (PAGE, "rw-s") and file["inode"] != 0
    assert more["offset"] == 5 * PAGE
    same = ["prot", "name", "device", "inode"]
    assert [more[key] for key in same] == [file[key] for key in same]
    if kept < 2**63:
        assert got.of(s, 3 * PAGE)[-2:] == [("move", 0, 3), ("map", 0, 3)]


OVER = r"""
int main(int argc, char **argv) {
    volatile char *p = map(8); put(p);
    p[2 * PAGE] = 1;
    int over = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap((void *)(p + 2 * PAGE), 2 * PAGE, PROT_READ, over, -1, 0) == MAP_FAILED) abort();
    (void)p[2 * PAGE];
    if (mmap((void *)p, PAGE, RW, MAP_PRIVATE, -1, 0) != MAP_FAILED) abort();  /* no such file */
    if (munmap((void *)(p + 1), PAGE) != -1) abort();                          /* not a page */
    /* Only 64 GiB, because QEMU takes time for each page. */
    char *all = mmap(0, 1L << 36, PROT_NONE, ANON | MAP_NORESERVE, -1, 0); put(all);
    mmap(all + (1L << 35), PAGE, RW, ANON | MAP_FIXED, -1, 0);
    ((volatile char *)all)[1L << 35] = 1;
    munmap(all, 1L << 36);
    for (int advice = 0; advice < 25; advice++) {
        madvise((void *)p, (advice + 1) * PAGE / 4, advice);
        p[0] = 1;
    }
    madvise((void *)p, 0, MADV_DONTNEED);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    p[0] = 1;
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    int id = shmget(IPC_PRIVATE, 5000, 0600);
    volatile char *s = shmat(id, 0, 0); put(s);
    s[4999] = 1;
    shmdt((void *)s);
    shmctl(id, IPC_RMID, 0);
    say();
    return 0;
}
"""


def test_overlapping_mappings_reservations_and_advice_are_recorded(
    build: Build, tmp_path: Path
) -> None:
    got = run(build, tmp_path, OVER)
    p, everything, shared = got.sent
    assert got.of(p, 8 * PAGE) == [
        ("map", 0, 8), ("map", 2 * PAGE, 2),
        ("dontneed", 0, 2), ("free", 0, 3), ("remove", 0, 3), ("huge", 0, 4), ("no-huge", 0, 4),
        ("dontneed", 0, 7),
    ]  # fmt: skip
    (over,) = [e for e in got.named("map") if e["addr"] == p + 2 * PAGE]
    assert over["prot"] == "r--s" and over["inode"] == 0
    (store,), (load,) = got.touches(p + 2 * PAGE), got.touches(p + 2 * PAGE, LOAD)
    assert store < over["at"] <= load
    # Each of the 25 advices lies between two stores.
    stores = got.touches(p)
    for event, advice in zip(
        got.named("dontneed", "free", "remove", "huge", "no-huge"),
        [4, 8, 9, 14, 15, 24],
        strict=True,
    ):
        assert stores[advice - 1] < event["at"] <= stores[advice]
    off, on = got.named("thp-disable")
    assert (off["to"], on["to"], off["length"]) == (1, 0, 0)
    assert stores[24] < off["at"] <= stores[25] < on["at"]
    huge = [event for event in got.of(everything, 1 << 36) if event[2] > 0]
    assert huge == [("map", 0, 1 << 24), ("map", 1 << 35, 1), ("unmap", 0, 1 << 24)]
    (segment,) = [e for e in got.named("map") if e["name"] == "[shm]"]
    assert (segment["addr"], segment["length"], segment["prot"]) == (shared, 2 * PAGE, "rw-s")
    assert got.of(shared, PAGE)[-1] == ("unmap", 0, 2)


FORKS = r"""
extern char **environ;
static volatile char *cell;
int main(int argc, char **argv) {
    if (argc > 1) return 3;
    cell = map(1); put(cell);
    cell[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        cell[1] = 1;
        munmap((void *)cell, PAGE);
        _exit(0);
    }
    waitpid(child, 0, 0);
    cell[2] = 1;
    child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", "again", "x", (char *)0);
        _exit(1);
    }
    waitpid(child, 0, 0);
    cell[3] = 1;
    char *words[] = {"spawned", "x", 0};
    if (posix_spawn(&child, "/proc/self/exe", 0, 0, words, environ)) abort();
    waitpid(child, 0, 0);
    cell[4] = 1;
    if (execl("/no/such", "such", (char *)0) != -1) abort();
    if ((child = fork()) == 0) { cell[5] = 1; kill(getpid(), 9); }
    waitpid(child, 0, 0);
    say();
    return 0;
}
"""


def test_forks_vforks_and_execs_are_ordered_with_the_records(build: Build, tmp_path: Path) -> None:
    got = run(build, tmp_path, "#include <signal.h>\n" + FORKS, options=("--follow-forks",))
    cell = got.sent[0]
    begun = got.named("fork", "vfork")
    assert [(e["event"], e["thread"], e["to"]) for e in begun] == [
        ("fork", 0, 2), ("vfork", 0, 3), ("vfork", 0, 4), ("fork", 0, 5),
    ]  # fmt: skip
    threads = {t["index"]: t["process"] for t in info(got.trace)["threads"]}
    ends = {threads[e["thread"]]: e["at"] for e in got.named("exit")}
    assert sorted(ends) == [1, 2, 3, 4, 5]
    # An exec after `vfork` and one in `posix_spawn`; the exec of a missing program leaves none.
    assert [threads[e["thread"]] for e in got.named("exec")] == [3, 4]
    places = [got.touches(cell + k)[0] for k in range(6)]
    starts = [e["at"] for e in begun]
    order = [
        places[0], starts[0], places[1], ends[2], places[2], starts[1], ends[3], places[3],
        starts[2], ends[4], places[4], starts[3], places[5],
    ]  # fmt: skip
    assert order == sorted(order)
    for event in begun:
        records = [at for at, row in enumerate(got.rows) if threads[row[3]] == event["to"]]
        assert event["at"] <= records[0] and records[-1] < ends[event["to"]]
    assert got.events[-1]["event"] == "exit" and threads[got.events[-1]["thread"]] == 1
    # The child's unmap does not affect its parent.
    assert [threads[e["thread"]] for e in got.named("unmap") if e["addr"] == cell] == [2]


NAPS = r"""
#include <signal.h>
#include <time.h>
static volatile int begun, over;
static void *run(void *none) {
    for (begun = 1; !over; )
        for (int i = 0; i < 100000; i++) __asm__ volatile("");
    return none;
}
static void nap(int times) {
    struct timespec time = {0, 20 * 1000 * 1000};
    while (times--) nanosleep(&time, 0);
}
int main(void) {
    volatile char *p = map(1); put(p);
    pthread_t t;
    p[0] = 1; nap(1); p[1] = 1;
    pthread_create(&t, 0, run, 0);
    while (!begun) { }
    p[2] = 1; nap(1); p[3] = 1;
    over = 1;
    pthread_join(t, 0);
    over = 0;
    pid_t child = fork();
    if (child == 0) run(0);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    p[4] = 1; nap(50); p[5] = 1;
    say();
    return 0;
}
"""


@pytest.mark.parametrize("follow", [True, False])
def test_idle_events_count_time_in_which_no_thread_runs(
    build: Build, tmp_path: Path, follow: bool
) -> None:
    got = run(build, tmp_path, NAPS, "-pthread", options=("--follow-forks",) * follow)
    at = [got.touches(got.sent[0] + k)[0] for k in range(6)]

    def idle(first: int, last: int) -> int:
        events = regions(got.trace, idle=True)
        return sum(e["to"] for e in events if at[first] < e["at"] <= at[last])

    assert idle(0, 1) >= 20_000_000 and idle(2, 3) == 0
    # A child counts as running until its death is noticed, an unrecorded one perhaps for ever.
    assert (idle(4, 5) >= 20_000_000) == follow


@pytest.mark.parametrize("all_call", [0, 1])
def test_exec_ends_the_other_threads(build: Build, tmp_path: Path, all_call: int) -> None:
    text = r"""
    static volatile int go;
    static int again(void) { return execl("/proc/self/exe", "again", "x", (char *)0); }
    static void *spin(void *p) {
        do ++*(volatile long *)p; while (!ALL_CALL || !go);
        again();
        return 0;
    }
    int main(int argc, char **argv) {
        if (argc > 1) { volatile char *p = map(3); p[0] = 1; put((void *)p); say(); return 0; }
        static long cells[3];
        pthread_t t;
        for (int i = 0; i < 3; i++) pthread_create(&t, 0, spin, &cells[i]);
        for (int i = 0; i < 3; i++) while (!*(volatile long *)&cells[i]) { }
        go = 1;
        return again();
    }
    """
    got = run(build, tmp_path, text, "-pthread", f"-DALL_CALL={all_call}")
    (again,) = got.named("exec")
    threads = info(got.trace)["threads"]
    assert [t["process"] for t in threads] == [1] * 5
    # All records of old threads precede the exec, those of the new one follow.
    new = [at for at, row in enumerate(got.rows) if row[3] == 4]
    old = [at for at, row in enumerate(got.rows) if row[3] != 4]
    assert old[-1] < again["at"] <= new[0]
    assert got.sent[0] in [e["addr"] for e in got.named("map") if e["at"] >= again["at"]]
    assert [e["event"] for e in got.events[-2:]] == ["thread-exit", "exit"]


def test_mappings_of_files_have_their_device_and_inode(build: Build, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(3 * PAGE))
    text = r"""
    #include <fcntl.h>
    int main(int argc, char **argv) {
        int fd = open(argv[1], O_RDWR);
        volatile char *p = mmap(0, 2 * PAGE, RW, MAP_SHARED, fd, PAGE);
        volatile char *q = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
        p[0] = q[0];
        return 0;
    }
    """
    program = build(HEAD + text)
    got = Run(tmp_path / "t.trace", "--", program, data)
    status = data.stat()
    found = [e for e in got.named("map") if e["name"] == str(data)]
    assert [(e["prot"], e["offset"], e["length"]) for e in found] == [
        ("rw-s", PAGE, 2 * PAGE), ("r--p", 0, PAGE),
    ]  # fmt: skip
    assert {(e["device"], e["inode"]) for e in found} == {(status.st_dev, status.st_ino)}
    own = program.stat()
    text_of = [e for e in got.named("map") if e["name"] == str(program.resolve()) and e["inode"]]
    assert {(e["device"], e["inode"]) for e in text_of} == {(own.st_dev, own.st_ino)}
    assert all(e["prot"][3] == "p" for e in text_of)
