//! Tiering: which pages lie in fast memory and which in slow memory.
//!
//! A [`Policy`] sees events and answers with actions on a [`Memory`]; it knows no time constants
//! and nothing of who carries its actions out. The simulator (`nearfar-study`) and the small
//! reference implementation (`testing`, for tests) are two such worlds; a runtime under a real
//! program is meant to be a third. The contract is in [`memory`](Memory) and [`policy`](Policy).
//!
//! To add a policy: one file here with a [`PolicyEntry`], one line in the registry below, a test in its
//! file of what it is known for. What policies share of the kernel has files of its own: [`lists`]
//! (active and inactive lists, two-touch activation), [`reclaim`] (watermarks, kswapd), [`scan`]
//! (hint-fault scanning). [`layered`] makes a policy of hooks that are not built in, over a base.

use std::fmt;

use nearfar_trace::{Error, Result};

mod ids;
pub mod knobs;
pub mod layered;
pub mod lists;
mod memory;
pub mod pages;
mod policy;
pub mod reclaim;
pub mod scan;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use ids::{FRAME, HUGE, NodeId, Page, Tenant, Time};
pub use knobs::{Knob, Knobs, Settings};
pub use memory::{Action, Capability, Commit, DropReason, Limit, Memory, Refused, Request, need};
pub use policy::{Context, MIN_STEP, Next, Policy, Thread};
pub use reclaim::usual_min_free;

/// A policy, and when which of its threads runs first; the others begin idle.
pub type Made = (Box<dyn Policy>, Vec<(Thread, Time)>);

/// A policy of the registry.
pub struct PolicyEntry {
    /// What it is, in one line.
    pub what: &'static str,
    /// The publication or program that it follows; empty if none.
    pub follows: &'static str,
    /// What that has and this has not; empty if nothing.
    pub leaves_out: &'static str,
    /// Where not to use it.
    pub not_for: &'static str,
    /// Whether it knows the future ([`Policy::foresee`]); such a policy is a bound.
    pub foresees: bool,
    /// Its knobs, with the defaults of their sources.
    pub knobs: fn() -> Vec<Knob>,
    /// Make one for a memory in which no page is mapped yet: ask its [`Capability`]s, size the
    /// tables, [spawn](Memory::spawn) the threads. [`check`] has accepted the settings.
    pub make: fn(&Settings, &mut dyn Memory) -> Result<Made>,
}

impl fmt::Debug for PolicyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyEntry").field("what", &self.what).finish_non_exhaustive()
    }
}

/// The registry: one line per policy. The name is the module's, so no two can be the same.
macro_rules! policies {
    ($($name:ident,)*) => {
        $(pub mod $name;)*

        /// Every policy, by name.
        pub static POLICIES: &[(&str, &PolicyEntry)] = &[$((stringify!($name), &$name::POLICY),)*];
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
pub fn find(name: &str) -> Result<&'static PolicyEntry> {
    POLICIES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy).ok_or_else(|| {
        let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
        Error::input(
            "--policy",
            format!("no tiering policy is called `{}`", knobs::clip(name)),
            knobs::suggest(name, &names),
        )
    })
}

/// The policy of this name, if these settings are right for it; no memory is needed to know.
///
/// # Errors
/// Input errors: no such policy, no such knob (with the nearest name), or a value out of place.
pub fn check(name: &str, settings: &Settings) -> Result<&'static PolicyEntry> {
    let policy = find(name)?;
    settings.check(name, &(policy.knobs)())?;
    Ok(policy)
}

/// Make the policy of this name with these settings for `mem`.
///
/// # Errors
/// Those of [`check`]; a memory that lacks what the policy cannot do without.
pub fn make(name: &str, settings: &Settings, mem: &mut dyn Memory) -> Result<Made> {
    (check(name, settings)?.make)(settings, mem)
}
