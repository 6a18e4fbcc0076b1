//! The options of `nearfar run`.

use std::collections::BTreeMap;

use nearfar_kernel::epf;
use nearfar_kernel::tiering::layered::{Declared, Hooks};
use nearfar_kernel::tiering::{NodeId, POLICIES, Settings, default_min_free, find};
use nearfar_schema::{
    Bytes, Choice, Command, Entry, Given, Nanoseconds, OneMemory, Options as _, Registry, Value,
    column, none, required, units::MemorySize,
};
use nearfar_trace::{Error, Result};
use serde_json::Value as Json;

use crate::far::{self, Node, TIERS};
use crate::setup::Setup;
use crate::{
    Child, Event, Fail, Frame, Kernel, Manager, NewRegion, PAGE, Regions, Sizes, Va, World,
};

/// Minimum fast memory. With much less, most would be the window (a few far pages) and spare frames
/// ([`Sizes`]).
const MIN_FAST: u64 = 1 << 20;

nearfar_schema::options! {
    /// The options of `nearfar run` as given.
    pub struct RunOptions {
        /// Fast memory of each process: a size (512M), or a share (50%) of the largest process's peak
        /// private memory.
        fast: OneMemory = required(),
        /// Far tier, for the rest of the memory; file:PATH makes a file, umd:MACHINE simulates a
        /// DRAM-interface SSD, node:N is a memory node.
        far: Tier = "zstd",
        /// Tiering policy: a name, or a Python file such as mine.py.
        policy: Policy = "ssp",
        /// Maximum far memory of each process before compression, with shadows (copies of promoted pages).
        far_size: Option<Bytes> = none("16 times --fast"),
        /// Minimum time of a page transfer to or from the far tier.
        far_latency: Nanoseconds = "0ns",
        /// Embedded page faults (EPF) for which the thread sleeps until the page arrives from the far
        /// tier; for others it busy-waits.
        epf: epf::PolicyText = "all",
    }
}

pub const COMMAND: Command = Command {
    name: "run",
    options: RunOptions::specs,
    tables: &[("watch", column::to_json::<crate::watch::Row>)],
};

#[derive(Debug)]
pub struct Policies;

impl Registry for Policies {
    const NAME: &'static str = "policy";
    const KIND: &'static str = "policy";
    const METAVAR: &'static str = "POLICY";
    fn entries() -> Vec<Entry> {
        POLICIES.iter().map(|(name, policy)| Entry { name, what: policy.what.into() }).collect()
    }
}

/// The name of a built-in policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy(pub Choice<Policies>);

impl Value for Policy {
    const METAVAR: &'static str = Choice::<Policies>::METAVAR;
    const REGISTRY: &'static str = Choice::<Policies>::REGISTRY;
    fn python() -> String {
        "PolicyLike".into()
    }
    fn choices() -> Vec<Entry> {
        Choice::<Policies>::choices()
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        Choice::read(given).map(Self)
    }
    fn plain(&self) -> Json {
        self.0.plain()
    }
}

/// A far tier as given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier(pub String);

impl Value for Tier {
    const METAVAR: &'static str = "TIER";
    const REGISTRY: &'static str = "far";
    fn python() -> String {
        "str".into()
    }
    fn choices() -> Vec<Entry> {
        TIERS.iter().map(|(name, tier)| Entry { name, what: tier.what.into() }).collect()
    }
    fn open() -> bool {
        // A tier may have an argument: file:PATH.
        true
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let text = given.to_string();
        // The caller adds the option's name.
        match far::find(&text) {
            Ok(_) => Ok(Self(text)),
            Err(error) => Err(error.to_string().trim_start_matches("--far: ").to_owned()),
        }
    }
    fn plain(&self) -> Json {
        self.0.as_str().into()
    }
}

impl RunOptions {
    /// If `--fast` is a percentage, resolve it to bytes. The option is still recorded as given.
    ///
    /// `private`: the peak private memory of the program's largest process, in bytes.
    ///
    /// # Errors
    /// The result is less than the minimum.
    pub fn resolved(mut self, private: u64) -> Result<Self> {
        if let MemorySize::Fraction(part) = self.fast.size {
            // Round up to whole pages.
            let pages = (private as f64 * part / PAGE as f64).ceil() as u64;
            let bytes = pages.saturating_mul(PAGE as u64);
            if bytes < MIN_FAST {
                let what = format!(
                    "{} of the program's peak private memory ({} KiB) is less than 1 MiB",
                    self.fast.text.trim(),
                    private >> 10
                );
                return Err(Error::input("--fast", what, "give more, such as 64M"));
            }
            self.fast.size = MemorySize::Bytes(bytes);
        }
        Ok(self)
    }

    /// If `--fast` is a percentage, set it to the minimum size.
    #[must_use]
    pub fn with_min_fast(mut self) -> Self {
        if self.is_percentage() {
            self.fast.size = MemorySize::Bytes(MIN_FAST);
        }
        self
    }

    /// Whether `--fast` is still a percentage.
    pub fn is_percentage(&self) -> bool {
        matches!(self.fast.size, MemorySize::Fraction(_))
    }

    /// The setup of a run, with `knobs` of the policy.
    ///
    /// # Errors
    /// Too little memory; a wrong knob; a policy that needs a capability that a real run lacks.
    pub fn setup(&self, knobs: BTreeMap<String, String>) -> Result<Setup> {
        let name = self.policy.0.name;
        let setup = self.setup_of(name, Some(name), knobs)?;
        check_policy(name, &setup.settings(), setup.is_mapped())?;
        Ok(setup)
    }

    /// The setup of a run with a policy that is not built in. `knobs` are those of its base, a built-in
    /// policy.
    ///
    /// # Errors
    /// As [`setup`](Self::setup).
    pub fn setup_with(
        &self,
        name: &str,
        declared: &Declared,
        knobs: BTreeMap<String, String>,
    ) -> Result<Setup> {
        if name.contains(char::is_control) {
            let what = "a policy's name is a single line of text";
            return Err(Error::input("policy", what, "choose another"));
        }
        let setup = self.setup_of(name, declared.base.as_deref(), knobs)?;
        if declared.hooks.any(Hooks::FORESEE) {
            return Err(foreseeing(name));
        }
        declared.check(&setup.settings())?;
        if let Some(base) = &declared.base {
            check_policy(base, &setup.settings(), setup.is_mapped())?;
        }
        // Such a policy runs in the launcher.
        Ok(Setup { remote: true, ..setup })
    }

    fn setup_of(
        &self,
        policy: &str,
        base: Option<&str>,
        knobs: BTreeMap<String, String>,
    ) -> Result<Setup> {
        let fast = match self.fast.size {
            MemorySize::Bytes(bytes) => bytes,
            MemorySize::Fraction(_) => {
                let what = "is a share of the program's peak private memory, which is not known";
                return Err(Error::input("--fast", what, "give a size, such as 64M"));
            }
        };
        if fast < MIN_FAST {
            return Err(Error::input("--fast", "is less than 1 MiB", "give more, such as 64M"));
        }
        let far_size = self.far_size.as_ref().map_or(fast.saturating_mul(16), |bytes| bytes.0);
        let (name, tier, argument) = far::find(&self.far.0)?;
        if let Some(why) = tier.own_time.filter(|_| self.far_latency.0 > 0) {
            let what = format!("is of no use with {name}, {why}");
            return Err(Error::input("--far-latency", what, "leave it out"));
        }
        let pages = (far_size / PAGE as u64).min(u32::MAX.into()) as u32;
        let far = match (tier.check)(argument, pages)? {
            checked if checked.is_empty() => name.to_owned(),
            checked => format!("{name}:{checked}"),
        };
        let mut setup = Setup {
            fast,
            far_size,
            far,
            far_latency_ns: self.far_latency.0,
            epf: self.epf.0.clone(),
            policy: policy.to_owned(),
            knobs,
            ..Setup::default()
        };
        // `min_free` has Linux's default for a node as large as the fast memory.
        let (knob, default) = default_min_free(setup.fast);
        let known = base.map(find).transpose()?.map_or(Vec::new(), |base| base.all_knobs());
        if known.iter().any(|declared| declared.name == knob) {
            setup.knobs.entry(knob.to_owned()).or_insert(default);
        }
        Ok(setup)
    }
}

/// Check whether a policy can run with a real program. `far_is_mapped`: the far tier is a memory
/// node.
///
/// # Errors
/// Why not, and what to choose.
pub fn check_policy(name: &str, settings: &Settings, far_is_mapped: bool) -> Result<()> {
    if find(name)?.foresees {
        return Err(foreseeing(name));
    }
    let sizes = Sizes { fast: 64, far: 64, window: 1, spare: 1, pages: 512, far_is_mapped };
    let world = World::new(Stub, Box::new(Node), sizes);
    Manager::new(world, name, settings, 1).map(|_| ())
}

fn foreseeing(name: &str) -> Error {
    Error::input(
        format!("--policy {name}"),
        "needs future references, which a running program cannot provide",
        "choose another policy; `nearfar tiering --list` lists them",
    )
}

/// A kernel that does nothing, enough to make a policy.
struct Stub;

impl Kernel for Stub {
    fn events(&mut self, _: &mut Vec<Event>) {}
    fn discover(&mut self, _: &Regions, _: &mut Vec<NewRegion>) {}
    fn place(&mut self, _: Va, _: &[u8], _: bool) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn place_copy(&mut self, _: Va, _: Frame, _: bool, _: NodeId) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn copy_to_far_node(&mut self, _: Frame, _: Frame) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn place_zeros(&mut self, _: Va, _: u64) -> std::result::Result<u64, Fail> {
        Err(Fail::Ended)
    }
    fn park(&mut self, _: Va, _: Frame) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn restore(&mut self, _: Frame, _: Va) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn protect(&mut self, _: Va, _: bool) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn is_quiet(&mut self) -> bool {
        true
    }
    fn wait_for_messages(&mut self) {}
    fn wake(&mut self, _: Va) {}
    fn frame(&self, _: Frame) -> &[u8] {
        &[0; PAGE]
    }
    fn frame_mut(&mut self, _: Frame) -> &mut [u8] {
        &mut []
    }
    fn discard(&mut self, _: Frame, _: u32) {}
    fn copy_to_child(&mut self, _: Child, _: Va, _: &[u8]) -> std::result::Result<(), Fail> {
        Err(Fail::Ended)
    }
    fn child_events(&mut self, _: Child, _: &mut Vec<Event>) {}
    fn release_child(&mut self, _: Child) {}
    fn now_ns(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup_of(given: &[(&str, &str)]) -> Result<Setup> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), Given::from(*value)));
        let options = RunOptions::read(&given.collect()).map_err(Error::refused)?;
        options.setup(BTreeMap::new())
    }

    #[test]
    fn options_are_set_up_or_refused_in_one_line() {
        let setup = setup_of(&[("fast", "64M"), ("far", "lz4"), ("far_latency", "2us")]).unwrap();
        assert_eq!((setup.fast, setup.far_size), (64 << 20, 1 << 30));
        assert_eq!((setup.far.as_str(), setup.far_latency_ns), ("lz4", 2000));
        assert_eq!(setup.epf, "all");
        for (given, says) in [
            (vec![("fast", "1K")], "1 MiB"),
            (vec![("fast", "0%")], "not above 0 %"),
            (vec![("fast", "10%,50%")], "one size"),
            (vec![("fast", "50%")], "not known"),
            (vec![("fast", "64M"), ("far", "tape")], "zstd, lz4"),
            (vec![("fast", "64M"), ("epf", "some")], "none, all, smart:50us"),
            (vec![("fast", "64M"), ("far", "umd:umd"), ("far_latency", "2us")], "umd"),
            (vec![("fast", "64M"), ("far", "umd:nvme")], "[flash]"),
            (vec![("fast", "64M"), ("far", "node")], "write node:N"),
            (vec![("fast", "64M"), ("far", "node:4000")], "no memory node 4000"),
            (vec![("fast", "64M"), ("far", "node:1"), ("far_latency", "2us")], "accessed in place"),
            (vec![("fast", "512M"), ("far", "umd:umd")], "--far-size"),
            (vec![("fast", "64M"), ("policy", "memtis")], "samples"),
            (vec![("fast", "64M"), ("policy", "oracle")], "future"),
        ] {
            let text = setup_of(&given).map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_percentage_is_of_the_peak_private_memory() {
        let given =
            |fast: &str| RunOptions::read(&[("fast".into(), Given::from(fast))].into()).unwrap();
        for (fast, budget) in [("50%", 4 << 20), ("200 %", 16 << 20), ("3M", 3 << 20)] {
            let options = given(fast);
            assert_eq!(options.is_percentage(), fast.ends_with('%'));
            let options = options.resolved((8 << 20) - 1).unwrap();
            assert_eq!(options.setup(BTreeMap::new()).unwrap().fast, budget);
            assert_eq!(options.plain()["fast"], fast);
        }
        let text = given("10%").resolved(8 << 20).unwrap_err().to_string();
        let says = "--fast: 10% of the program's peak private memory (8192 KiB) is less than 1 MiB";
        assert!(text.starts_with(says) && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_policy_that_is_not_built_in_is_set_up_with_its_base() {
        let options = RunOptions::read(&[("fast".to_owned(), Given::from("64M"))].into()).unwrap();
        let knobs = |text: &[(&str, &str)]| {
            text.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let with = |base: Option<&str>, hooks, name: &str, given| {
            let declared =
                Declared { base: base.map(str::to_owned), hooks, watch_unshadowed: false };
            options.setup_with(name, &declared, knobs(given))
        };
        let setup = with(Some("nomad"), Hooks::WRITTEN, "mine", &[]).unwrap();
        assert!(setup.remote && setup.policy == "mine");
        // The knobs have the defaults of a built-in policy.
        assert_eq!(setup.knobs, options.setup(BTreeMap::new()).unwrap().knobs);
        assert!(with(None, Hooks::HINT_FAULT, "mine", &[]).unwrap().knobs.is_empty());
        for (found, says) in [
            (with(Some("tpp"), Hooks::WRITTEN, "mine", &[]), "`nomad`"),
            (with(Some("memtis"), Hooks::default(), "mine", &[]), "samples"),
            (with(Some("nomad"), Hooks::default(), "mine", &[("notise", "x")]), "no such knob"),
            (with(None, Hooks::FORESEE, "mine", &[]), "--policy mine: needs future"),
            (with(None, Hooks::default(), "a\nb", &[]), "a single line of text"),
        ] {
            let text = found.map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn only_these_policies_can_run() {
        for mapped in [false, true] {
            let can: Vec<_> = POLICIES
                .iter()
                .filter(|(name, _)| check_policy(name, &Settings::default(), mapped).is_ok())
                .map(|(name, _)| *name)
                .collect();
            let damon = mapped.then_some("damon");
            let known =
                ["none", "autonuma", "tpp"].into_iter().chain(damon).chain(["nomad", "ssp"]);
            assert_eq!(can, known.collect::<Vec<_>>());
        }
    }
}
