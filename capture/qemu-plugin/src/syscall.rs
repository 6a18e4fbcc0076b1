// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls: which ones move data or change the address space, and what they did.

use std::cell::Cell;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use qemu_plugin_sys as qemu;

use crate::layout::{NO_FILE, tag, what};
use crate::recorder::{self, Recorder};
use crate::stream::Stream;
use crate::{exec, guest};

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
    Execve,
    /// The end of one thread.
    Exit,
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
            (40, Call::SendFile),
            (44, Call::Plain(true)),    // sendto
            (45, Call::Plain(false)),   // recvfrom
            (46, Call::Message(true)),  // sendmsg
            (47, Call::Message(false)), // recvmsg
            (59, Call::Execve),
            (60, Call::Exit),
            (295, Call::VectorAt(false)),
            (296, Call::VectorAt(true)),
            (326, Call::CopyRange),
            (327, Call::VectorAt(false)), // preadv2
            (328, Call::VectorAt(true)),  // pwritev2
        ],
    },
    Arch {
        name: "aarch64",
        machine: 183,
        calls: &[
            (63, Call::Plain(false)),
            (64, Call::Plain(true)),
            (65, Call::Vector(false)),
            (66, Call::Vector(true)),
            (67, Call::PlainAt(false)),
            (68, Call::PlainAt(true)),
            (69, Call::VectorAt(false)),
            (70, Call::VectorAt(true)),
            (71, Call::SendFile),
            (93, Call::Exit),
            (206, Call::Plain(true)),
            (207, Call::Plain(false)),
            (211, Call::Message(true)),
            (212, Call::Message(false)),
            (214, Call::Brk),
            (215, Call::Munmap),
            (216, Call::Mremap),
            (221, Call::Execve),
            (222, Call::Mmap),
            (285, Call::CopyRange),
            (286, Call::VectorAt(false)),
            (287, Call::VectorAt(true)),
        ],
    },
];

static ARCH: AtomicUsize = AtomicUsize::new(0);
static HEAP: AtomicU64 = AtomicU64::new(0);
/// Files whose names have been reported.
static NAMED: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

thread_local! {
    static CALL: Cell<(Call, [u64; 6])> = const { Cell::new((Call::Other, [0; 6])) };
}

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
    CALL.set((call, [a1, a2, a3, a4, a5, a6]));
    // SAFETY: QEMU calls this on the thread of `vcpu`, whose start has opened it.
    let mut stream = unsafe { Stream::of(vcpu) };
    match call {
        Call::Execve => exec::follow(&mut stream, a1, a2, a3),
        Call::Exit => stream.close(),
        _ => {}
    }
}

/// QEMU has done a system call.
pub extern "C" fn returns(_: qemu::qemu_plugin_id_t, vcpu: u32, _: i64, result: i64) {
    let (call, a) = CALL.replace((Call::Other, [0; 6]));
    if call == Call::Other || !Recorder::installed().is_some_and(Recorder::recording) {
        return;
    }
    // SAFETY: as in `starts`, whose handle is gone.
    let stream = &mut unsafe { Stream::of(vcpu) };
    if call == Call::Execve {
        stream.note(what::EXEC_FAILED, b"");
    }
    // Errors are -4095..=-1; nothing moved, nothing mapped.
    if (-4095..0).contains(&result) {
        return;
    }
    let done = result as u64;
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
        Call::Mmap => {
            const STACK: u64 = 0x20000;
            let name = if a[3] & libc::MAP_ANONYMOUS as u64 == 0 {
                link(a[4])
            } else if a[3] & STACK != 0 {
                b"[thread stack]".to_vec()
            } else {
                Vec::new()
            };
            let offset = if name.starts_with(b"/") { a[5] } else { 0 };
            event(stream, what::MAP, done, a[1].next_multiple_of(4096), offset, a[2] & 7, &name);
        }
        Call::Munmap => event(stream, what::UNMAP, a[0], a[1].next_multiple_of(4096), 0, 0, b""),
        Call::Mremap => {
            let (old, new) = (a[1].next_multiple_of(4096), a[2].next_multiple_of(4096));
            event(stream, what::UNMAP, a[0], old, 0, 0, b"");
            event(stream, what::MAP, done, new, 0, 3, b"");
        }
        Call::Brk => {
            let start = match HEAP.compare_exchange(0, done, Relaxed, Relaxed) {
                Ok(_) => done,
                Err(start) => start,
            };
            if done > start {
                event(stream, what::BRK, start, done - start, 0, 3, b"[heap]");
            }
        }
        Call::Other | Call::Execve | Call::Exit => {}
    }
}

/// Report an event of the address space.
fn event(
    stream: &mut Stream,
    what: u64,
    addr: u64,
    length: u64,
    offset: u64,
    prot: u64,
    name: &[u8],
) {
    stream.control_text(tag::EVENT, &[what, addr, length, offset, prot], name);
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
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes a `stat` at most.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } == 0 {
        // SAFETY: filled in by the call that succeeded.
        let stat = unsafe { stat.assume_init() };
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
