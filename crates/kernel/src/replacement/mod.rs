//! Page replacement: which resident page makes room for one that is not.
//!
//! A policy is told of page faults only. References to resident pages set the page's accessed bit
//! (the MMU does that) and are seen by the policy when it tests and clears those bits. This is
//! what makes a simulation of many memory sizes cheap: a reference to a page that is resident and
//! already marked everywhere changes no policy at all.
//!
//! To add a policy: one file here with the trait, one line in [`REPLACEMENTS`], one test. A policy
//! that must see every reference (exact LRU) does not fit the trait; see [`stack`].

pub mod clock;
pub mod linux;
pub mod stack;

/// Accessed bits of one simulated memory.
pub trait AccessBits {
    /// Whether `page` was referenced since its bit was last cleared.
    fn test(&self, page: u32) -> bool;
    /// Clear the accessed bit of `page`.
    fn clear(&mut self, page: u32);
}

/// A replacement policy over one memory of a fixed number of frames.
///
/// Pages are dense ids in order of first reference. Contract: the caller calls
/// [`fault`](Replacement::fault) exactly for references to pages that are not resident, in order;
/// between two calls it sets accessed bits for every page referenced, resident or just made so.
pub trait Replacement: Send {
    /// The pages that one fault evicts: an option for policies that make room for one page at a
    /// time, a list for those that reclaim in batches.
    type Evicted: IntoIterator<Item = u32>;
    /// A policy over `frames` (at least 1) of `page_bytes` each.
    fn new(frames: u64, page_bytes: u64) -> Self
    where
        Self: Sized;
    /// Make `page` resident; answers the pages evicted for it. The caller sets `page`'s own
    /// accessed bit after the call.
    fn fault(&mut self, page: u32, bits: &mut impl AccessBits) -> Self::Evicted
    where
        Self: Sized;
}

/// A policy's name and what it is, as `nearfar paging --replacement` lists it.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for `--help` and docs.
    pub what: &'static str,
    /// Which engine runs it.
    pub engine: Engine,
}

/// The engines that policies run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// [`clock::Clock`].
    Clock,
    /// [`linux::TwoList`].
    Linux,
    /// [`stack::StackDistance`]: exact LRU for every size at once.
    Stack,
}

/// Every policy of the `paging` study.
pub const REPLACEMENTS: [Named; 3] = [
    Named {
        name: "clock",
        what: "second chance, one hand (papers 000 and 001)",
        engine: Engine::Clock,
    },
    Named { name: "lru", what: "exact least recently used", engine: Engine::Stack },
    Named {
        name: "linux",
        what: "Linux's active and inactive lists with refault activation",
        engine: Engine::Linux,
    },
];

/// [`REPLACEMENTS`] as what an option chooses from.
pub struct Replacements;

impl nearfar_schema::Registry for Replacements {
    const NAME: &'static str = "replacement";
    const KIND: &'static str = "policy";
    const METAVAR: &'static str = "POLICY";
    fn entries() -> Vec<nearfar_schema::Entry> {
        let entry = |one: Named| nearfar_schema::Entry { name: one.name, what: one.what.into() };
        REPLACEMENTS.map(entry).to_vec()
    }
}

/// The policy of this name.
pub fn find(name: &str) -> Option<Named> {
    REPLACEMENTS.into_iter().find(|policy| policy.name == name)
}
