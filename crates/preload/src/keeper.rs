//! The keeper: a process that shares the manager's descriptors, but not its memory.
//!
//! If the manager is killed, its userfaultfds, including those of children, stay open in the keeper. So a
//! reference to a missing page waits, and never reads zeros. The keeper then has the launcher kill the run,
//! or kills it itself. Because it has its own memory, the kernel does not kill it with the program when
//! memory runs out.

use std::fs::File;
use std::io::{Error, Write};
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use nearfar_live::family;
use nearfar_live::linux::{copy_of, process_of, wait};
use nearfar_live::shared::{Block, CALL, Shared, State};

use crate::{ARENA, pause};

/// How long the launcher may take to kill the run, in tenths of a second.
const LAUNCHER_TIMEOUT: u32 = 50;

/// The manager's handle of the keeper.
pub(crate) struct Keeper {
    /// In memory shared with the keeper: 1 once the manager has finished.
    is_over: &'static AtomicU32,
}

impl Keeper {
    /// Let the keeper end: the manager has finished, and no process waits for a page.
    pub(crate) fn release(&self) {
        self.is_over.store(1, Ordering::Release);
    }
}

/// Start the keeper. `launcher`: the launcher's PID and its eventfd. No memory that a fork copies may be
/// registered with userfaultfd yet: the manager's fork would wait until the manager reads the fork event.
pub(crate) fn start(
    shared: &'static Shared,
    block: &'static Block,
    launcher: (u32, u32),
) -> Result<Keeper, Error> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, of zeros.
    let word = unsafe { libc::mmap(null_mut(), 4096, protection, flags, -1, 0) };
    if word == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // SAFETY: the mapping, which stays.
    let is_over = unsafe { &*word.cast::<AtomicU32>() };
    let manager = process_of(std::process::id())?.into_raw_fd();
    // SAFETY: a fork with a shared table of descriptors. This process has one thread.
    match unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) } {
        -1 => Err(Error::last_os_error()),
        0 => keep(manager, is_over, shared, block, launcher),
        keeper => {
            block.keeper.store(keeper as u32, Ordering::Release);
            Ok(Keeper { is_over })
        }
    }
}

/// The keeper's process. It has no copy of the arena: nothing that was allocated before may be used.
fn keep(
    manager: RawFd,
    is_over: &AtomicU32,
    shared: &Shared,
    block: &Block,
    launcher: (u32, u32),
) -> ! {
    ARENA.reset();
    // SAFETY: system calls that take numbers, and a name that ends in zero.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"nearfar-keep".as_ptr());
    }
    while !wait([Some(manager)], u64::MAX)[0] {}
    if is_over.load(Ordering::Acquire) == 0 {
        block.fail("its manager was killed");
        end(shared, block, launcher);
    }
    // SAFETY: ends this process.
    unsafe { libc::_exit(0) }
}

/// Have the launcher kill the run, and this process last. Without a launcher, or if that has not
/// happened after 5 s, kill the run here.
fn end(shared: &Shared, block: &Block, (launcher, bell): (u32, u32)) {
    let pid = block.pid.load(Ordering::Relaxed);
    let message =
        format!("nearfar: error: the program was ended: process {pid}: {}\n", block.why());
    if shared.head().ended().is_none()
        && let Ok(bell) = copy_of(launcher, bell)
    {
        let _ = File::from(bell).write_all(&CALL);
        for _ in 0..LAUNCHER_TIMEOUT {
            pause(100_000_000);
        }
    }
    // The program may have ended while its children still run.
    for pid in [pid].into_iter().chain(family::program(shared)) {
        let stderr = File::options()
            .append(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/{pid}/fd/2"));
        if stderr.is_ok_and(|mut stderr| stderr.write_all(message.as_bytes()).is_ok()) {
            break;
        }
    }
    // `u32::MAX`: do not search for descendants of the reaper (the launcher's child), which may have ended.
    family::kill(shared, u32::MAX);
    block.set_state(State::Ended);
}
