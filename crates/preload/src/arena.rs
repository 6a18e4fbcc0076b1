//! Memory of the manager's own. The program's allocator is out of bounds: its memory may be missing,
//! and only the manager brings it back; and its lock may be held by a thread that waits for a page.

use std::alloc::{GlobalAlloc, Layout};
use std::ops::Range;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_live::linux::MADV_DONTNEED_LOCKED;

/// Address space that is taken at once. It is out of reach until it is used: `mlockall` does not fill it, and
/// the kernel passes over it where it goes through a process page by page, as Linux up to 6.18 does when
/// `PR_SET_MEMORY_MERGE` is switched off (8 s for all of it).
const RESERVED: usize = 1 << 38;
/// So much of it is made usable at a time.
const STEP: usize = 1 << 20;
/// Sizes are powers of two from 16 bytes on.
const SMALLEST: u32 = 4;
const CLASSES: usize = 40;
/// Blocks of this size are given back to the kernel while nobody uses them.
const LARGE: usize = 1 << 20;

struct State {
    next: *mut u8,
    left: usize,
    /// All of it, and bytes from `next` on that can be used.
    length: usize,
    usable: usize,
    free: [*mut u8; CLASSES],
}

/// The allocator.
pub(crate) struct Arena {
    locked: AtomicBool,
    state: std::cell::UnsafeCell<State>,
}

// SAFETY: the state is used with the lock held only.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) const fn new() -> Self {
        let state =
            State { next: null_mut(), left: 0, length: 0, usable: 0, free: [null_mut(); CLASSES] };
        Self { locked: AtomicBool::new(false), state: std::cell::UnsafeCell::new(state) }
    }

    /// Take address space anew. For a copy of the process, which has not got this one's.
    pub(crate) fn start_again(&self) {
        self.with(|state| {
            (state.next, state.left, state.usable) = (null_mut(), 0, 0);
            state.free = [null_mut(); CLASSES];
        });
    }

    /// Addresses that were taken so far.
    pub(crate) fn range(&self) -> Range<u64> {
        self.with(|state| {
            let end = state.next.addr() as u64;
            end.saturating_sub((state.length - state.left) as u64)..end
        })
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        while self.locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is held, and `act` takes no memory.
        let done = act(unsafe { &mut *self.state.get() });
        self.locked.store(false, Ordering::Release);
        done
    }
}

fn class(layout: Layout) -> usize {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST);
    (size.next_power_of_two().trailing_zeros() - SMALLEST) as usize
}

fn size(class: usize) -> usize {
    1 << (class + SMALLEST as usize)
}

impl State {
    /// A block, and whether it may hold something.
    fn take(&mut self, class: usize) -> (*mut u8, bool) {
        if class >= CLASSES {
            return (null_mut(), false);
        }
        let block = self.free[class];
        if !block.is_null() {
            // SAFETY: a block on the list begins with the next one's address.
            self.free[class] = unsafe { *block.cast::<*mut u8>() };
            return (block, true);
        }
        if self.next.is_null() {
            self.reserve();
        }
        // Blocks are aligned to their size, up to that of a large one.
        let align = size(class).min(LARGE);
        let skip = self.next.align_offset(align);
        if self.next.is_null() || self.left < size(class).saturating_add(skip) {
            return (null_mut(), false);
        }
        if !self.make_usable(size(class) + skip) {
            return (null_mut(), false);
        }
        // SAFETY: inside what is left.
        let block = unsafe { self.next.add(skip) };
        // SAFETY: as above.
        self.next = unsafe { block.add(size(class)) };
        self.left -= size(class) + skip;
        self.usable -= size(class) + skip;
        (block, false)
    }

    /// Make so many bytes from `next` on usable; `left` has them.
    fn make_usable(&mut self, bytes: usize) -> bool {
        if bytes <= self.usable {
            return true;
        }
        let more = (bytes - self.usable).next_multiple_of(STEP).min(self.left - self.usable);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: inside what is left, and whole pages: steps of the mapping.
        let done = unsafe { libc::mprotect(self.next.add(self.usable).cast(), more, protection) };
        self.usable += if done == 0 { more } else { 0 };
        done == 0
    }

    fn reserve(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut length = RESERVED;
        // Less where address space is limited.
        while length >= 1 << 28 {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start = unsafe { libc::mmap(null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
            if start != libc::MAP_FAILED {
                // SAFETY: the mapping. A child of fork has no manager.
                unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
                (self.next, self.left, self.length) = (start.cast(), length, length);
                return;
            }
            length /= 2;
        }
    }
}

// SAFETY: blocks are as large as asked, aligned, and nobody else's until they are freed.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.with(|state| state.take(class(layout)).0)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (block, used) = self.with(|state| state.take(class(layout)));
        // A large block was emptied when it was freed, but for its first word.
        let length = if size(class(layout)) < LARGE { layout.size() } else { size_of::<*mut u8>() };
        if used {
            // SAFETY: a block of at least this size.
            unsafe { ptr::write_bytes(block, 0, length) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let class = class(layout);
        if size(class) >= LARGE {
            // SAFETY: a block that nobody uses any more, of whole pages; its memory may be locked.
            unsafe { libc::madvise(block.cast(), size(class), MADV_DONTNEED_LOCKED) };
        }
        self.with(|state| {
            // SAFETY: as above; it begins with the next one's address from now on.
            unsafe { *block.cast::<*mut u8>() = state.free[class] };
            state.free[class] = block;
        });
    }
}
