//! Programs that change their user or groups.
//!
//! The kernel changes them thread by thread; libc has all threads do it, and ends the program if one
//! may not what another may. The manager is a thread that the program does not know of: a program with
//! one thread of its own, such as `setpriv`, arranges that thread's capabilities only. So in such a
//! program these functions change the caller alone, and the manager stays as it was.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The process that has a manager: a child of fork has none.
static MANAGED: AtomicI32 = AtomicI32::new(0);

/// Remember this process, and find libc's functions while it can be waited for.
pub(crate) fn prepare() {
    // SAFETY: a system call without arguments.
    MANAGED.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    for (name, next) in NEXT {
        // SAFETY: a name that ends in zero.
        next.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Ordering::Relaxed);
    }
}

/// Whether the caller is the only thread but for the manager. Takes no memory and no lock.
fn is_alone() -> bool {
    // SAFETY: system calls on a variable of this function and a name that ends in zero.
    let text = unsafe {
        if libc::getpid() != MANAGED.load(Ordering::Relaxed) {
            return false;
        }
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let mut text = [0u8; 512];
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        if length <= 0 {
            return false;
        }
        text
    };
    // `1 (name) S 1 1 1 0 -1 ...`: the twentieth word, where the name may hold anything.
    let after = text.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 2);
    let threads = text[after..].split(|byte| *byte == b' ').nth(17);
    threads == Some(b"2")
}

fn answer(done: c_long) -> c_int {
    // `syscall` has set errno.
    done as c_int
}

macro_rules! users {
    ($($next:ident $symbol:literal $name:ident($($word:ident: $kind:ty),*) = $call:expr;)*) => {
        $(static $next: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*

        static NEXT: &[(&CStr, &AtomicPtr<c_void>)] = &[$(($symbol, &$next)),*];

        $(
            /// As in libc.
            #[unsafe(no_mangle)]
            extern "C" fn $name($($word: $kind),*) -> c_int {
                let mut next = $next.load(Ordering::Relaxed);
                if !next.is_null() && is_alone() {
                    // SAFETY: a system call with the caller's arguments.
                    return answer(unsafe { $call });
                }
                if next.is_null() {
                    // SAFETY: a name that ends in zero.
                    next = unsafe { libc::dlsym(libc::RTLD_NEXT, $symbol.as_ptr()) };
                }
                // SAFETY: libc's function of this name, which takes these.
                let real: extern "C" fn($($kind),*) -> c_int = unsafe { std::mem::transmute(next) };
                real($($word),*)
            }
        )*
    };
}

const SAME: c_long = -1;

users! {
    SETUID c"setuid" setuid(user: u32) = libc::syscall(libc::SYS_setuid, user);
    SETGID c"setgid" setgid(group: u32) = libc::syscall(libc::SYS_setgid, group);
    SETEUID c"seteuid" seteuid(user: u32) = libc::syscall(libc::SYS_setresuid, SAME, user, SAME);
    SETEGID c"setegid" setegid(group: u32) = libc::syscall(libc::SYS_setresgid, SAME, group, SAME);
    SETREUID c"setreuid" setreuid(real: u32, effective: u32)
        = libc::syscall(libc::SYS_setreuid, real, effective);
    SETREGID c"setregid" setregid(real: u32, effective: u32)
        = libc::syscall(libc::SYS_setregid, real, effective);
    SETRESUID c"setresuid" setresuid(real: u32, effective: u32, saved: u32)
        = libc::syscall(libc::SYS_setresuid, real, effective, saved);
    SETRESGID c"setresgid" setresgid(real: u32, effective: u32, saved: u32)
        = libc::syscall(libc::SYS_setresgid, real, effective, saved);
    SETGROUPS c"setgroups" setgroups(count: usize, groups: *const u32)
        = libc::syscall(libc::SYS_setgroups, count, groups);
    INITGROUPS c"initgroups" initgroups(name: *const c_char, group: u32)
        = groups_of(name, group);
}

/// `initgroups`, which libc does by a `setgroups` of its own.
unsafe fn groups_of(name: *const c_char, group: u32) -> c_long {
    let mut groups = [0u32; 4096];
    let mut count = groups.len() as c_int;
    // SAFETY: the caller's name, and as many groups as there is room for; then a system call with them.
    unsafe {
        if libc::getgrouplist(name, group, groups.as_mut_ptr(), &raw mut count) < 0 {
            *libc::__errno_location() = libc::EINVAL;
            return -1;
        }
        libc::syscall(libc::SYS_setgroups, count as usize, groups.as_ptr())
    }
}
