//! `mremap` over what was one mapping before the manager came.
//!
//! A part of a mapping that the program renews by `MAP_FIXED` is not managed until it is found, some 20 ms
//! later. Until then the kernel has two mappings where it would have one, and `mremap` refuses the whole. So
//! the manager is asked to look at once, and the call is made again.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{c_int, c_void, size_t};

/// The process that has a manager, and where it is called. A child of fork has none.
static MANAGED: AtomicI32 = AtomicI32::new(0);
static DOORBELL: AtomicU64 = AtomicU64::new(0);

/// Remember this process, and the address at which its manager is called.
pub(crate) fn prepare(doorbell: u64) {
    // SAFETY: a system call without arguments.
    MANAGED.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    DOORBELL.store(doorbell, Ordering::Relaxed);
}

/// As in libc, which declares the last argument as one that may be missing.
#[unsafe(no_mangle)]
extern "C" fn mremap(
    old: *mut c_void,
    old_size: size_t,
    new_size: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: a system call with the caller's arguments.
    let call = || unsafe { libc::syscall(libc::SYS_mremap, old, old_size, new_size, flags, new) };
    let mut done = call();
    // SAFETY: this thread's error number, and a system call without arguments.
    let refused = done < 0
        && unsafe { *libc::__errno_location() == libc::EFAULT }
        && unsafe { libc::getpid() } == MANAGED.load(Ordering::Relaxed);
    if refused {
        let doorbell = DOORBELL.load(Ordering::Relaxed) as *const u8;
        // SAFETY: a page of the library's own, which the manager gives to who refers to it.
        unsafe { doorbell.read_volatile() };
        done = call();
    }
    done as *mut c_void
}
