// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls: reports the data that they move and their changes to the address space.

mod table;

use std::cell::Cell;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use qemu_plugin_sys as qemu;

use crate::layout::{NO_FILE, SHARED, lost, origin, tag, what};
use crate::recorder::{self, Recorder};
use crate::stream::Stream;
use crate::{exec, guest, reach, reserve, sample, zero};
use table::{ARCHS, Call};

static ARCH: AtomicUsize = AtomicUsize::new(0);
/// Start and current end of the heap.
static HEAP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// How later mappings are locked (`mlockall`): [`lock`].
static LOCK_LATER: AtomicU64 = AtomicU64::new(lock::NOT);
/// Files whose names have been reported.
static REPORTED: Mutex<Option<HashSet<(u64, u64)>>> = Mutex::new(None);

thread_local! {
    static CALL: Cell<(Call, [u64; 6])> = const { Cell::new((Call::Other, [0; 6])) };
    /// Whether the call's fence has begun. A fence orders its events between the earlier and the later
    /// references of the process's other threads.
    static FENCED: Cell<bool> = const { Cell::new(false) };
}

/// The page size of both targets in QEMU.
const PAGE: u64 = 4096;
/// Ways to lock memory.
mod lock {
    pub const NOT: u64 = 0;
    /// Pages become resident at once.
    pub const NOW: u64 = 1;
    /// Pages become resident when they are touched.
    pub const ON_FAULT: u64 = 2;
}

/// `PROT_READ | PROT_WRITE`, the protection of the heap.
const HEAP_PROT: u64 = 3;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const THREAD: u64 = libc::CLONE_VM as u64;

/// Select the table of QEMU's target. Returns false if there is none.
pub fn set_target(target: &str) -> bool {
    let index = ARCHS.iter().position(|arch| arch.name == target);
    ARCH.store(index.unwrap_or(0), Relaxed);
    index.is_some()
}

/// `e_machine` of the programs that this QEMU runs.
pub fn machine() -> u16 {
    ARCHS[ARCH.load(Relaxed)].machine
}

#[allow(clippy::too_many_arguments)]
pub extern "C" fn on_call(
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
    recorder::set_current_vcpu(vcpu);
    let calls = ARCHS[ARCH.load(Relaxed)].calls;
    let call = calls
        .binary_search_by_key(&number, |(number, _)| *number)
        .map_or(Call::Other, |index| calls[index].1);
    let arguments = [a1, a2, a3, a4, a5, a6];
    CALL.set((call, arguments));
    zero::verify_layout(number, &arguments);
    match call {
        Call::Mmap => reserve::check(a1, a2),
        Call::Mremap => reserve::check(0, a3.saturating_sub(a2)),
        _ => {}
    }
    // SAFETY: `on_vcpu_start` has opened `vcpu`, and QEMU calls this on its thread.
    let mut stream = unsafe { Stream::of(vcpu) };
    match call {
        Call::Execve => exec::follow(&mut stream, a1, a2, a3),
        Call::ExecveAt => {
            let name = guest::text(a2).unwrap_or_default();
            stream.event(&[what::EXEC_LOST, lost::START], &name);
        }
        Call::Exit => return stream.end(false),
        Call::ExitGroup => return stream.end(true),
        Call::FileAccess if Recorder::installed().is_some_and(Recorder::recording) => {
            reach::hold_descriptors();
        }
        _ if removes_memory(call, &arguments) => {
            stream.begin_fence();
            FENCED.set(true);
            // Other threads can touch the memory again before the call returns.
            match call {
                Call::Munmap | Call::Madvise | Call::Mremap => sample::forget(a1, a2),
                _ => {}
            }
        }
        _ => {}
    }
    if !is_slow(call) {
        stream.pause();
    }
}

/// Whether QEMU takes longer for a call than the kernel, so that its time is not idle time: the call
/// begins a process, thread or program, or changes mappings, of which QEMU updates an entry per page.
fn is_slow(call: Call) -> bool {
    use Call::{Brk, Clone, Clone3, Execve, ExecveAt, Fork, Mmap, Mprotect, Mremap, Munmap, Vfork};
    matches!(
        call,
        Fork | Vfork | Clone | Clone3 | Execve | ExecveAt | Mmap | Munmap | Mremap | Mprotect | Brk
    )
}

/// Whether a call removes mappings or pages, so that its fence begins before it.
fn removes_memory(call: Call, a: &[u64; 6]) -> bool {
    match call {
        Call::Munmap | Call::Mremap | Call::Shmdt => true,
        Call::Madvise => discard_event(a[2]).is_some(),
        Call::Brk => a[0] != 0 && a[0] < HEAP[1].load(Relaxed),
        _ => false,
    }
}

/// The event of an advice, if it discards pages.
fn discard_event(advice: u64) -> Option<u64> {
    const DONTNEED_LOCKED: i32 = 24;
    match advice as i32 {
        libc::MADV_DONTNEED | DONTNEED_LOCKED => Some(what::DONTNEED),
        libc::MADV_FREE => Some(what::FREE),
        libc::MADV_REMOVE => Some(what::REMOVE),
        _ => None,
    }
}

/// The event of an advice, if it makes pages resident or is about huge pages.
fn effect_event(advice: u64) -> Option<u64> {
    const COLLAPSE: i32 = 25;
    match advice as i32 {
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => Some(what::POPULATE),
        libc::MADV_HUGEPAGE => Some(what::HUGE),
        libc::MADV_NOHUGEPAGE => Some(what::NO_HUGE),
        COLLAPSE => Some(what::COLLAPSE),
        _ => None,
    }
}

/// The flags of a call that creates a process or thread; `None` if they cannot be read.
fn clone_flags(call: Call, a: &[u64; 6]) -> Option<u64> {
    match call {
        Call::Clone => Some(a[0]),
        Call::Clone3 => guest::words(a[0], 1).map(|words| words[0]),
        Call::Vfork => Some(VFORK),
        _ => Some(0),
    }
}

/// Called before the calling thread forks, while QEMU stops the other threads.
pub extern "C" fn before_fork() {
    let (call, a) = CALL.get();
    let origin =
        if clone_flags(call, &a).unwrap_or(0) & VFORK != 0 { origin::VFORK } else { origin::FORK };
    // SAFETY: the thread is in a system call, whose callback has set its virtual CPU and returned.
    unsafe { Stream::of(recorder::current_vcpu()) }.before_fork(origin);
}

/// Report the heap that QEMU has set up for the program: empty, at `start`.
pub fn begin_heap(stream: &mut Stream, start: u64) {
    HEAP.iter().for_each(|bound| bound.store(start, Relaxed));
    stream.event(&[what::BRK, start, 0, 0, HEAP_PROT], b"[heap]");
}

pub extern "C" fn on_return(_: qemu::qemu_plugin_id_t, vcpu: u32, _: i64, result: i64) {
    // SAFETY: as in `on_call`, which has dropped its own `Stream`.
    let stream = &mut unsafe { Stream::of(vcpu) };
    let idle = stream.resume();
    let (call, a) = CALL.replace((Call::Other, [0; 6]));
    match idle {
        // The call's own fence encloses this event.
        Some([ns, threads]) if FENCED.get() => stream.event(&[what::IDLE, ns, threads], b""),
        Some([ns, threads]) => event_after(stream, &[what::IDLE, ns, threads], b""),
        None => {}
    }
    // Errors are -4095..=-1.
    let result = (!(-4095..0).contains(&result)).then_some(result as u64);
    if let (Call::Mmap, Some(addr)) = (call, result) {
        reserve::mapped(addr, a[1]);
    }
    if call == Call::Other || !Recorder::installed().is_some_and(Recorder::recording) {
        return;
    }
    match (call, result) {
        (Call::Execve | Call::ExecveAt, _) => stream.note(what::EXEC_FAILED, b""),
        (Call::FileAccess, _) => reach::release_descriptors(),
        // Ignore the result: QEMU 7.2 refuses this call, which Linux accepts.
        (Call::Prctl, _) if a[0] as i32 == libc::PR_SET_THP_DISABLE => {
            let disabled = match (a[1], a[2]) {
                (0, _) => 0,
                // PR_THP_DISABLE_EXCEPT_ADVISED, since Linux 6.18.
                (_, 2) => 2,
                _ => 1,
            };
            event_after(stream, &[what::THP_DISABLE, disabled], b"");
        }
        (Call::Fork | Call::Vfork | Call::Clone | Call::Clone3, _) => {
            after_fork(stream, call, &a, result)
        }
        (_, Some(result)) => after_success(stream, call, &a, result),
        (_, None) => {}
    }
    if FENCED.take() {
        stream.end_fence();
    }
}

/// Report a call that may have forked. `result` is `None` if it failed.
fn after_fork(stream: &mut Stream, call: Call, a: &[u64; 6], result: Option<u64>) {
    let flags = clone_flags(call, a).unwrap_or(THREAD);
    // In the child, the result is 0.
    if flags & (THREAD | VFORK) != THREAD && result != Some(0) {
        stream.after_fork(result.map(|child| child as u32));
    }
}

/// Report a call that returned `done`.
fn after_success(stream: &mut Stream, call: Call, a: &[u64; 6], done: u64) {
    match call {
        // A socket may return more bytes than it has put into the buffer (MSG_TRUNC).
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
        // One file is read (`false`), the other is written (`true`).
        Call::SendFile => {
            transfer(stream, false, a[1], start_offset(a[2], done), done, &[]);
            transfer(stream, true, a[0], None, done, &[]);
        }
        Call::CopyRange => {
            transfer(stream, false, a[0], start_offset(a[1], done), done, &[]);
            transfer(stream, true, a[2], start_offset(a[3], done), done, &[]);
        }
        Call::Mmap => mapped(stream, a, done),
        Call::Munmap => stream.event(&[what::UNMAP, a[0], round_up(a[1])], b""),
        Call::Mremap => {
            let (old, new) = (round_up(a[1]), round_up(a[2]));
            sample::forget(a[0], old);
            sample::forget(done, new);
            stream.event(&[what::REMAP, a[0], old, new, a[3], done], b"");
        }
        Call::Madvise => {
            if let (Some(what), 1..) = (discard_event(a[2]), a[1]) {
                sample::forget(a[0], round_up(a[1]));
                stream.event(&[what, a[0], round_up(a[1])], b"");
            } else if let (Some(what), 1..) = (effect_event(a[2]), a[1]) {
                event_after(stream, &[what, a[0], round_up(a[1])], b"");
            }
        }
        Call::Mlock => locked(stream, lock::NOW, a[0], a[1]),
        Call::Mlock2 => {
            let on_fault = a[2] & u64::from(libc::MLOCK_ONFAULT) != 0;
            locked(stream, if on_fault { lock::ON_FAULT } else { lock::NOW }, a[0], a[1]);
        }
        Call::MlockAll => {
            let flags = a[0] as i32;
            let how = if flags & libc::MCL_ONFAULT != 0 { lock::ON_FAULT } else { lock::NOW };
            LOCK_LATER.store(if flags & libc::MCL_FUTURE != 0 { how } else { lock::NOT }, Relaxed);
            if flags & libc::MCL_CURRENT != 0 {
                locked(stream, how, 0, ALL);
            }
        }
        Call::Munlock => unlocked(stream, a[0], a[1]),
        Call::MunlockAll => {
            LOCK_LATER.store(lock::NOT, Relaxed);
            unlocked(stream, 0, ALL);
        }
        Call::Shmat => {
            let mut segment = MaybeUninit::<libc::shmid_ds>::uninit();
            // SAFETY: writes at most a `shmid_ds`.
            if unsafe { libc::shmctl(a[0] as i32, libc::IPC_STAT, segment.as_mut_ptr()) } == 0 {
                // SAFETY: filled in by the call that succeeded.
                let bytes = unsafe { segment.assume_init() }.shm_segsz as u64;
                let writes = if a[2] & libc::SHM_RDONLY as u64 == 0 { 2 } else { 0 };
                let fixed = [what::MAP, done, round_up(bytes), 0, 1 | writes | SHARED];
                sample::forget(done, round_up(bytes));
                event_after(stream, &fixed, b"[shm]");
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

/// Report an event whose fence begins after the call.
fn event_after(stream: &mut Stream, fixed: &[u64], name: &[u8]) {
    stream.begin_fence();
    stream.event(fixed, name);
    stream.end_fence();
}

/// Report a successful wait for a process. If it has ended, its references precede the next ones of
/// the waiting process.
fn waited(stream: &mut Stream, process: u64) {
    if process != 0 && Recorder::installed().is_some_and(Recorder::follows_children) {
        event_after(stream, &[what::WAITED, process], b"");
    }
}

/// Bytes of a range from 0 that contains any program's address space.
const ALL: u64 = (1 << 63) - PAGE;

/// The pages that a range touches: first address and bytes.
fn touched_pages(addr: u64, bytes: u64) -> (u64, u64) {
    let start = addr & !(PAGE - 1);
    (start, round_up(bytes.wrapping_add(addr - start)))
}

/// Report that a range is locked in one of the ways of [`lock`].
fn locked(stream: &mut Stream, how: u64, addr: u64, bytes: u64) {
    let (start, bytes) = touched_pages(addr, bytes);
    if how != lock::NOT && bytes > 0 {
        let on_fault = u64::from(how == lock::ON_FAULT);
        event_after(stream, &[what::LOCK, start, bytes, on_fault], b"");
    }
}

fn unlocked(stream: &mut Stream, addr: u64, bytes: u64) {
    let (start, bytes) = touched_pages(addr, bytes);
    event_after(stream, &[what::UNLOCK, start, bytes], b"");
}

fn round_up(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PAGE).unwrap_or(0)
}

fn mapped(stream: &mut Stream, a: &[u64; 6], done: u64) {
    let flags = a[3] as i32;
    let (mut name, mut file, mut offset) = (Vec::new(), (0, 0), 0);
    if flags & libc::MAP_ANONYMOUS == 0 {
        name = path(a[4]);
        if let Some(stat) = fstat(a[4] as i32) {
            // A mapping of a device has no file.
            if stat.st_mode & libc::S_IFMT == libc::S_IFREG {
                (file, offset) = ((stat.st_dev, stat.st_ino), a[5]);
            }
        }
    } else if flags & libc::MAP_STACK != 0 {
        name = b"[thread stack]".to_vec();
    }
    // `MAP_SHARED` and `MAP_SHARED_VALIDATE`.
    let shared = if flags & libc::MAP_SHARED != 0 { SHARED } else { 0 };
    let fixed = [what::MAP, done, round_up(a[1]), offset, a[2] & 7 | shared, file.0, file.1];
    sample::forget(done, round_up(a[1]));
    event_after(stream, &fixed, &name);
    if flags & libc::MAP_LOCKED != 0 {
        locked(stream, lock::NOW, done, a[1]);
    } else if LOCK_LATER.load(Relaxed) != lock::NOT {
        locked(stream, LOCK_LATER.load(Relaxed), done, a[1]);
    } else if flags & libc::MAP_POPULATE != 0 {
        event_after(stream, &[what::POPULATE, done, round_up(a[1])], b"");
    }
}

fn brk(stream: &mut Stream, done: u64) {
    let [start, end] = &HEAP;
    if start.load(Relaxed) == 0 || done < start.load(Relaxed) {
        // Not known yet: the first `brk` of a program queries the end of its heap.
        start.store(done, Relaxed);
        end.store(done, Relaxed);
    }
    let (start, before) = (start.load(Relaxed), end.swap(done, Relaxed));
    let fixed = [what::BRK, start, done - start, 0, HEAP_PROT];
    sample::forget(before.min(done), before.abs_diff(done));
    if FENCED.get() {
        stream.event(&fixed, b"[heap]");
    } else if done != before {
        event_after(stream, &fixed, b"[heap]");
    }
    if done > before {
        locked(stream, LOCK_LATER.load(Relaxed), before, done - before);
    }
}

/// Address and length of each buffer of an iovec, up to `bytes` in total. Empty if it cannot be
/// read.
fn vector(addr: u64, count: u64, bytes: u64) -> Vec<u64> {
    let mut parts = guest::words(addr, 2 * count.min(1024) as usize).unwrap_or_default();
    let mut left = bytes;
    for part in parts.chunks_exact_mut(2) {
        part[1] = part[1].min(left);
        left -= part[1];
    }
    parts
}

/// The file offset before a call that has advanced the offset at `pointer` by `done`; `None` if
/// `pointer` is 0.
fn start_offset(pointer: u64, done: u64) -> Option<u64> {
    let after = (pointer != 0).then(|| guest::words(pointer, 1)).flatten()?;
    Some(after[0].wrapping_sub(done))
}

fn path(fd: u64) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd as i32));
    path.map(|path| path.into_os_string().into_vec()).unwrap_or_default()
}

pub fn fstat(fd: i32) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes at most a `stat`, and all of it if it succeeds.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init()) }
}

/// Report that `bytes` moved between the file `fd` and the program's `buffers` (alternating
/// addresses and lengths). Without an `offset`, the file's position has advanced by `bytes`.
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
    if let Some(stat) = fstat(fd) {
        // SAFETY: only returns flags.
        let direct = || unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_DIRECT != 0;
        // Direct I/O bypasses the page cache.
        if stat.st_mode & libc::S_IFMT == libc::S_IFREG && !direct() {
            // SAFETY: only returns the position.
            let position = || unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } as u64;
            at = offset.unwrap_or_else(|| position().wrapping_sub(bytes));
            (device, inode) = (stat.st_dev, stat.st_ino);
            if new_file(device, inode) {
                stream.control_text(tag::FILE, &[device, inode], &path(fd as u64));
            }
        }
    }
    let mut words = vec![u64::from(write), device, inode, at, bytes];
    words.extend_from_slice(buffers);
    stream.control(tag::TRANSFER, &words);
}

/// Whether the name of a file has not been reported yet; from now on, it counts as reported.
fn new_file(device: u64, inode: u64) -> bool {
    // Never block: after a fork, a thread that the child does not have may hold the lock. A name
    // may be reported twice.
    let Ok(mut reported) = REPORTED.try_lock() else { return true };
    reported.get_or_insert_with(HashSet::new).insert((device, inode))
}
