//! The memory that a policy acts on: the contract of every world that runs policies. `testing::conformance`
//! is the same as a suite that each of them runs.

use nearfar_trace::Error;

use super::{Context, NodeId, Page, Tenant, Thread, Time};

/// Why an action was not carried out; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The node has no free frame for the page, or its tenant may not have more there. Of a live memory's
    /// budget frames may be free that others have.
    NoFrame,
    /// The page is being copied by [`Memory::begin_copy`], or that copy is not complete yet.
    Busy,
    /// Something outside holds the page (a lock, a mapping shared with a child, I/O under way): at
    /// present it cannot be unmapped, protected or moved. That may last.
    Pinned,
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
    /// It cannot be unmapped now ([`Refused::Pinned`]): it is where it was, the copy is gone.
    Pinned,
}

/// Why a shadow is dropped; only counters depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Its master is about to be written.
    Written,
    /// Its frame is needed.
    Reclaimed,
}

/// What not every memory can do. A policy asks once, in its `make`, and refuses to be made
/// ([`need`]) where it cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Every reference sets the accessed bit. Without it only [`Memory::disarm_hint`] does: a page
    /// that is used without a fault looks idle.
    AccessedBits,
    /// Every write sets the dirty bit. Without it [`Memory::dirty`] is false of every page. (Copies
    /// are watched for writes in any memory.)
    DirtyBits,
    /// The processor samples references: [`Memory::sample_every`] has an effect.
    Samples,
    /// References to pages of slow nodes go through. Without it the memory itself arms each page
    /// that comes to a slow node, and [`Memory::disarm_hint`] lets one reference through.
    FarIsMapped,
}

impl Capability {
    /// All of them, with the names that messages and Python use.
    pub const ALL: [(&'static str, Capability); 4] = [
        ("accessed-bits", Capability::AccessedBits),
        ("dirty-bits", Capability::DirtyBits),
        ("samples", Capability::Samples),
        ("far-is-mapped", Capability::FarIsMapped),
    ];
}

/// Refuse a memory that lacks what a policy cannot do without. `fix` says what the user can do.
///
/// # Errors
/// An input error that names the policy and the capability.
pub fn need(
    mem: &dyn Memory,
    capability: Capability,
    policy: &str,
    fix: &str,
) -> nearfar_trace::Result<()> {
    if mem.has(capability) {
        return Ok(());
    }
    let name = Capability::ALL.iter().find(|(_, known)| *known == capability).map_or("", |c| c.0);
    Err(Error::input(format!("--policy {policy}"), format!("this memory has no {name}"), fix))
}

/// How much of a node a tenant may hold, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// While it holds no more than this, a policy does not demote its pages for others.
    pub low: u64,
    /// It is refused more than this ([`Refused::NoFrame`]).
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

/// What a policy made happen, as worlds record it for comparison: only what was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// [`Memory::move_page`].
    Moved(Page, NodeId),
    /// [`Memory::begin_copy`].
    Began(Page, NodeId),
    /// [`Memory::commit_copy`], with its outcome and whether a shadow is kept.
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
/// one node. Page numbers follow the program's addresses and are sparse: between mapped pages
/// there may be numbers that are never mapped. A page is a huge page while [`span`](Memory::span)
/// says so; all its base pages are one mapping, named by the first. A page may have a **shadow**:
/// a second frame, on a slower node, that holds the same content; its master is then
/// write-protected and clean.
///
/// **Looks** cost nothing. Of a page that is not mapped every bit is false, the node is the fastest
/// and the span is 1.
///
/// **Actions** may be called from any hook of a [`Policy`](super::Policy), not while a policy is
/// made. Each takes effect at once; the time it takes is charged to whoever runs the hook. An
/// action that is refused changes nothing; it may have cost time. After every action: each mapped
/// page has exactly one frame; a shadow belongs to exactly one page, which is clean and
/// write-protected; a frame is free or has exactly one use.
pub trait Memory {
    // --- looks

    /// The moment at which the current event began; the same throughout a hook.
    fn now(&self) -> Time;
    /// Page numbers are below this at all times. Few of them may ever be mapped: a table of this
    /// length must begin as zeros (`vec![0; n]` takes no memory for what is not touched), and walks
    /// go by [`next_mapped`](Memory::next_mapped).
    fn page_limit(&self) -> u32;
    /// The first mapping that begins at this page number or after it.
    fn next_mapped(&self, from: Page) -> Option<Page>;
    /// Number of nodes, 1 to 4.
    fn nodes(&self) -> u8;
    /// Frames of a node, used or free.
    fn capacity(&self, node: NodeId) -> u64;
    /// Free frames of a node.
    fn free(&self, node: NodeId) -> u64;
    /// How long one of the program's loads from this node takes at present, with the traffic that
    /// there is; `None` where the memory cannot tell.
    fn loaded_latency(&self, node: NodeId) -> Option<Time>;
    /// Whether this memory can do that.
    fn has(&self, capability: Capability) -> bool;
    /// Number of tenants so far, at least 1.
    fn tenants(&self) -> u16;
    /// Who the page is, or would be, charged to; mapped or not.
    fn tenant_of(&self, page: Page) -> Tenant;
    /// Frames of a node that a tenant holds, shadows and copies included.
    fn used(&self, tenant: Tenant, node: NodeId) -> u64;
    /// What a tenant may hold of a node. It may change from one event to the next.
    fn limit(&self, tenant: Tenant, node: NodeId) -> Limit;

    /// Whether a mapping begins at this page number: false for a page never touched or released,
    /// and for the inner pages of a huge page.
    fn mapped(&self, page: Page) -> bool;
    /// The node of a mapped page.
    fn node_of(&self, page: Page) -> NodeId;
    /// Frames of the mapping at this page: 1, or [`HUGE`](super::HUGE).
    fn span(&self, page: Page) -> u32;
    /// The policy will soon ask about this page: a world whose tables are large may fetch it.
    fn prefetch(&self, page: Page) {
        let _ = page;
    }
    /// The accessed bit: set by the program's references ([`Capability::AccessedBits`]) and by
    /// [`disarm_hint`](Memory::disarm_hint) since it was last cleared.
    fn accessed(&self, page: Page) -> bool;
    /// The dirty bit ([`Capability::DirtyBits`]): set by writes since the page was mapped, last
    /// began to be copied, or moved to a faster node.
    fn dirty(&self, page: Page) -> bool;
    /// Whether the next reference will be a hint fault.
    fn hint_armed(&self, page: Page) -> bool;
    /// Whether the next write will be a write-protect fault.
    fn write_protected(&self, page: Page) -> bool;
    /// The node of the page's shadow, if it has one.
    fn shadow_of(&self, page: Page) -> Option<NodeId>;

    // --- bits of a page; each costs a look at a page-table entry

    /// Clear the accessed bit and say what it was. References made through a translation that the
    /// processor still holds may go unseen afterwards, as on x86.
    fn clear_accessed(&mut self, page: Page) -> bool;
    /// Let the next reference to the page be a hint fault; no change if it is armed.
    ///
    /// # Errors
    /// [`Refused::Pinned`]; [`Refused::State`] if it is not mapped.
    fn arm_hint(&mut self, page: Page) -> Result<(), Refused>;
    /// Let references to the page go through (one reference, on a slow node without
    /// [`Capability::FarIsMapped`]), and set its accessed bit. Costs nothing and always works: the
    /// fault that asks for it has been paid.
    fn disarm_hint(&mut self, page: Page);
    /// Let the next write to the page be a write-protect fault. Reads go on.
    ///
    /// # Errors
    /// [`Refused::Pinned`]; [`Refused::State`] if it is not mapped.
    fn write_protect(&mut self, page: Page) -> Result<(), Refused>;
    /// Let writes go through; free of charge, as the fault that asks for it has been paid.
    ///
    /// # Errors
    /// [`Refused::Pinned`]: the next write is another fault; [`Refused::State`] if it is not mapped, or has a
    /// shadow, which a write would make stale.
    fn unprotect(&mut self, page: Page) -> Result<(), Refused>;

    // --- places of a page

    /// Move a page, stopping the program if it wants it meanwhile: unmap, copy, map. Afterwards it
    /// is not armed, not write-protected and not accessed; moved to a faster node it is clean,
    /// moved to a slower one it keeps its dirty bit. A shadow it had is freed (and counted as
    /// reclaimed). Costs a migration and the copy.
    ///
    /// # Errors
    /// [`Refused`]: no frame, being copied, pinned, not mapped or already there.
    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused>;
    /// Begin to copy a page that stays mapped and may be written meanwhile: takes a frame on `to`,
    /// clears the dirty bit. When the copy is complete, not before the event that began it is over,
    /// `wake` is woken if it is idle; then [`commit_copy`](Memory::commit_copy) ends it. Any number
    /// of copies may be under way. Where the processor copies, the event takes as long as the copy.
    ///
    /// # Errors
    /// [`Refused`]: no frame, being copied, pinned, not mapped, already there or having a shadow.
    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused>;
    /// End the copy of a page. [`Commit::Done`]: it is mapped at its new place, not armed, not
    /// accessed, clean; with `keep_shadow` its old frame becomes its shadow and it is
    /// write-protected, else the old frame is free and writes go through. Any other outcome: it
    /// stays where it was and the new frame is free. Costs a migration.
    ///
    /// # Errors
    /// [`Refused::Busy`] if the copy is not complete; [`Refused::State`] if the page is not being
    /// copied (it may have been released meanwhile), or for `keep_shadow` towards a slower node.
    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused>;
    /// Map the page to its shadow and free the frame it had: a demotion without a copy. Afterwards
    /// it has no shadow and is not armed, not write-protected, not accessed, clean. Costs a
    /// migration.
    ///
    /// # Errors
    /// [`Refused`]: it has no shadow, is pinned, or is being copied.
    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused>;
    /// Free the page's shadow. The page stays write-protected until
    /// [`unprotect`](Memory::unprotect). Costs a look at a page-table entry.
    ///
    /// # Errors
    /// [`Refused::State`]: it has none.
    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused>;
    /// Make a huge page 512 base pages on the same node, with its bits. Costs a migration.
    ///
    /// # Errors
    /// [`Refused`]: not a huge page, has a shadow, is pinned, or is being copied.
    fn split(&mut self, page: Page) -> Result<(), Refused>;
    /// Carry out many actions, in order, as if one by one; one that is refused does not stop those
    /// after it. `outcomes` is replaced by what became of each. A live memory does many actions of
    /// one kind on neighbouring pages for little more than the cost of one.
    fn batch(&mut self, requests: &[Request], outcomes: &mut Vec<Result<(), Refused>>) {
        outcomes.clear();
        outcomes.extend(requests.iter().map(|request| match *request {
            Request::ArmHint(page) => self.arm_hint(page),
            Request::WriteProtect(page) => self.write_protect(page),
            Request::Move(page, to) => self.move_page(page, to),
            Request::RemapToShadow(page) => self.remap_to_shadow(page),
            Request::DropShadow(page, why) => self.drop_shadow(page, why),
        }));
    }

    // --- threads and samples

    /// Make a thread of the policy, idle; only while the policy is made.
    fn spawn(&mut self, name: &'static str, context: Context) -> Thread;
    /// Let an idle thread run; nothing happens if it is not idle.
    fn wake(&mut self, thread: Thread);
    /// Report every n-th cache line whose load misses, and every n-th stored, by
    /// [`Policy::sample`](super::Policy::sample); 0 for none. No effect without
    /// [`Capability::Samples`].
    fn sample_every(&mut self, loads: u64, stores: u64);
}
