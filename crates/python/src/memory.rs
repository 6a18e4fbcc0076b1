//! The allocator. When the system has no memory left, it prints one line and exits with a code; Rust
//! would end the process with a signal.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

pub(crate) struct Allocator(pub(crate) MiMalloc);

// SAFETY: all is done by the allocator inside; what it cannot give is not returned from.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: what is promised of `layout` is promised to us.
        given(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above, of `old` and `size` too.
        given(unsafe { self.0.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(old, layout) }
    }
}

#[inline]
fn given(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        exhausted(bytes);
    }
    memory
}

#[cold]
fn exhausted(bytes: usize) -> ! {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        // Another thread prints its line and ends the process.
        loop {
            // SAFETY: waits for a signal, and needs no memory.
            unsafe { libc::pause() };
        }
    }
    let mut line = [0u8; 160];
    let mut rest = &mut line[..];
    // Nothing here may ask for memory.
    let _ = writeln!(
        rest,
        "nearfar: error: memory: cannot allocate {bytes} bytes; free some memory, or raise its limit \
         (`ulimit -v`)"
    );
    let length = 160 - rest.len();
    // SAFETY: `line` has at least `length` bytes; ending the process needs nothing.
    unsafe {
        libc::write(2, line.as_ptr().cast(), length);
        libc::_exit(2)
    }
}
