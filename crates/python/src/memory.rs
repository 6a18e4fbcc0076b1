//! A global allocator that, out of memory, prints one line and exits with code 2. Rust would abort with a
//! signal.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

pub(crate) struct Allocator(pub(crate) MiMalloc);

// SAFETY: forwards to the inner allocator, and does not return if that fails.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the same for `layout`.
        checked(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above, also for `old` and `size`.
        checked(unsafe { self.0.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(old, layout) }
    }
}

#[inline]
fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        exhausted(bytes);
    }
    memory
}

#[cold]
fn exhausted(bytes: usize) -> ! {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if PRINTED.swap(true, Ordering::Relaxed) {
        // Another thread prints the line and ends the process.
        loop {
            // SAFETY: waits for a signal, and does not allocate.
            unsafe { libc::pause() };
        }
    }
    let mut line = [0u8; 160];
    let mut unwritten = &mut line[..];
    // This must not allocate.
    let _ = writeln!(
        unwritten,
        "nearfar: error: memory: cannot allocate {bytes} bytes; free some memory, or raise the process limit \
         (`ulimit -v`)"
    );
    let length = 160 - unwritten.len();
    // SAFETY: `line` has at least `length` bytes; neither call allocates.
    unsafe {
        libc::write(2, line.as_ptr().cast(), length);
        libc::_exit(2)
    }
}
