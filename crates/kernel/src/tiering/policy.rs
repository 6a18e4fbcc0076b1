//! What a tiering policy is: hooks that a world calls, and threads that it runs.

use super::{DropReason, Memory, NodeId, Page, Tenant, Time};

/// The shortest step of a thread: without one a thread that does nothing would never let go.
pub const MIN_STEP: Time = Time::from_ps(1000);

/// One of a policy's threads, made by [`Memory::spawn`] and named as in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    index: u8,
    name: &'static str,
}

impl Thread {
    /// For worlds: the handle of their `index`-th thread.
    pub const fn new(index: u8, name: &'static str) -> Self {
        Self { index, name }
    }

    /// For worlds: which of their threads it is.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Its name in the kernel.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// Who does a thread's work and pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A kernel thread on a core of its own; it competes with the program for bandwidth only.
    Kernel,
    /// The program itself, before it returns from the kernel (task work); only while it runs.
    Program,
}

/// When a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as the time that this step took is over.
    Again,
    /// At that moment (or when the step is over, if later).
    At(Time),
    /// When it is woken: by [`Memory::wake`], or by a copy that is complete.
    Idle,
}

/// A tiering policy, made whole by its [`PolicyEntry::make`](super::PolicyEntry::make).
///
/// Hooks are called one at a time, each at one moment ([`Memory::now`]). What a hook's actions cost
/// is charged to the program, or to the thread that works. Where a hook names a page, it is mapped
/// (but for [`place`](Policy::place) and [`released`](Policy::released)) and is the beginning of
/// its mapping.
pub trait Policy: Send {
    /// A page is about to be touched for the first time and needs `frames`: which node to try
    /// first. Where that has no room the next slower and then the faster ones are tried.
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        let _ = page;
        NodeId::all(mem.nodes())
            .find(|node| mem.free(*node) >= u64::from(frames))
            .unwrap_or(NodeId::FAST)
    }
    /// A page has just been mapped for the first time, or again after it was released. During
    /// set-up the program does not run and nothing is charged.
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let _ = (mem, page);
    }
    /// The program has given a page of `span` frames back: it is not mapped any more, its frame,
    /// its shadow's and that of a copy under way are free. The policy must forget it; the same
    /// number may come again as a new page. No default: whoever keeps pages in tables must think of
    /// it.
    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32);
    /// The program referenced an armed page (`write`: with a store). The reference is tried again
    /// afterwards; if the page is still armed it is another hint fault. A policy must disarm each
    /// page after finitely many of them.
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        let _ = write;
        mem.disarm_hint(page);
    }
    /// The program writes a write-protected page. Afterwards it must be writable, so its shadow,
    /// if any, dropped. The write is tried again.
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        // Refused if there is no shadow, which is as well.
        let _ = mem.drop_shadow(page, DropReason::Written);
        let _ = mem.unprotect(page);
    }
    /// The processor sampled a reference to base page `at` of the mapping `page`
    /// ([`Memory::sample_every`]).
    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        let _ = (mem, page, at, write);
    }
    /// A new page of `tenant` could not be put on `node`, which has no room for it. It is tried
    /// once more afterwards, then on other nodes.
    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, tenant: Tenant) {
        let _ = (mem, node, tenant);
    }
    /// One step of a thread: a small piece of work, after which the program and other threads may
    /// run until its cost in time ([`MIN_STEP`] at least) is over. A thread may be woken without
    /// work to do.
    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let _ = (mem, thread);
        Next::Idle
    }
    /// For a policy whose [`PolicyEntry::foresees`](super::PolicyEntry::foresees): how often each base page
    /// will be referenced in the phase (of a trace: the fortieth of it) that begins now, by page
    /// number. Its actions cost no time.
    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        let _ = (mem, counts);
    }
}
