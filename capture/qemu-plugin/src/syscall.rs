// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls: which ones move data or change the address space, and what they did.

use std::cell::Cell;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use qemu_plugin_sys as qemu;

use crate::layout::{NO_FILE, SHARED, lost, origin, tag, what};
use crate::recorder::{self, Recorder};
use crate::stream::Stream;
use crate::{exec, guest, reach, zero};

/// What a system call does, as far as memory is concerned.
#[derive(Clone, Copy, PartialEq)]
enum Call {
    /// Nothing that matters here.
    Other,
    /// `(fd, buffer, bytes, ...)`; `true` writes the file.
    Plain(bool),
    /// `(fd, buffer, bytes, offset)`.
    PlainAt(bool),
    /// `(fd, iovec, count, ...)`.
    Vector(bool),
    /// `(fd, iovec, count, offset, ...)`.
    VectorAt(bool),
    /// `(socket, msghdr, ...)`.
    Message(bool),
    /// `(out, in, offset pointer, bytes)`.
    SendFile,
    /// `(in, offset pointer, out, offset pointer, bytes, ...)`.
    CopyRange,
    Mmap,
    Munmap,
    Mremap,
    Brk,
    /// `(address, bytes, advice)`.
    Madvise,
    Shmat,
    Shmdt,
    Execve,
    /// `(folder, path, ...)`.
    ExecveAt,
    Fork,
    Vfork,
    /// `(flags, ...)`: a thread or a process.
    Clone,
    /// `(struct clone_args, ...)`, flags first.
    Clone3,
    /// `(process, status, ...)`, answers the process.
    Wait4,
    /// `(kind, process, struct siginfo, ...)`.
    Waitid,
    /// What the process may open changes.
    Privilege,
    /// The end of one thread.
    Exit,
    ExitGroup,
}

struct Arch {
    name: &'static str,
    /// `e_machine` of its programs.
    machine: u16,
    calls: &'static [(i64, Call)],
}

static ARCHS: [Arch; 2] = [
    Arch {
        name: "x86_64",
        machine: 62,
        calls: &[
            (0, Call::Plain(false)),
            (1, Call::Plain(true)),
            (9, Call::Mmap),
            (11, Call::Munmap),
            (12, Call::Brk),
            (17, Call::PlainAt(false)),
            (18, Call::PlainAt(true)),
            (19, Call::Vector(false)),
            (20, Call::Vector(true)),
            (25, Call::Mremap),
            (28, Call::Madvise),
            (30, Call::Shmat),
            (40, Call::SendFile),
            (44, Call::Plain(true)),    // sendto
            (45, Call::Plain(false)),   // recvfrom
            (46, Call::Message(true)),  // sendmsg
            (47, Call::Message(false)), // recvmsg
            (56, Call::Clone),
            (57, Call::Fork),
            (58, Call::Vfork),
            (59, Call::Execve),
            (60, Call::Exit),
            (61, Call::Wait4),
            (67, Call::Shmdt),
            (105, Call::Privilege), // setuid
            (106, Call::Privilege), // setgid
            (113, Call::Privilege), // setreuid
            (114, Call::Privilege), // setregid
            (116, Call::Privilege), // setgroups
            (117, Call::Privilege), // setresuid
            (119, Call::Privilege), // setresgid
            (122, Call::Privilege), // setfsuid
            (123, Call::Privilege), // setfsgid
            (126, Call::Privilege), // capset
            (155, Call::Privilege), // pivot_root
            (161, Call::Privilege), // chroot
            (165, Call::Privilege), // mount
            (166, Call::Privilege), // umount2
            (231, Call::ExitGroup),
            (247, Call::Waitid),
            (272, Call::Privilege), // unshare
            (295, Call::VectorAt(false)),
            (296, Call::VectorAt(true)),
            (308, Call::Privilege), // setns
            (322, Call::ExecveAt),
            (326, Call::CopyRange),
            (327, Call::VectorAt(false)), // preadv2
            (328, Call::VectorAt(true)),  // pwritev2
            (435, Call::Clone3),
        ],
    },
    Arch {
        name: "aarch64",
        machine: 183,
        calls: &[
            (39, Call::Privilege), // umount2
            (40, Call::Privilege), // mount
            (41, Call::Privilege), // pivot_root
            (51, Call::Privilege), // chroot
            (63, Call::Plain(false)),
            (64, Call::Plain(true)),
            (65, Call::Vector(false)),
            (66, Call::Vector(true)),
            (67, Call::PlainAt(false)),
            (68, Call::PlainAt(true)),
            (69, Call::VectorAt(false)),
            (70, Call::VectorAt(true)),
            (71, Call::SendFile),
            (91, Call::Privilege), // capset
            (93, Call::Exit),
            (94, Call::ExitGroup),
            (95, Call::Waitid),
            (97, Call::Privilege),  // unshare
            (143, Call::Privilege), // setregid
            (144, Call::Privilege), // setgid
            (145, Call::Privilege), // setreuid
            (146, Call::Privilege), // setuid
            (147, Call::Privilege), // setresuid
            (149, Call::Privilege), // setresgid
            (151, Call::Privilege), // setfsuid
            (152, Call::Privilege), // setfsgid
            (159, Call::Privilege), // setgroups
            (196, Call::Shmat),
            (197, Call::Shmdt),
            (206, Call::Plain(true)),
            (207, Call::Plain(false)),
            (211, Call::Message(true)),
            (212, Call::Message(false)),
            (214, Call::Brk),
            (215, Call::Munmap),
            (216, Call::Mremap),
            (220, Call::Clone),
            (221, Call::Execve),
            (222, Call::Mmap),
            (233, Call::Madvise),
            (260, Call::Wait4),
            (268, Call::Privilege), // setns
            (281, Call::ExecveAt),
            (285, Call::CopyRange),
            (286, Call::VectorAt(false)),
            (287, Call::VectorAt(true)),
            (435, Call::Clone3),
        ],
    },
];

static ARCH: AtomicUsize = AtomicUsize::new(0);
/// Where the heap starts, and where it ends now.
static HEAP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Files whose names have been reported.
static NAMED: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

thread_local! {
    static CALL: Cell<(Call, [u64; 6])> = const { Cell::new((Call::Other, [0; 6])) };
    /// The moment of the call has begun.
    static BEGUN: Cell<bool> = const { Cell::new(false) };
}

/// The page size that lengths are rounded to, as QEMU does for both targets.
const PAGE: u64 = 4096;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const THREAD: u64 = libc::CLONE_VM as u64;

/// Take the table of QEMU's target; false when there is none.
pub fn choose(target: &str) -> bool {
    let found = ARCHS.iter().position(|arch| arch.name == target);
    ARCH.store(found.unwrap_or(0), Relaxed);
    found.is_some()
}

/// `e_machine` of the programs that this QEMU runs.
pub fn machine() -> u16 {
    ARCHS[ARCH.load(Relaxed)].machine
}

/// QEMU is about to do a system call.
#[allow(clippy::too_many_arguments)]
pub extern "C" fn starts(
    _: qemu::qemu_plugin_id_t,
    vcpu: u32,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _: u64,
    _: u64,
) {
    recorder::this_is(vcpu);
    let calls = ARCHS[ARCH.load(Relaxed)].calls;
    let call = calls
        .binary_search_by_key(&number, |(number, _)| *number)
        .map_or(Call::Other, |place| calls[place].1);
    let arguments = [a1, a2, a3, a4, a5, a6];
    CALL.set((call, arguments));
    zero::check(number, &arguments);
    // SAFETY: QEMU calls this on the thread of `vcpu`, whose start has opened it.
    let mut stream = unsafe { Stream::of(vcpu) };
    match call {
        Call::Execve => exec::follow(&mut stream, a1, a2, a3),
        Call::ExecveAt => {
            let name = guest::text(a2).unwrap_or_default();
            stream.event(&[what::EXEC_LOST, lost::START], &name);
        }
        Call::Exit => stream.ends(false),
        Call::ExitGroup => stream.ends(true),
        Call::Privilege if Recorder::installed().is_some_and(Recorder::recording) => reach::hold(),
        _ if takes(call, &arguments) => {
            stream.moment();
            BEGUN.set(true);
        }
        _ => {}
    }
}

/// Whether a call takes away something of the address space, so that its moment is before it.
fn takes(call: Call, a: &[u64; 6]) -> bool {
    match call {
        Call::Munmap | Call::Mremap | Call::Shmdt => true,
        Call::Madvise => given_up(a[2]).is_some(),
        Call::Brk => a[0] != 0 && a[0] < HEAP[1].load(Relaxed),
        _ => false,
    }
}

/// Which event an advice is, if it gives up pages.
fn given_up(advice: u64) -> Option<u64> {
    const DONTNEED_LOCKED: i32 = 24;
    match advice as i32 {
        libc::MADV_DONTNEED | DONTNEED_LOCKED => Some(what::DONTNEED),
        libc::MADV_FREE => Some(what::FREE),
        libc::MADV_REMOVE => Some(what::REMOVE),
        _ => None,
    }
}

/// The thread that calls this is about to be forked by QEMU, which keeps the others from running.
pub fn forks() {
    let (call, a) = CALL.get();
    let flags = match call {
        Call::Clone => a[0],
        Call::Clone3 => guest::words(a[0], 1).map_or(0, |words| words[0]),
        Call::Vfork => VFORK,
        _ => 0,
    };
    let origin = if flags & VFORK != 0 { origin::VFORK } else { origin::FORK };
    // SAFETY: the thread is in a system call, whose callback has noted its number and returned.
    unsafe { Stream::of(recorder::current()) }.forks(origin);
}

/// Note the heap that QEMU has made for the program: nothing yet, at `start`.
pub fn heap_starts(stream: &mut Stream, start: u64) {
    HEAP.iter().for_each(|place| place.store(start, Relaxed));
    stream.event(&[what::BRK, start, 0, 0, 3], b"[heap]");
}

/// QEMU has done a system call.
pub extern "C" fn returns(_: qemu::qemu_plugin_id_t, vcpu: u32, _: i64, result: i64) {
    let (call, a) = CALL.replace((Call::Other, [0; 6]));
    if call == Call::Other || !Recorder::installed().is_some_and(Recorder::recording) {
        return;
    }
    // SAFETY: as in `starts`, whose handle is gone.
    let stream = &mut unsafe { Stream::of(vcpu) };
    // Errors are -4095..=-1; nothing moved, nothing mapped.
    let done = (!(-4095..0).contains(&result)).then_some(result as u64);
    match (call, done) {
        (Call::Execve | Call::ExecveAt, _) => stream.note(what::EXEC_FAILED, b""),
        (Call::Privilege, _) => reach::release(),
        (Call::Fork | Call::Vfork | Call::Clone | Call::Clone3, _) => {
            forked(stream, call, &a, done)
        }
        (_, Some(done)) => succeeded(stream, call, &a, done),
        (_, None) => {}
    }
    if BEGUN.take() {
        stream.done();
    }
}

/// A call that can fork has answered `done`, if it did not fail.
fn forked(stream: &mut Stream, call: Call, a: &[u64; 6], done: Option<u64>) {
    let flags = match call {
        Call::Clone => a[0],
        Call::Clone3 => guest::words(a[0], 1).map_or(THREAD, |words| words[0]),
        _ => 0,
    };
    // The child's answer is 0.
    if flags & (THREAD | VFORK) != THREAD && done != Some(0) {
        stream.forked(done.map(|child| child as u32));
    }
}

/// A call did what it was asked for, and answered `done`.
fn succeeded(stream: &mut Stream, call: Call, a: &[u64; 6], done: u64) {
    match call {
        // A socket may answer with more bytes than it has put into the buffer (MSG_TRUNC).
        Call::Plain(write) => transfer(stream, write, a[0], None, done, &[a[1], done.min(a[2])]),
        Call::PlainAt(write) => transfer(stream, write, a[0], Some(a[3]), done, &[a[1], done]),
        Call::Vector(write) => transfer(stream, write, a[0], None, done, &vector(a[1], a[2], done)),
        Call::VectorAt(write) => {
            // An offset of -1 means the file's own position (preadv2, pwritev2).
            let offset = Some(a[3]).filter(|&offset| offset != u64::MAX);
            transfer(stream, write, a[0], offset, done, &vector(a[1], a[2], done));
        }
        Call::Message(write) => {
            // struct msghdr: the iovec's address and count are its third and fourth words.
            if let Some(words) = guest::words(a[1].wrapping_add(16), 2) {
                transfer(stream, write, a[0], None, done, &vector(words[0], words[1], done));
            }
        }
        Call::SendFile => {
            transfer(stream, false, a[1], before(a[2], done), done, &[]);
            transfer(stream, true, a[0], None, done, &[]);
        }
        Call::CopyRange => {
            transfer(stream, false, a[0], before(a[1], done), done, &[]);
            transfer(stream, true, a[2], before(a[3], done), done, &[]);
        }
        Call::Mmap => mapped(stream, a, done),
        Call::Munmap => stream.event(&[what::UNMAP, a[0], pages(a[1])], b""),
        Call::Mremap => {
            let (old, new) = (pages(a[1]), pages(a[2]));
            stream.event(&[what::REMAP, a[0], old, new, a[3], done], b"");
        }
        Call::Madvise => {
            if let (Some(what), 1..) = (given_up(a[2]), a[1]) {
                stream.event(&[what, a[0], pages(a[1])], b"");
            }
        }
        Call::Shmat => {
            let mut segment = MaybeUninit::<libc::shmid_ds>::uninit();
            // SAFETY: writes a `shmid_ds` at most.
            if unsafe { libc::shmctl(a[0] as i32, libc::IPC_STAT, segment.as_mut_ptr()) } == 0 {
                // SAFETY: filled in by the call that succeeded.
                let bytes = unsafe { segment.assume_init() }.shm_segsz as u64;
                let writes = if a[2] & libc::SHM_RDONLY as u64 == 0 { 2 } else { 0 };
                let fixed = [what::MAP, done, pages(bytes), 0, 1 | writes | SHARED];
                gives(stream, |stream| stream.event(&fixed, b"[shm]"));
            }
        }
        Call::Shmdt => stream.event(&[what::DETACH, a[0]], b""),
        Call::Brk => brk(stream, done),
        Call::Wait4 => waited(stream, done),
        // `si_pid` is the fifth 4-byte number.
        Call::Waitid if a[2] != 0 => {
            let process = guest::words(a[2].wrapping_add(16), 1).map_or(0, |words| words[0]);
            waited(stream, process & u64::from(u32::MAX));
        }
        _ => {}
    }
}

/// Report what gives something of the address space: its moment is after it.
fn gives(stream: &mut Stream, report: impl FnOnce(&mut Stream)) {
    stream.moment();
    report(stream);
    stream.done();
}

/// The program knows of a process that it may have ended: what it does next comes after that.
fn waited(stream: &mut Stream, process: u64) {
    if process != 0 && Recorder::installed().is_some_and(Recorder::follows) {
        gives(stream, |stream| stream.event(&[what::WAITED, process], b""));
    }
}

fn pages(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PAGE).unwrap_or(0)
}

fn mapped(stream: &mut Stream, a: &[u64; 6], done: u64) {
    let flags = a[3] as i32;
    let (mut name, mut file, mut offset) = (Vec::new(), (0, 0), 0);
    if flags & libc::MAP_ANONYMOUS == 0 {
        name = link(a[4]);
        if let Some(stat) = status(a[4] as i32) {
            // What a device maps is no file's.
            if stat.st_mode & libc::S_IFMT == libc::S_IFREG {
                (file, offset) = ((stat.st_dev, stat.st_ino), a[5]);
            }
        }
    } else if flags & libc::MAP_STACK != 0 {
        name = b"[thread stack]".to_vec();
    }
    // `MAP_SHARED` and `MAP_SHARED_VALIDATE`.
    let shared = if flags & libc::MAP_SHARED != 0 { SHARED } else { 0 };
    let fixed = [what::MAP, done, pages(a[1]), offset, a[2] & 7 | shared, file.0, file.1];
    gives(stream, |stream| stream.event(&fixed, &name));
}

fn brk(stream: &mut Stream, done: u64) {
    let [start, end] = &HEAP;
    if start.load(Relaxed) == 0 || done < start.load(Relaxed) {
        // Nothing said so before: a program asks first.
        start.store(done, Relaxed);
        end.store(done, Relaxed);
    }
    let (start, before) = (start.load(Relaxed), end.swap(done, Relaxed));
    let fixed = [what::BRK, start, done - start, 0, 3];
    if BEGUN.get() {
        stream.event(&fixed, b"[heap]");
    } else if done != before {
        gives(stream, |stream| stream.event(&fixed, b"[heap]"));
    }
}

/// Addresses and bytes of an iovec, as far as `bytes` reach; nothing when it cannot be read.
fn vector(addr: u64, count: u64, bytes: u64) -> Vec<u64> {
    let mut parts = guest::words(addr, 2 * count.min(1024) as usize).unwrap_or_default();
    let mut left = bytes;
    for part in parts.chunks_exact_mut(2) {
        part[1] = part[1].min(left);
        left -= part[1];
    }
    parts
}

/// The offset that a call began at, when it advanced the one at `pointer` by `done`.
fn before(pointer: u64, done: u64) -> Option<u64> {
    let after = (pointer != 0).then(|| guest::words(pointer, 1)).flatten()?;
    Some(after[0].wrapping_sub(done))
}

/// The name of an open file.
fn link(fd: u64) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd as i32));
    path.map(|path| path.into_os_string().into_vec()).unwrap_or_default()
}

/// What an open file is.
pub fn status(fd: i32) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes a `stat` at most, and all of it when it succeeds.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

/// Report `bytes` moved between the file `fd` (at `offset`, or where its position was) and the
/// user's `buffers`, addresses and lengths in turn.
fn transfer(
    stream: &mut Stream,
    write: bool,
    fd: u64,
    offset: Option<u64>,
    bytes: u64,
    buffers: &[u64],
) {
    if bytes == 0 {
        return;
    }
    let fd = fd as i32;
    let mut device = NO_FILE;
    let (mut inode, mut at) = (0, 0);
    if let Some(stat) = status(fd) {
        // SAFETY: asks only.
        let direct = || unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_DIRECT != 0;
        // Files read past the page cache have no page there.
        if stat.st_mode & libc::S_IFMT == libc::S_IFREG && !direct() {
            // SAFETY: asks only.
            let position = || unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } as u64;
            at = offset.unwrap_or_else(|| position().wrapping_sub(bytes));
            (device, inode) = (stat.st_dev, stat.st_ino);
            if new_file(device, inode) {
                stream.control_text(tag::FILE, &[device, inode], &link(fd as u64));
            }
        }
    }
    let mut words = vec![u64::from(write), device, inode, at, bytes];
    words.extend_from_slice(buffers);
    stream.control(tag::TRANSFER, &words);
}

fn new_file(device: u64, inode: u64) -> bool {
    // Never wait here: in the child of a fork the lock may be held by a thread that is not there.
    // Reporting a name twice does no harm.
    let Ok(mut named) = NAMED.try_lock() else { return true };
    named.get_or_insert_with(HashSet::new).insert((device, inode))
}
