//! Whether the managed program still uses its memory.
//!
//! The manager is a separate process that shares the program's address space. It outlives the program's exit,
//! kill, and exec, which replaces the address space.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::{process_of, wait};
use crate::family::any_number;

/// `KCMP_VM` of `include/uapi/linux/kcmp.h`.
const KCMP_VM: libc::c_int = 1;

/// A managed process.
#[derive(Debug)]
pub struct Owner {
    pid: u32,
    pidfd: OwnedFd,
    has_left: bool,
}

impl Owner {
    /// The program, which must call this itself; the manager calls the other methods.
    pub fn this_process() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self { pid, pidfd: process_of(pid)?, has_left: false })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable when it has ended; `None` once [`has_left`](Self::has_left) is true.
    pub fn descriptor(&self) -> Option<RawFd> {
        (!self.has_left).then_some(self.pidfd.as_raw_fd())
    }

    /// Whether it has ended or runs another program.
    pub fn has_left(&mut self) -> bool {
        self.has_left = self.has_left
            || wait([self.descriptor()], 0)[0]
            || shares_memory(self.pid) == Some(false);
        self.has_left
    }

    /// Whether the program has left, and no other process uses its memory, such as a child of `vfork` before
    /// its exec. Allocates nothing from the program's allocator, which is unusable after the program's end.
    pub fn memory_is_unused(&mut self) -> bool {
        self.has_left() && !self.memory_has_others()
    }

    /// Whether another process uses this process's memory.
    fn memory_has_others(&self) -> bool {
        // Fails unless this process has one thread and shares its memory with nobody. It has no other effect.
        // SAFETY: a system call that takes a number.
        if unsafe { libc::unshare(libc::CLONE_VM) } == 0 {
            return false;
        }
        let this_pid = std::process::id();
        let has = any_number("/proc", |pid| pid != this_pid && shares_memory(pid) == Some(true));
        // If unknown, a later call may find out.
        has.unwrap_or(true)
    }
}

/// Whether a process has the address space of this one; `None` if unknown.
fn shares_memory(pid: u32) -> Option<bool> {
    match thread_shares_memory(pid) {
        // The main thread may have ended before others.
        Some(false) => {
            let tasks = format!("/proc/{pid}/task");
            let others = any_number(&tasks, |thread| {
                thread != pid && thread_shares_memory(thread) == Some(true)
            });
            // Without the folder, the process has ended.
            others.or_else(|| (!std::path::Path::new(&tasks).exists()).then_some(false))
        }
        known => known,
    }
}

fn thread_shares_memory(pid: u32) -> Option<bool> {
    // SAFETY: a system call that takes numbers.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, std::process::id(), pid, KCMP_VM, 0, 0) };
    match order {
        0 => Some(true),
        1.. => Some(false),
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::ESRCH) => Some(false),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_child_after_exec_does_not_share_this_memory() {
        let mut owner = Owner::this_process().unwrap();
        assert!(!owner.has_left());
        assert_eq!(owner.pid(), std::process::id());
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        assert_eq!(shares_memory(child.id()), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shares_memory(child.id()), Some(false));
    }

    #[test]
    fn another_process_with_this_memory_is_found() {
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        extern "C" fn stays(_: *mut libc::c_void) -> libc::c_int {
            while !IS_OVER.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            0
        }
        let owner = Owner::this_process().unwrap();
        let mut stack = vec![0u8; 1 << 16];
        let top = stack.as_mut_ptr_range().end;
        let top = top.wrapping_sub(top.addr() % 16).cast();
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: a process on a stack of its own, which is there until it was waited for.
        let pid = unsafe { libc::clone(stays, top, flags, std::ptr::null_mut()) };
        assert!(pid > 0 && owner.memory_has_others());
        assert_eq!(shares_memory(pid as u32), Some(true));
        IS_OVER.store(true, Ordering::Release);
        // SAFETY: the child of this test.
        assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
        // Programs that other tests start share this memory until their exec.
        while owner.memory_has_others() {
            std::thread::yield_now();
        }
    }
}
