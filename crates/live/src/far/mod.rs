//! Far tiers: storage for pages that are not in fast memory.
//!
//! Except for `node`, far tiers are not mapped: a reference to one of their pages is a fault. To add one: a
//! file with a [`TierEntry`], a line in the registry below, and a row in `docs/run.md`. The tests here run
//! with every tier of the registry.

use std::fmt;
use std::os::fd::RawFd;

use nearfar_trace::{Error, Result};

use crate::{PAGE, Slot};

/// Why a page could not be stored or loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    Full,
    /// A read or write failed: what, and why.
    Broken(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Full => f.write_str("the far tier is full"),
            Fault::Broken(what) => f.write_str(what),
        }
    }
}

/// The result of [`Far::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The page can be loaded at once.
    Ready,
    /// The page is being read.
    Pending {
        /// Predicted time until it can be loaded.
        predicted_ns: u64,
    },
}

/// A page that was pending and can be loaded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub slot: Slot,
    /// Read time predicted at the first request.
    pub predicted_ns: u64,
    /// Actual read time.
    pub took_ns: u64,
}

/// A far tier.
///
/// Order of calls for a page that takes time to load: [`fetch`](Far::fetch) returns [`Fetch::Pending`],
/// [`arrived`](Far::arrived) reports the page, then it is loaded. Tiers that only copy implement neither.
/// Times are nanoseconds of CLOCK_MONOTONIC.
///
/// A stored page is loaded unchanged until it is freed. No call may touch memory of the program or use its
/// allocator.
pub trait Far: Send {
    /// Store a copy of a page. Returns its slot, the place in the tier that holds it.
    ///
    /// # Errors
    /// [`Fault`]; then nothing is stored.
    fn store(&mut self, page: &[u8]) -> std::result::Result<Slot, Fault>;
    /// Load a stored page.
    ///
    /// # Errors
    /// [`Fault::Broken`].
    fn load(&mut self, slot: Slot, page: &mut [u8]) -> std::result::Result<(), Fault>;
    /// Free a slot. It may be reused.
    fn free(&mut self, slot: Slot);
    /// Start to read a page that will be loaded. [`arrived`](Far::arrived) reports a pending page once,
    /// regardless of the number of calls, and even if it was freed meanwhile. Afterwards it is ready, unless
    /// its slot was reused or other pages have displaced it.
    ///
    /// # Errors
    /// [`Fault::Broken`].
    fn fetch(&mut self, _slot: Slot, _now_ns: u64) -> std::result::Result<Fetch, Fault> {
        Ok(Fetch::Ready)
    }
    /// Append the pages that have arrived since the last call.
    ///
    /// # Errors
    /// [`Fault::Broken`].
    fn arrived(
        &mut self,
        _now_ns: u64,
        _into: &mut Vec<Arrival>,
    ) -> std::result::Result<(), Fault> {
        Ok(())
    }
    /// When the next page may arrive; a time in the past if one has arrived; `u64::MAX` if none is pending,
    /// or if the [`descriptor`](Far::descriptor) will become readable.
    fn due(&self) -> u64 {
        u64::MAX
    }
    /// Readable when a page has arrived, if the tier has a descriptor.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
    /// When earlier stores will be finished; a time in the past if they are. Stores that can wait should wait
    /// until then.
    fn busy_until(&self) -> u64 {
        0
    }
    /// Bytes that the stored pages take.
    fn bytes(&self) -> u64;
}

/// A far tier of the registry.
pub struct TierEntry {
    /// What it is, in one line.
    pub what: &'static str,
    /// The placeholder of the argument after the name and a colon; empty for no argument.
    pub argument: &'static str,
    /// Its pages stay in the program's memory, on a memory node, and are not stored.
    pub is_mapped: bool,
    /// Why `--far-latency` cannot be set, if it cannot.
    pub own_time: Option<&'static str>,
    /// Check whether a tier for up to `pages` pages can be made. Returns the argument with absolute paths.
    pub check: fn(argument: &str, pages: u32) -> Result<String>,
    /// Make a tier for up to `pages` pages.
    pub make: fn(argument: &str, pages: u32) -> Result<Box<dyn Far>>,
}

impl fmt::Debug for TierEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierEntry").field("what", &self.what).finish_non_exhaustive()
    }
}

/// The registry: one line per tier. The name is the module's.
macro_rules! tiers {
    ($($name:ident,)*) => {
        $(mod $name;)*

        /// Every far tier, by name.
        pub static TIERS: &[(&str, &TierEntry)] = &[$((stringify!($name), &$name::TIER),)*];
    };
}

tiers! {
    zstd,
    lz4,
    shm,
    file,
    umd,
    node,
}

mod pool;
mod ring;
mod slots;
mod slow;

pub(crate) use node::{Node, nodes};
pub use slow::Slow;

/// Read `NAME` or `NAME:ARGUMENT`.
///
/// # Errors
/// An input error that lists the tiers.
pub fn find(text: &str) -> Result<(&'static str, &'static TierEntry, &str)> {
    let (name, argument) = text.split_once(':').unwrap_or((text, ""));
    let refused = |what, fix| Err(Error::input("--far", what, fix));
    let Some((name, tier)) = TIERS.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = TIERS.iter().map(|(name, _)| *name).collect();
        let fix = format!("choose one of {}", names.join(", "));
        return refused(format!("no far tier is called `{name}`"), fix);
    };
    match (tier.argument.is_empty(), argument.is_empty()) {
        (true, false) => refused(format!("{name} takes no argument"), format!("write {name}")),
        (false, true) => {
            refused(format!("{name} needs an argument"), format!("write {name}:{}", tier.argument))
        }
        _ => Ok((name, tier, argument)),
    }
}

/// The check of a tier that takes no argument.
fn no_argument(_: &str, _: u32) -> Result<String> {
    Ok(String::new())
}

/// The absolute path, as the program's children may run in another folder.
fn absolute_path(path: &str) -> Result<String> {
    let absolute = std::path::absolute(path).map_err(|error| {
        Error::input("--far", format!("{path}: {error}"), "give an absolute path")
    })?;
    Ok(absolute.to_string_lossy().into_owned())
}

/// An argument with which the tier can be made, with its files in this folder.
#[cfg(test)]
pub(crate) fn argument(tier: &TierEntry, folder: &std::path::Path) -> String {
    match tier.argument {
        "MACHINE" => "umd".into(),
        "N" => "1".into(),
        _ => folder.join("far").to_string_lossy().into_owned(),
    }
}

/// Whether all bytes are zero. The content of such a page is not stored.
fn is_zero(page: &[u8]) -> bool {
    debug_assert!(page.len() <= PAGE);
    page.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::linux::{monotonic, wait};

    /// A step of [`comes_back`].
    #[derive(Clone, Copy, Debug)]
    pub(super) enum Work {
        Store,
        Replace,
        Load,
        Collect,
        Fetch,
    }

    /// Number of pages stored before the first step.
    const INITIAL_PAGES: u64 = 600;
    /// Maximum number of stored pages.
    pub(super) const MAX_PAGES: u32 = 900;

    /// Steps, each with one of the stored pages.
    pub(super) fn work() -> impl Strategy<Value = Vec<(Work, prop::sample::Index)>> {
        let what = prop_oneof![
            1 => Just(Work::Store),
            1 => Just(Work::Replace),
            2 => Just(Work::Load),
            1 => Just(Work::Collect),
            3 => Just(Work::Fetch),
        ];
        prop::collection::vec((what, any::<prop::sample::Index>()), 500..1500)
    }

    fn numbered(seed: u64) -> Vec<u8> {
        (0..PAGE as u64 / 8).flat_map(|word| (seed * 997 + word).to_le_bytes()).collect()
    }

    /// Pages are loaded unchanged, whatever is fetched, freed and stored meanwhile. Each pending page arrives
    /// once.
    pub(super) fn comes_back(
        mut far: Box<dyn Far>,
        work: &[(Work, prop::sample::Index)],
        check: impl Fn(Arrival),
    ) {
        let mut held: Vec<(Slot, u64)> = Vec::new();
        let mut pending = BTreeSet::new();
        let mut loaded = vec![0; PAGE];
        let collect = |far: &mut dyn Far, pending: &mut BTreeSet<u32>| {
            let mut arrivals = Vec::new();
            far.arrived(monotonic(), &mut arrivals).unwrap();
            for arrival in arrivals {
                assert!(pending.remove(&arrival.slot.number()), "{arrival:?}");
                check(arrival);
            }
        };
        let store = |far: &mut dyn Far, held: &mut Vec<(Slot, u64)>, seed| {
            held.push((far.store(&numbered(seed)).unwrap(), seed));
        };
        (0..INITIAL_PAGES).for_each(|seed| store(&mut *far, &mut held, seed));
        for (seed, (what, index)) in (INITIAL_PAGES..).zip(work) {
            let chosen = index.index(held.len());
            let (slot, content) = held[chosen];
            match what {
                Work::Store if held.len() == MAX_PAGES as usize => {}
                Work::Store => store(&mut *far, &mut held, seed),
                Work::Replace => {
                    far.free(slot);
                    held.swap_remove(chosen);
                    store(&mut *far, &mut held, seed);
                }
                Work::Load => {
                    far.load(slot, &mut loaded).unwrap();
                    assert!(loaded == numbered(content), "{slot:?}");
                }
                Work::Collect => collect(&mut *far, &mut pending),
                Work::Fetch => {
                    if far.fetch(slot, monotonic()).unwrap() != Fetch::Ready {
                        pending.insert(slot.number());
                    }
                }
            }
        }
        while !pending.is_empty() {
            let due = far.due();
            assert!(due < u64::MAX || far.descriptor().is_some(), "{pending:?} never arrive");
            wait([far.descriptor()], due.saturating_sub(monotonic()).min(1_000_000_000));
            collect(&mut *far, &mut pending);
        }
        for (slot, content) in held {
            far.load(slot, &mut loaded).unwrap();
            assert!(loaded == numbered(content), "{slot:?}");
        }
    }

    /// A page of zeros, random bytes, or compressible bytes.
    fn page() -> impl Strategy<Value = Vec<u8>> {
        (any::<u64>(), 0..3usize).prop_map(|(seed, kind)| {
            let mut state = seed | 1;
            let noise = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let bytes: Vec<u8> = (0..PAGE).map(noise).collect();
            match kind {
                0 => vec![0; PAGE],
                1 => bytes,
                _ => bytes.iter().map(|byte| byte & 3).collect(),
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Pages are loaded unchanged, whatever else is stored and freed, and freed slots are reused.
        #[test]
        fn stored_pages_come_back(
            steps in prop::collection::vec((page(), any::<prop::sample::Index>(), any::<bool>()), 1..60),
        ) {
            let folder = tempfile::tempdir().unwrap();
            for (name, tier) in TIERS.iter().filter(|(_, tier)| !tier.is_mapped) {
                let mut far = (tier.make)(&argument(tier, folder.path()), 24).unwrap();
                let mut held: Vec<(Slot, Vec<u8>)> = Vec::new();
                let mut loaded = vec![0; PAGE];
                for (page, index, free) in &steps {
                    match far.store(page) {
                        Ok(slot) => {
                            prop_assert!(held.iter().all(|(other, _)| *other != slot), "{}", name);
                            held.push((slot, page.clone()));
                        }
                        Err(fault) => {
                            prop_assert_eq!(fault, Fault::Full);
                            prop_assert_eq!(held.len(), 24, "{}", name);
                        }
                    }
                    if *free || held.len() == 24 {
                        let (slot, _) = held.swap_remove(index.index(held.len()));
                        far.free(slot);
                    }
                    for (slot, page) in &held {
                        far.load(*slot, &mut loaded).unwrap();
                        prop_assert_eq!(&loaded, page, "{}", name);
                    }
                }
                for (slot, _) in held {
                    far.free(slot);
                }
                prop_assert_eq!(far.bytes(), 0, "{}", name);
            }
        }
    }

    #[test]
    fn a_tier_is_found_by_its_name_or_an_error_says_how() {
        for (name, tier) in TIERS {
            let text =
                if tier.argument.is_empty() { (*name).to_owned() } else { format!("{name}:/x") };
            assert_eq!(find(&text).unwrap().0, *name);
        }
        let says = |text| find(text).map(|_| ()).unwrap_err().to_string();
        assert!(says("zstf").contains("zstd, lz4"), "{}", says("zstf"));
        assert!(says("file").contains("file:PATH"), "{}", says("file"));
        assert!(says("zstd:3").contains("write zstd"), "{}", says("zstd:3"));
    }
}
