//! Tiering: which pages lie in fast memory and which in slow memory.
//!
//! A [`Policy`] sees events and answers with actions on a [`Memory`]; it knows no time constants
//! and nothing of who carries its actions out. The simulator (`nearfar-study`) and the tiny
//! [`plain::PlainMemory`] are two such worlds; a runtime under a real program is meant to be a
//! third.
//!
//! To add a policy: one file here with a [`Named`], one line in the registry below, one test.
//! What policies share of the kernel has files of its own: [`lists`] (active and inactive lists,
//! two-touch activation), [`reclaim`] (watermarks, kswapd), [`scan`] (hint-fault scanning).

use std::fmt;

use nearfar_trace::{Error, Result};

pub mod knobs;
pub mod lists;
pub mod pages;
pub mod plain;
pub mod reclaim;
pub mod scan;
#[cfg(test)]
mod tests;
pub mod toy;

pub use knobs::{Knob, Knobs, Settings};

/// Bytes of a frame, and of a base page.
pub const FRAME: u64 = 4096;
/// Frames of a huge page.
pub const HUGE: u32 = 512;

/// A page number: the `index`-th base page of the program's address space. A huge page goes by
/// its first base page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(u32);

impl Page {
    /// The page of this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Its number, to index a table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A memory node; 0 is the fastest and the one of the program's processor, a higher number is
/// slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    /// The fastest node.
    pub const FAST: NodeId = NodeId(0);

    /// The node of this number.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Its number, to index a table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Where this node's pages are demoted to, if there is a slower one among `nodes`.
    pub fn slower(self, nodes: u8) -> Option<NodeId> {
        (self.0 + 1 < nodes).then(|| NodeId(self.0 + 1))
    }

    /// All of `nodes`, fastest first.
    pub fn all(nodes: u8) -> impl Iterator<Item = NodeId> {
        (0..nodes).map(NodeId)
    }
}

/// A moment, or a span, in picoseconds since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// Never.
    pub const NEVER: Time = Time(u64::MAX);

    /// So many picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// In picoseconds.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// This much later; never stays never.
    #[must_use]
    pub const fn plus(self, span: Time) -> Time {
        Time(self.0.saturating_add(span.0))
    }

    /// From `earlier` until now, zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}

/// One of a policy's threads: an index into [`Policy::threads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread(pub u8);

/// Who does a thread's work and pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A kernel thread on a core of its own; it competes with the program for bandwidth only.
    Kernel,
    /// The program itself, before it returns from the kernel (task work); only while it runs.
    Program,
}

/// A thread of a policy.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSpec {
    /// Its name in the kernel.
    pub name: &'static str,
    /// Who runs it.
    pub context: Context,
}

/// When a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as the time that this step took is over.
    Again,
    /// At that moment (or when the step is over, if later).
    At(Time),
    /// When it is woken.
    Idle,
}

/// Why an action was not carried out; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node has no free frames for it.
    NoFrame,
    /// The page is being copied by [`Memory::begin_copy`].
    Busy,
    /// The page is not in a state for this: not mapped, already there, no shadow, ...
    State,
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The page is at its new place.
    Done,
    /// It was written meanwhile: it is where it was, the copy is gone.
    Dirtied,
}

/// Why a shadow is dropped; only counters depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// Its master is about to be written.
    Written,
    /// Its frame is needed.
    Reclaimed,
}

/// Memory as a policy sees it.
///
/// Every page that the program has touched is mapped to one frame of one node. A page may have a
/// **shadow**: a second frame, on a slower node, that holds the same content; its master is then
/// write-protected and clean. A page is a huge page while [`span`](Memory::span) says so; all its
/// base pages are one mapping, named by the first.
///
/// Actions may be called from any hook of a [`Policy`]. Each takes effect at once; the time it
/// takes is charged to whoever runs the hook. An action that is refused changes nothing. After
/// every action: each mapped page has exactly one frame; a shadow belongs to exactly one page,
/// which is clean and write-protected; a frame is free or has exactly one use.
pub trait Memory {
    /// The moment at which the current event began.
    fn now(&self) -> Time;
    /// Page numbers go from 0 to below this.
    fn pages(&self) -> u32;
    /// Number of nodes, 1 to 4.
    fn nodes(&self) -> u8;
    /// Frames of a node, used or free.
    fn capacity(&self, node: NodeId) -> u64;
    /// Free frames of a node.
    fn free(&self, node: NodeId) -> u64;
    /// Whether a mapping begins at this page number: false for a page never touched, and for the
    /// inner pages of a huge page.
    fn mapped(&self, page: Page) -> bool;
    /// The node of a mapped page.
    fn node_of(&self, page: Page) -> NodeId;
    /// Frames of the mapping at this page: 1, or [`HUGE`].
    fn span(&self, page: Page) -> u32;
    /// The accessed bit: set by the program's references since it was last cleared.
    fn accessed(&self, page: Page) -> bool;
    /// The dirty bit: set by writes since the page was mapped, last began to be copied, or moved
    /// to a faster node.
    fn dirty(&self, page: Page) -> bool;
    /// Whether the next reference will be a hint fault.
    fn hint_armed(&self, page: Page) -> bool;
    /// Whether the next write will be a write-protect fault.
    fn write_protected(&self, page: Page) -> bool;
    /// The node of the page's shadow, if it has one.
    fn shadow_of(&self, page: Page) -> Option<NodeId>;

    /// Clear the accessed bit and say what it was. References made through a translation that the
    /// processor still holds may go unseen afterwards, as on x86.
    fn clear_accessed(&mut self, page: Page) -> bool;
    /// Let the next reference to the page be a hint fault.
    fn arm_hint(&mut self, page: Page);
    /// Let references to the page go through, and set its accessed bit.
    fn disarm_hint(&mut self, page: Page);
    /// Let the next write to the page be a write-protect fault. Reads go on.
    fn write_protect(&mut self, page: Page);
    /// Let writes go through.
    ///
    /// # Errors
    /// [`Refused::State`] while the page has a shadow, which a write would make stale.
    fn unprotect(&mut self, page: Page) -> std::result::Result<(), Refused>;

    /// Move a page, stopping the program if it wants it meanwhile: unmap, copy, map. Afterwards it
    /// is not armed, not write-protected and not accessed; moved to a faster node it is clean,
    /// moved to a slower one it keeps its dirty bit. A shadow it had is freed (and counted as
    /// reclaimed).
    ///
    /// # Errors
    /// [`Refused`]: no frame, being copied, not mapped or already there.
    fn move_page(&mut self, page: Page, to: NodeId) -> std::result::Result<(), Refused>;
    /// Begin to copy a page that stays mapped and may be written meanwhile: takes a frame on `to`,
    /// clears the dirty bit. The step that called this takes as long as the copy does; to be
    /// followed, in a later step of the same thread, by [`commit_copy`](Memory::commit_copy). One
    /// copy at a time for each thread.
    ///
    /// # Errors
    /// [`Refused`]: no frame, being copied, not mapped, already there or having a shadow.
    fn begin_copy(&mut self, page: Page, to: NodeId) -> std::result::Result<(), Refused>;
    /// End the copy of a page. Not written meanwhile: it is mapped at its new place, not armed, not
    /// accessed, clean; with `keep_shadow` its old frame becomes its shadow and it is
    /// write-protected, else the old frame is free and writes go through. Written meanwhile: it
    /// stays where it was and the new frame is free.
    ///
    /// # Errors
    /// [`Refused::State`] if the page is not being copied; `keep_shadow` towards a slower node.
    fn commit_copy(
        &mut self,
        page: Page,
        keep_shadow: bool,
    ) -> std::result::Result<Commit, Refused>;
    /// Map the page to its shadow and free the frame it had: a demotion without a copy. Afterwards
    /// it has no shadow and is not armed, not write-protected, not accessed, clean.
    ///
    /// # Errors
    /// [`Refused`]: it has no shadow, or is being copied.
    fn remap_to_shadow(&mut self, page: Page) -> std::result::Result<(), Refused>;
    /// Free the page's shadow. The page stays write-protected until
    /// [`unprotect`](Memory::unprotect).
    ///
    /// # Errors
    /// [`Refused::State`]: it has none.
    fn drop_shadow(&mut self, page: Page, why: Drop) -> std::result::Result<(), Refused>;
    /// Make a huge page 512 base pages on the same node, with its bits.
    ///
    /// # Errors
    /// [`Refused`]: not a huge page, has a shadow, or is being copied.
    fn split(&mut self, page: Page) -> std::result::Result<(), Refused>;

    /// Let an idle thread of this policy run; nothing happens if it is not idle.
    fn wake(&mut self, thread: Thread);
    /// Report every so-many-th cache line whose load misses, and every so-many-th stored, by
    /// [`Policy::sample`]; 0 for none.
    fn sample_every(&mut self, loads: u64, stores: u64);
}

/// A tiering policy. Hooks are called one at a time, each at one moment.
pub trait Policy: Send {
    /// Its threads; the first step of each is one idle wake-up away, except those that
    /// [`start`](Policy::start) names.
    fn threads(&self) -> Vec<ThreadSpec> {
        Vec::new()
    }
    /// Called once, before any page is mapped: size the tables, and say which threads begin when.
    /// No actions on pages yet.
    fn start(&mut self, mem: &mut dyn Memory) -> Vec<(Thread, Time)> {
        let _ = mem;
        Vec::new()
    }
    /// A page is about to be touched for the first time and needs `frames`: which node to try
    /// first. Where that has no room the next slower and then the faster ones are tried.
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        let _ = page;
        NodeId::all(mem.nodes())
            .find(|node| mem.free(*node) >= u64::from(frames))
            .unwrap_or(NodeId::FAST)
    }
    /// A page has just been mapped for the first time. During set-up the program does not run and
    /// nothing is charged.
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let _ = (mem, page);
    }
    /// The program referenced an armed page (`write`: with a store). The reference is tried again
    /// afterwards; if the page is still armed it is another hint fault. A policy that arms pages
    /// must disarm each after finitely many of them.
    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        let _ = write;
        mem.disarm_hint(page);
    }
    /// The program writes a write-protected page. Afterwards it must be writable, so its shadow,
    /// if any, dropped. The write is tried again.
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page);
    /// The processor sampled a reference to base page `at` of the mapping `page`.
    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, write: bool) {
        let _ = (mem, page, at, write);
    }
    /// A new page could not be put on `node`, which has no room.
    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId) {
        let _ = (mem, node);
    }
    /// One step of a thread: a small piece of work, after which the program and other threads may
    /// run until its cost in time is over.
    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let _ = (mem, thread);
        Next::Idle
    }
    /// For a policy whose [`Named::foresees`]: how often each base page will be referenced in the
    /// phase (of a trace: the fortieth of it) that begins now. Its actions cost no time.
    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        let _ = (mem, counts);
    }
}

/// A policy of the registry.
pub struct Named {
    /// One line for lists.
    pub what: &'static str,
    /// Whether it is told the future ([`Policy::foresee`]); such a policy is a bound.
    pub foresees: bool,
    /// Its knobs, with the defaults of their sources.
    pub knobs: fn() -> Vec<Knob>,
    /// Make one. Settings it does not know have been refused already.
    pub make: fn(&Settings) -> Result<Box<dyn Policy>>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").field("what", &self.what).finish_non_exhaustive()
    }
}

/// The registry: one line a policy. The name is the module's, so no two can be the same.
macro_rules! policies {
    ($($name:ident,)*) => {
        $(pub mod $name;)*

        /// Every policy, by name.
        pub static POLICIES: &[(&str, &Named)] = &[$((stringify!($name), &$name::POLICY),)*];
    };
}

policies! {
    none,
    autonuma,
    tpp,
    memtis,
    nomad,
    ssp,
    oracle,
}

/// The policy of this name.
///
/// # Errors
/// An input error with the nearest name.
pub fn find(name: &str) -> Result<&'static Named> {
    POLICIES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy).ok_or_else(|| {
        let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
        Error::input(
            "--policy",
            format!("no tiering policy is called `{}`", knobs::clip(name)),
            knobs::suggest(name, &names),
        )
    })
}

/// Make the policy of this name with these settings.
///
/// # Errors
/// Input errors: no such policy, no such knob (with the nearest name), or a value out of place.
pub fn make(name: &str, settings: &Settings) -> Result<Box<dyn Policy>> {
    let policy = find(name)?;
    settings.check(name, &(policy.knobs)())?;
    (policy.make)(settings)
}
