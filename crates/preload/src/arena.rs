//! The allocator of the manager, the process that moves the program's pages and shares its memory. The
//! program's allocator is unusable for it: its pages may be moved away, so that the manager would wait
//! for itself, and a thread that waits for a page may hold its lock.

use std::alloc::{GlobalAlloc, Layout};
use std::ops::Range;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_live::linux::MADV_DONTNEED_LOCKED;

/// Bytes of reserved address space. Unused parts are inaccessible, so that `mlockall` does not fill them, and
/// walks over all pages of the process skip them: up to Linux 6.18, switching off `PR_SET_MEMORY_MERGE` makes
/// such a walk, which would take 8 s.
const RESERVED: usize = 1 << 38;
/// Bytes that are made accessible at a time.
const STEP: usize = 1 << 20;
/// Block sizes are powers of two: the binary logarithm of the smallest, 16 bytes, and their number.
const SMALLEST: u32 = 4;
const CLASSES: usize = 40;
/// The memory of free blocks of at least this size is returned to the kernel.
const LARGE: usize = 1 << 20;

struct State {
    /// The first unused byte, and the number of unused bytes from there on.
    next: *mut u8,
    left: usize,
    /// Bytes of the reservation, and accessible ones from `next` on.
    length: usize,
    usable: usize,
    /// Linked lists of free blocks, by size.
    free: [*mut u8; CLASSES],
}

impl State {
    /// Before address space is reserved.
    const EMPTY: Self =
        Self { next: null_mut(), left: 0, length: 0, usable: 0, free: [null_mut(); CLASSES] };
}

pub(crate) struct Arena {
    locked: AtomicBool,
    state: std::cell::UnsafeCell<State>,
}

// SAFETY: the state is only used with the lock held.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) const fn new() -> Self {
        Self { locked: AtomicBool::new(false), state: std::cell::UnsafeCell::new(State::EMPTY) }
    }

    /// Start anew, in a forked process: it has no copy of the reserved address space.
    pub(crate) fn reset(&self) {
        self.with(|state| *state = State::EMPTY);
    }

    /// The addresses in use so far.
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
        // SAFETY: the lock is held, and `act` does not allocate.
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
    /// A block, null if there is no room, and whether it was used before.
    fn take(&mut self, class: usize) -> (*mut u8, bool) {
        if class >= CLASSES {
            return (null_mut(), false);
        }
        let block = self.free[class];
        if !block.is_null() {
            // SAFETY: a free block begins with the address of the next one.
            self.free[class] = unsafe { *block.cast::<*mut u8>() };
            return (block, true);
        }
        if self.next.is_null() {
            self.reserve();
        }
        // Blocks are aligned to their size, up to `LARGE`.
        let align = size(class).min(LARGE);
        let skip = self.next.align_offset(align);
        if self.next.is_null() || self.left < size(class).saturating_add(skip) {
            return (null_mut(), false);
        }
        if !self.make_usable(size(class) + skip) {
            return (null_mut(), false);
        }
        // SAFETY: inside the reservation.
        let block = unsafe { self.next.add(skip) };
        // SAFETY: as above.
        self.next = unsafe { block.add(size(class)) };
        self.left -= size(class) + skip;
        self.usable -= size(class) + skip;
        (block, false)
    }

    /// Make `bytes` bytes from `next` on accessible; `left` is at least as many.
    fn make_usable(&mut self, bytes: usize) -> bool {
        if bytes <= self.usable {
            return true;
        }
        let more = (bytes - self.usable).next_multiple_of(STEP).min(self.left - self.usable);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: whole pages inside the reservation.
        let done = unsafe { libc::mprotect(self.next.add(self.usable).cast(), more, protection) };
        self.usable += if done == 0 { more } else { 0 };
        done == 0
    }

    fn reserve(&mut self) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut length = RESERVED;
        // Reserve less if address space is limited.
        while length >= 1 << 28 {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let start = unsafe { libc::mmap(null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
            if start != libc::MAP_FAILED {
                // SAFETY: the new mapping. A forked child has no manager.
                unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
                (self.next, self.left, self.length) = (start.cast(), length, length);
                return;
            }
            length /= 2;
        }
    }
}

// SAFETY: blocks have the requested size and alignment, and are not reused until they are freed.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.with(|state| state.take(class(layout)).0)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (block, used) = self.with(|state| state.take(class(layout)));
        // A large block was zeroed when it was freed, except for its first word.
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
            // SAFETY: a free block of whole pages; its memory may be locked.
            unsafe { libc::madvise(block.cast(), size(class), MADV_DONTNEED_LOCKED) };
        }
        self.with(|state| {
            // SAFETY: a free block begins with the address of the next one.
            unsafe { *block.cast::<*mut u8>() = state.free[class] };
            state.free[class] = block;
        });
    }
}
