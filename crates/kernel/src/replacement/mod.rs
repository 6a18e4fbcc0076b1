//! Page replacement: which resident page is evicted for a new one.
//!
//! A policy sees page faults only. A reference to a resident page sets its accessed bit, as the MMU
//! does; the policy tests and clears these bits. This makes it cheap to simulate many memory sizes: a
//! reference to a page that is resident with its bit set in all of them changes nothing.
//!
//! A new policy is a file with its `WHAT` and [`Replacement`], a line in `replacements!`, and a test.
//! A policy that must see every reference (exact LRU) does not fit the trait; see [`stack`].

pub mod page_tables;
mod queue;

/// Accessed bits of one simulated memory.
pub trait AccessBits {
    /// Whether `page` was referenced since its bit was last cleared.
    fn test(&self, page: u32) -> bool;
    /// Clear the accessed bit of `page`.
    fn clear(&mut self, page: u32);
    /// Prefetch the bit of `page`.
    fn prefetch(&self, _page: u32) {}
}

/// Parameters of one simulated memory.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Frames, at least 1.
    pub frames: u64,
    /// Bytes per frame.
    pub page_bytes: u64,
    /// The kernel's `vm.swappiness`, from 0 to [`linux::MAX_SWAPPINESS`].
    pub swappiness: u64,
    /// Faults between two updates of the statistics of Linux's control group; 0 = never.
    pub statistics_every: u64,
    /// Share of the whole memory that is simulated: 1 for all, less for a sample.
    pub share: f64,
}

impl Setup {
    /// Frames of the whole memory.
    fn whole_frames(&self) -> u64 {
        (self.frames.max(1) as f64 / self.share).round() as u64
    }

    /// The share of a number of pages or faults of the whole memory: at least 1.
    fn share_of(&self, number: u64) -> u64 {
        ((number as f64 * self.share).round() as u64).max(1)
    }
}

/// State of a policy that all memories of a page size share.
pub trait Shared: Default + Send {
    /// The next reference to `page` is its first. `number` is its virtual page number; address
    /// spaces have disjoint numbers.
    fn begin(&mut self, _page: u32, _number: u64) {}
    /// `page` was made resident in every memory for the first time.
    fn load(&mut self, _page: u32) {}
    /// `page` was [released](Replacement::release) from every memory.
    fn end(&mut self, _page: u32) {}
}

/// For policies without shared state.
impl Shared for () {}

/// A replacement policy over one memory of a fixed number of frames.
///
/// Pages are dense ids. The caller calls [`fault`](Replacement::fault) for each reference to a page
/// that is not resident, in order, and sets the accessed bit of every referenced page, including
/// the page that faulted, after the call. Released ids may be reused.
pub trait Replacement: Sized + Send + 'static {
    /// Pages that one fault evicts: an `Option` for policies that evict one page at a time, an
    /// iterator over an internal list for those that reclaim in batches.
    type Evicted<'a>: IntoIterator<Item = u32>;
    /// State shared by the memories of a page size; `()` for most policies.
    type Shared: Shared;
    /// An empty memory.
    fn new(setup: Setup) -> Self;
    /// Make `page` resident; returns the pages evicted for it.
    fn fault(
        &mut self,
        page: u32,
        shared: &Self::Shared,
        bits: &mut impl AccessBits,
    ) -> Self::Evicted<'_>;
    /// Forget `page`, which the program freed. If it is `resident`, its frame becomes free; this is
    /// not an eviction.
    fn release(&mut self, page: u32, resident: bool);
    /// `page` belongs to a file, and may be `executable`. Called before its first reference; other
    /// pages are anonymous.
    fn begin_file(&mut self, _page: u32, _executable: bool) {}
    /// The program allowed the content of anonymous `page` to be dropped (`MADV_FREE`), until
    /// [`Replacement::undo_discard`]. Returns whether the caller must clear its accessed bit.
    fn discard(&mut self, _page: u32, _resident: bool) -> bool {
        false
    }
    /// The next reference writes `page`, which was discarded.
    fn undo_discard(&mut self, _page: u32) {}
}

/// A generic operation on the type of a policy: [`PolicyEntry::visit`] calls the method that the
/// registry names for the policy.
pub trait Visitor: Sized {
    /// Result of the operation.
    type Output;
    /// For policies that see faults only.
    fn faults<P: Replacement>(self) -> Self::Output;
    /// For exact LRU, which sees every reference.
    fn lru(self) -> Self::Output;
}

/// A registered policy, as `nearfar paging --replacement` lists it.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `--help` and docs.
    pub what: &'static str,
    module: Module,
}

impl PolicyEntry {
    /// Whether it uses [`Setup::swappiness`].
    pub fn has_swappiness(self) -> bool {
        matches!(self.module, Module::linux | Module::mglru)
    }

    /// Whether it uses [`Setup::statistics_every`].
    pub fn has_statistics(self) -> bool {
        self.module == Module::linux
    }
}

/// The registry: each policy's name, module and [`Visitor`] method.
macro_rules! replacements {
    ($($name:literal: $module:ident.$method:ident($($policy:ident)?),)+) => {
        $(pub mod $module;)+

        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Module { $($module),+ }

        /// Every policy of the `paging` study.
        pub const REPLACEMENTS: &[PolicyEntry] =
            &[$(PolicyEntry { name: $name, what: $module::WHAT, module: Module::$module }),+];

        impl PolicyEntry {
            /// Call the method of `visitor` for this policy.
            pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
                match self.module {
                    $(Module::$module => visitor.$method$(::<$module::$policy>)?(),)+
                }
            }
        }
    };
}

replacements! {
    "clock": clock.faults(Clock),
    "lru": stack.lru(),
    "linux": linux.faults(Lists),
    "mglru": mglru.faults(Generations),
}

/// [`REPLACEMENTS`] as the choices of an option.
pub struct Replacements;

impl nearfar_schema::Registry for Replacements {
    const NAME: &'static str = "replacement";
    const KIND: &'static str = "policy";
    const METAVAR: &'static str = "POLICY";
    fn entries() -> Vec<nearfar_schema::Entry> {
        let entry = |policy: &PolicyEntry| nearfar_schema::Entry {
            name: policy.name,
            what: policy.what.into(),
        };
        REPLACEMENTS.iter().map(entry).collect()
    }
}

pub fn find(name: &str) -> Option<PolicyEntry> {
    REPLACEMENTS.iter().find(|policy| policy.name == name).copied()
}

/// Accessed bits for tests of policies.
#[cfg(test)]
struct VecBits(Vec<bool>);

#[cfg(test)]
impl AccessBits for VecBits {
    fn test(&self, page: u32) -> bool {
        self.0[page as usize]
    }
    fn clear(&mut self, page: u32) {
        self.0[page as usize] = false;
    }
}
