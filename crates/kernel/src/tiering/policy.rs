//! The trait of tiering policies: threads, and hooks called by the *world* that executes the policy
//! (simulator, runtime or reference implementation).

use super::{DropReason, Memory, NodeId, Page, Tenant, Time};

/// Minimum duration of a thread's step, so that an idle loop makes progress.
pub const MIN_STEP: Time = Time::from_ps(1000);

/// One of a policy's threads, made by [`Memory::spawn`] and named as in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    index: u8,
    name: &'static str,
}

impl Thread {
    /// For worlds: create the handle of thread `index`.
    pub const fn new(index: u8, name: &'static str) -> Self {
        Self { index, name }
    }

    /// For worlds: the index of the thread.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// Where a thread runs, and to whom its time is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A kernel thread on its own core, which competes with the program for bandwidth only.
    Kernel,
    /// The program, before it returns from the kernel (task work); only while it runs.
    Program,
}

/// When a thread runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Right after this step.
    Again,
    /// At this time, or after this step if that is later.
    At(Time),
    /// When woken by [`Memory::wake`] or a completed copy.
    Idle,
}

/// A tiering policy, created by its [`PolicyEntry::make`](super::PolicyEntry::make).
///
/// Hooks are called one at a time, at [`Memory::now`]. The cost of their actions is charged to the
/// program or, in [`work`](Policy::work), to the thread. The page of a hook is mapped (except in
/// [`place`](Policy::place) and [`released`](Policy::released)) and is the first page of its
/// mapping.
pub trait Policy: Send {
    /// Choose the node for a page that is about to be touched for the first time and needs
    /// `frames`. If it is full, the slower nodes are tried, then the faster ones.
    fn place(&mut self, mem: &dyn Memory, _page: Page, frames: u32) -> NodeId {
        NodeId::all(mem.nodes())
            .find(|node| mem.free(*node) >= u64::from(frames))
            .unwrap_or(NodeId::FAST)
    }
    /// A page was mapped for the first time, or again after it was released. During set-up, nothing
    /// is charged.
    fn allocated(&mut self, _mem: &mut dyn Memory, _page: Page) {}
    /// The program unmapped a page of `span` frames. Its frames, its shadow (an equal copy on a slower
    /// node) and any copy in progress are freed. The policy must forget the page; its number may be
    /// reused. There is no default, because every policy with tables of pages must handle this.
    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32);
    /// The program referenced a page that is armed, that is, whose references fault
    /// ([`Memory::arm_hint`]); `write`: with a store. The reference is retried and faults again while the
    /// page is armed, so a policy must eventually disarm it.
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _write: bool) {
        mem.disarm_hint(page);
    }
    /// The program writes a write-protected page. The hook must make the page writable and drop its
    /// shadow, if any. The write is retried.
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        // Refused if there is no shadow.
        let _ = mem.drop_shadow(page, DropReason::Written);
        let _ = mem.unprotect(page);
    }
    /// The processor sampled a reference to base page `at` of the mapping `page`
    /// ([`Memory::sample_every`]).
    fn sample(&mut self, _mem: &mut dyn Memory, _page: Page, _at: Page, _write: bool) {}
    /// A new page of `tenant` did not fit on `node`. The allocation is retried once, then on other
    /// nodes.
    fn pressure(&mut self, _mem: &mut dyn Memory, _node: NodeId, _tenant: Tenant) {}
    /// Run one step of a thread, a small piece of work. The program and other threads may run for
    /// the duration of its cost, at least [`MIN_STEP`]. Wake-ups may be spurious.
    fn work(&mut self, _mem: &mut dyn Memory, _thread: Thread) -> Next {
        Next::Idle
    }
    /// For policies with [`PolicyEntry::foresees`](super::PolicyEntry::foresees): the number of
    /// references to each base page, by page number, in the coming phase (for traces: 1/40 of the
    /// trace). Actions cost no time.
    fn foresee(&mut self, _mem: &mut dyn Memory, _counts: &[u32]) {}
}
