//! The memory that a policy acts on: a contract for every *world* that runs policies (simulator,
//! runtime or reference implementation), tested by `testing::conformance`.

use nearfar_trace::Error;

use super::{Context, NodeId, Page, Tenant, Thread, Time};

/// Why an action was refused. A refused action changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node has no free frame, or the tenant's limit is reached. A runtime may refuse
    /// even if [`Memory::free`] is not 0: other programs may use the frames.
    NoFrame,
    /// A copy of the page ([`Memory::begin_copy`]) is in progress.
    Busy,
    /// The page is locked, shared with a child, or under I/O, and cannot be unmapped, protected or
    /// moved, possibly for long.
    Pinned,
    /// The page's state does not allow the action: not mapped, already on the node, no shadow, ...
    State,
}

/// Result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The page has moved.
    Done,
    /// The page was written during the copy; it stays, and the copy is dropped.
    Dirtied,
    /// The page cannot be unmapped ([`Refused::Pinned`]); it stays, and the copy is dropped.
    Pinned,
}

/// Why a shadow is dropped. Affects counters only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The page is about to be written.
    Written,
    /// The frame is needed.
    Reclaimed,
}

/// An optional capability of a memory. A policy checks its requirements with [`need`] when it is created
/// (`make`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// References set the accessed bit. Otherwise only [`Memory::disarm_hint`] does, and pages that
    /// are used without faults appear idle.
    AccessedBits,
    /// Writes set the dirty bit. Otherwise [`Memory::dirty`] is always false. (Every memory detects
    /// writes during copies.)
    DirtyBits,
    /// The processor samples references ([`Memory::sample_every`]).
    Samples,
    /// Pages of slow nodes are accessible. Otherwise each page that moves to a slow node is armed as
    /// by [`Memory::arm_hint`], and [`Memory::disarm_hint`] allows one reference.
    FarIsMapped,
}

impl Capability {
    /// All capabilities, with the names that messages and Python use.
    pub const ALL: [(&'static str, Capability); 4] = [
        ("accessed-bits", Capability::AccessedBits),
        ("dirty-bits", Capability::DirtyBits),
        ("samples", Capability::Samples),
        ("far-is-mapped", Capability::FarIsMapped),
    ];
}

/// The remedy for a memory that only policies with hint faults can use.
pub(super) const USE_HINT_FAULTS: &str = "choose a policy that uses hint faults, such as tpp";

/// Require capabilities. `fix` is the remedy in the error.
///
/// # Errors
/// If the memory lacks one.
pub fn need(
    mem: &dyn Memory,
    required: &[Capability],
    policy: &str,
    fix: &str,
) -> nearfar_trace::Result<()> {
    let Some(lacking) = required.iter().find(|capability| !mem.has(**capability)) else {
        return Ok(());
    };
    let name = Capability::ALL.iter().find(|(_, known)| known == lacking).map_or("", |c| c.0);
    Err(Error::input(
        format!("--policy {policy}"),
        format!("this memory lacks the capability `{name}`"),
        fix,
    ))
}

/// A tenant's limits on a node, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The tenant's share: up to this usage, policies do not demote its pages for others. 0: no share.
    pub low: u64,
    /// Maximum usage ([`Refused::NoFrame`]).
    pub max: u64,
}

/// An action of a [batch](Memory::batch): the method of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Memory::arm_hint`].
    ArmHint(Page),
    /// [`Memory::write_protect`].
    WriteProtect(Page),
    /// [`Memory::move_page`].
    Move(Page, NodeId),
    /// [`Memory::remap_to_shadow`].
    RemapToShadow(Page),
    /// [`Memory::drop_shadow`].
    DropShadow(Page, DropReason),
}

impl Request {
    /// Call the method.
    ///
    /// # Errors
    /// Those of the method.
    pub fn run(self, mem: &mut (impl Memory + ?Sized)) -> Result<(), Refused> {
        match self {
            Request::ArmHint(page) => mem.arm_hint(page),
            Request::WriteProtect(page) => mem.write_protect(page),
            Request::Move(page, to) => mem.move_page(page, to),
            Request::RemapToShadow(page) => mem.remap_to_shadow(page),
            Request::DropShadow(page, why) => mem.drop_shadow(page, why),
        }
    }
}

/// A successful action of a policy, as worlds record it for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// [`Memory::move_page`].
    Moved(Page, NodeId),
    /// [`Memory::begin_copy`].
    Began(Page, NodeId),
    /// [`Memory::commit_copy`], with its result and whether the page has a shadow.
    Committed(Page, Commit, bool),
    /// [`Memory::remap_to_shadow`].
    Remapped(Page),
    /// [`Memory::drop_shadow`].
    Dropped(Page, DropReason),
    /// [`Memory::arm_hint`].
    Armed(Page),
    /// [`Memory::write_protect`].
    Protected(Page),
    /// [`Memory::split`].
    Split(Page),
}

/// Memory as a policy sees it.
///
/// **Pages.** Every page that the program has touched and not released is mapped to one frame of
/// one node. Page numbers follow the program's addresses and are sparse. [`span`](Memory::span)
/// tells whether a page is huge; its base pages are one mapping, identified by the first. A page
/// may have a **shadow**: a second frame with the same content on a slower node. The page is then
/// write-protected and clean.
///
/// **Queries** are free. For a page that is not mapped, all bits are false, the node is the fastest
/// and the span is 1.
///
/// **Actions** may be called from any hook of a [`Policy`](super::Policy), but not in `make`. They
/// take effect immediately, and their time is charged to the caller of the hook, even for some
/// refused actions. Invariants after every action: each mapped page has exactly one frame; a shadow
/// belongs to exactly one page, which is clean and write-protected; a frame is free or has exactly
/// one use.
pub trait Memory {
    // --- queries

    /// Start time of the current event; constant within a hook.
    fn now(&self) -> Time;
    /// Upper bound of all page numbers. Few of them may be mapped: initialise tables of this length
    /// with zeros (`vec![0; n]` takes no memory until touched), and iterate with
    /// [`next_mapped`](Memory::next_mapped).
    fn page_limit(&self) -> u32;
    /// The first mapping at or after this page number.
    fn next_mapped(&self, from: Page) -> Option<Page>;
    /// Number of nodes, 1 to 4.
    fn nodes(&self) -> u8;
    /// Frames of a node, used or free.
    fn capacity(&self, node: NodeId) -> u64;
    /// Free frames of a node.
    fn free(&self, node: NodeId) -> u64;
    /// Current latency of a load from this node, under the present traffic; `None` if unknown.
    fn loaded_latency(&self, node: NodeId) -> Option<Time>;
    /// Whether this memory has a capability.
    fn has(&self, capability: Capability) -> bool;
    /// Number of tenants so far, at least 1.
    fn tenants(&self) -> u16;
    /// The tenant that a page, mapped or not, is charged to.
    fn tenant_of(&self, page: Page) -> Tenant;
    /// Frames of a node that a tenant uses, including shadows and copies.
    fn used(&self, tenant: Tenant, node: NodeId) -> u64;
    /// A tenant's limits on a node. They may change between events.
    fn limit(&self, tenant: Tenant, node: NodeId) -> Limit;

    /// Whether a mapping begins at this page number. False for untouched and released pages and for
    /// the inner pages of a huge page.
    fn mapped(&self, page: Page) -> bool;
    /// The node of a mapped page.
    fn node_of(&self, page: Page) -> NodeId;
    /// Frames of the mapping at this page: 1, or [`HUGE`](super::HUGE).
    fn span(&self, page: Page) -> u32;
    /// Prefetch the state of a page.
    fn prefetch(&self, _page: Page) {}
    /// The accessed bit: set by the program's references ([`Capability::AccessedBits`]) and by
    /// [`disarm_hint`](Memory::disarm_hint) since it was last cleared.
    fn accessed(&self, page: Page) -> bool;
    /// The dirty bit ([`Capability::DirtyBits`]): set by writes since the page was mapped, the
    /// start of its last copy, or its move to a faster node.
    fn dirty(&self, page: Page) -> bool;
    /// Whether the next reference will be a hint fault.
    fn hint_armed(&self, page: Page) -> bool;
    /// Whether the next write will be a write-protect fault.
    fn write_protected(&self, page: Page) -> bool;
    /// The node of the page's shadow, if it has one.
    fn shadow_of(&self, page: Page) -> Option<NodeId>;

    // --- bits of a page; each costs an access to a page-table entry, unless it says that it is free

    /// Clear the accessed bit and return its value. As on x86, references through a cached
    /// translation may not set it again.
    fn clear_accessed(&mut self, page: Page) -> bool;
    /// Make the next reference to the page a hint fault. No change if it is armed.
    ///
    /// # Errors
    /// [`Refused::Pinned`]; [`Refused::State`] if it is not mapped.
    fn arm_hint(&mut self, page: Page) -> Result<(), Refused>;
    /// Allow references to the page (one reference, on a slow node without
    /// [`Capability::FarIsMapped`]), and set its accessed bit. Free, because the fault is already
    /// charged, and never refused.
    fn disarm_hint(&mut self, page: Page);
    /// Make the next write to the page a write-protect fault. Reads are not affected.
    ///
    /// # Errors
    /// [`Refused::Pinned`]; [`Refused::State`] if it is not mapped.
    fn write_protect(&mut self, page: Page) -> Result<(), Refused>;
    /// Allow writes. Free, because the fault is already charged.
    ///
    /// # Errors
    /// [`Refused::Pinned`]: the next write faults again; [`Refused::State`] if it is not mapped or
    /// has a shadow, which would become stale.
    fn unprotect(&mut self, page: Page) -> Result<(), Refused>;

    // --- migration

    /// Move a page synchronously: unmap, copy, map. Accesses of the program wait. Afterwards it is
    /// not armed, not write-protected and not accessed; it is clean on a faster node and keeps its
    /// dirty bit on a slower one. Its shadow is freed (and counted as reclaimed). Costs a migration
    /// and the copy.
    ///
    /// # Errors
    /// [`Refused`]: no frame, being copied, pinned, not mapped or already on the node.
    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused>;
    /// Start copying a page that stays mapped and writable: allocates a frame on `to` and clears
    /// the dirty bit. When the copy is complete, after the current event at the earliest, the thread
    /// `wake` is woken if idle, and [`commit_copy`](Memory::commit_copy) can end the copy. Any number
    /// of copies can be in progress. If the processor copies, the event takes as long as the copy.
    ///
    /// # Errors
    /// [`Refused`]: no frame, being copied, pinned, not mapped, already on the node or having a
    /// shadow.
    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused>;
    /// End the copy of a page. After [`Commit::Done`], the page is mapped to its new frame, not
    /// armed, not accessed and clean. With `keep_shadow`, the old frame becomes its shadow and the
    /// page is write-protected; otherwise the old frame is freed and the page is writable. After
    /// any other result, the page stays and the new frame is freed. Costs a migration.
    ///
    /// # Errors
    /// [`Refused::Busy`] if the copy is not complete; [`Refused::State`] if the page is not being
    /// copied (it may have been released), or for `keep_shadow` towards a slower node.
    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused>;
    /// Demote a page without a copy: map it to its shadow and free its frame. Afterwards it has no
    /// shadow and is not armed, not write-protected, not accessed and clean. Costs a migration.
    ///
    /// # Errors
    /// [`Refused`]: it has no shadow, is pinned, or is being copied.
    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused>;
    /// Free the page's shadow. The page stays write-protected until
    /// [`unprotect`](Memory::unprotect). Costs an access to a page-table entry.
    ///
    /// # Errors
    /// [`Refused::State`] without a shadow.
    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused>;
    /// Split a huge page into 512 base pages with the same bits, on the same node. Costs a
    /// migration.
    ///
    /// # Errors
    /// [`Refused`]: not a huge page, has a shadow, is pinned, or is being copied.
    fn split(&mut self, page: Page) -> Result<(), Refused>;
    /// Execute actions in order, with the same effect as one by one; a refused action does not stop
    /// the others. Replaces `outcomes` by their results. A live memory executes many actions of one
    /// kind on neighbouring pages at little more than the cost of one.
    fn batch(&mut self, requests: &[Request], outcomes: &mut Vec<Result<(), Refused>>) {
        outcomes.clear();
        outcomes.extend(requests.iter().map(|request| request.run(self)));
    }

    // --- threads and samples

    /// Create an idle thread of the policy; only in `make`.
    fn spawn(&mut self, name: &'static str, context: Context) -> Thread;
    /// Wake a thread, if it is idle.
    fn wake(&mut self, thread: Thread);
    /// Report every n-th load miss and every n-th stored cache line to
    /// [`Policy::sample`](super::Policy::sample); 0 = never. No effect without
    /// [`Capability::Samples`].
    fn sample_every(&mut self, loads: u64, stores: u64);
}
