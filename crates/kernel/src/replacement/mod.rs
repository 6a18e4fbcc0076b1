//! Page replacement: which resident page makes room for one that is not.
//!
//! A policy sees page faults only. References to resident pages set the page's accessed bit
//! (the MMU does that) and are seen by the policy when it tests and clears those bits. This is
//! what makes a simulation of many memory sizes cheap: a reference to a page that is resident and
//! already marked everywhere changes no policy at all.
//!
//! To add a policy: one file here with its `WHAT` and the trait, one line in `replacements!`, one
//! test. A policy that must see every reference (exact LRU) does not fit the trait; see [`stack`].

mod queue;
pub mod tables;

/// Accessed bits of one simulated memory.
pub trait AccessBits {
    /// Whether `page` was referenced since its bit was last cleared.
    fn test(&self, page: u32) -> bool;
    /// Clear the accessed bit of `page`.
    fn clear(&mut self, page: u32);
    /// The bit of `page` is tested soon.
    fn expect(&self, _page: u32) {}
    /// Whether a bit was tested that may be another by the time of the fault it is tested for.
    fn doubtful(&self) -> bool {
        false
    }
}

/// Most pages of [`Replacement::fault_many`].
pub const MANY: usize = 64;

/// A memory that a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Frames, at least 1.
    pub frames: u64,
    /// Bytes of each.
    pub page_bytes: u64,
    /// The kernel's `vm.swappiness`, from 0 to [`linux::MAX_SWAPPINESS`].
    pub swappiness: u64,
    /// Faults between two updates of the statistics of Linux's control group; 0: never.
    pub statistics_every: u64,
}

/// What a policy knows of pages that is the same for all memories of a page size.
pub trait Shared: Default + Send {
    /// The next reference to `page` is its first, at this page number: address spaces have numbers
    /// of their own, and neighbours in one have successive numbers.
    fn begin(&mut self, _page: u32, _number: u64) {}
    /// `page` was made resident in every memory, as by its first reference.
    fn load(&mut self, _page: u32) {}
    /// `page` was [released](Replacement::release) from every memory.
    fn end(&mut self, _page: u32) {}
}

/// Nothing.
impl Shared for () {}

/// A replacement policy over one memory of a fixed number of frames.
///
/// Pages are dense ids. Contract: the caller calls [`fault`](Replacement::fault) exactly for
/// references to pages that are not resident, in order; between two calls it sets accessed bits for
/// every page referenced, resident or just made so. A page [begins](Shared::begin) before its first
/// reference, and is anonymous unless it [is of a file](Replacement::begin_file). One that ends is
/// [released](Replacement::release), and its id may be given to another.
pub trait Replacement: Sized + Send + 'static {
    /// The pages that one fault evicts: an option for policies that make room for one page at a
    /// time, a list that they keep for those that reclaim in batches.
    type Evicted<'a>: IntoIterator<Item = u32>;
    /// What the memories of a page size share.
    type Shared: Shared;
    /// A policy over this memory.
    fn new(setup: Setup) -> Self;
    /// `page`, which has just begun, is one of a file, and whether it is code.
    fn begin_file(&mut self, _page: u32, _executable: bool) {}
    /// Whether [`Replacement::expect`] does anything.
    const EXPECTS: bool = false;
    /// `page` may fault soon.
    fn expect(&self, _page: u32) {}
    /// Make `page` resident; returns the pages evicted for it. The caller sets `page`'s own
    /// accessed bit after the call.
    fn fault(
        &mut self,
        page: u32,
        shared: &Self::Shared,
        bits: &mut impl AccessBits,
    ) -> Self::Evicted<'_>;
    /// Whether [`Replacement::fault_many`] is worth a try. [`Shared::load`] is not called for it.
    const BATCHES: bool = false;
    /// Make `pages` (at most [`MANY`]) resident, one after the other, as if no accessed bit were set meanwhile,
    /// not even their own; `evicted` gets the pages evicted for them. Where that may not come to what
    /// [`fault`](Replacement::fault) does one by one, as when a bit was [doubtful](AccessBits::doubtful),
    /// it changes nothing and answers false.
    fn fault_many(
        &mut self,
        _pages: &[u32],
        _bits: &mut impl AccessBits,
        _evicted: &mut Vec<u32>,
    ) -> bool {
        false
    }
    /// Forget `page`, which is freed. If it is `resident`, its frame is free from now on, which is no
    /// eviction.
    fn release(&mut self, page: u32, resident: bool);
    /// What anonymous `page` holds is not wanted (`MADV_FREE`), until [`Replacement::keep`]. Answers
    /// whether the caller clears its accessed bit.
    fn discard(&mut self, _page: u32, _resident: bool) -> bool {
        false
    }
    /// The next reference writes `page`, which was discarded.
    fn keep(&mut self, _page: u32) {}
}

/// Makes something that depends on the type of a policy: [`Named::visit`] calls the method that the
/// registry has for the policy.
pub trait Visitor: Sized {
    /// What is made.
    type Output;
    /// For a policy that sees faults only.
    fn faults<P: Replacement>(self) -> Self::Output;
    /// For CLOCK, which alone can load pages with the accessed bit clear.
    fn clock(self) -> Self::Output {
        self.faults::<clock::Clock>()
    }
    /// For exact LRU, which must see every reference.
    fn lru(self) -> Self::Output;
}

/// A policy: its name and what it is, as `nearfar paging --replacement` lists it.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for `--help` and docs.
    pub what: &'static str,
    module: Module,
}

impl Named {
    /// Whether it is CLOCK, which alone can load pages with the accessed bit clear.
    pub fn is_clock(self) -> bool {
        self.module == Module::clock
    }

    /// Whether it is one of Linux, which alone have swappiness.
    pub fn has_swappiness(self) -> bool {
        matches!(self.module, Module::linux | Module::mglru)
    }

    /// Whether it compares lists by statistics that may be old.
    pub fn has_statistics(self) -> bool {
        self.module == Module::linux
    }
}

/// The registry: each policy's name, its module, and the method of [`Visitor`] for it.
macro_rules! replacements {
    ($($name:literal: $module:ident.$method:ident($($policy:ident)?),)+) => {
        $(pub mod $module;)+

        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Module { $($module),+ }

        /// Every policy of the `paging` study.
        pub const REPLACEMENTS: &[Named] =
            &[$(Named { name: $name, what: $module::WHAT, module: Module::$module }),+];

        impl Named {
            /// What `visitor` makes for this policy.
            pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
                match self.module {
                    $(Module::$module => visitor.$method$(::<$module::$policy>)?(),)+
                }
            }
        }
    };
}

replacements! {
    "clock": clock.clock(),
    "lru": stack.lru(),
    "linux": linux.faults(Lists),
    "mglru": mglru.faults(Generations),
}

/// [`REPLACEMENTS`] as what an option chooses from.
pub struct Replacements;

impl nearfar_schema::Registry for Replacements {
    const NAME: &'static str = "replacement";
    const KIND: &'static str = "policy";
    const METAVAR: &'static str = "POLICY";
    fn entries() -> Vec<nearfar_schema::Entry> {
        let entry = |one: &Named| nearfar_schema::Entry { name: one.name, what: one.what.into() };
        REPLACEMENTS.iter().map(entry).collect()
    }
}

/// The policy of this name.
pub fn find(name: &str) -> Option<Named> {
    REPLACEMENTS.iter().find(|policy| policy.name == name).copied()
}
