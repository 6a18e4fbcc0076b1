//! Tiering: which pages are in fast memory and which in slow memory.
//!
//! A [`Policy`] reacts to events with actions on a [`Memory`]: the simulator (`nearfar-study`), the
//! runtime of real programs (`nearfar-live`) or the reference implementation for tests (`testing`).
//! The two traits document the contract.
//!
//! A new policy is a file with a [`PolicyEntry`] and a test of its characteristic behaviour, and a
//! line in the registry below. Parts that policies share: [`lists`] (active and inactive lists,
//! two-touch activation), [`generations`] (the multi-generational LRU), [`reclaim`] (watermarks,
//! kswapd), [`scan`] (hint-fault scanning), [`shares`] (fairness between tenants). [`guard`] wraps any
//! policy. [`layered`] builds a policy from external hooks over a base policy.

use std::fmt;

use nearfar_hardware::machine::clip;
use nearfar_trace::{Error, Result};

pub mod generations;
pub mod guard;
mod ids;
pub mod knobs;
pub mod layered;
pub mod lists;
mod memory;
pub mod pages;
mod policy;
pub mod reclaim;
pub mod scan;
pub mod shares;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use ids::{FRAME, HUGE, NodeId, Page, Tenant, Time};
pub use knobs::{Knob, Knobs, Settings};
use memory::USE_HINT_FAULTS;
pub use memory::{Action, Capability, Commit, DropReason, Limit, Memory, Refused, Request, need};
pub use policy::{Context, MIN_STEP, Next, Policy, Thread};
pub use reclaim::default_min_free;

/// A policy, and the first wake-up of each non-idle thread.
pub type Made = (Box<dyn Policy>, Vec<(Thread, Time)>);

/// A registered policy.
pub struct PolicyEntry {
    /// One line for lists of policies.
    pub what: &'static str,
    /// The publication or program that it follows; may be empty.
    pub follows: &'static str,
    /// Features of that source that it lacks; may be empty.
    pub leaves_out: &'static str,
    /// When not to use it.
    pub not_for: &'static str,
    /// Whether it knows future references ([`Policy::foresee`]), so that real policies can be
    /// compared with it.
    pub foresees: bool,
    /// Its own knobs, with the defaults of their sources.
    pub knobs: fn() -> Vec<Knob>,
    /// Create the policy for a memory without mapped pages: check its [`Capability`]s, allocate
    /// tables, [spawn](Memory::spawn) threads. The settings have passed [`check`].
    pub make: fn(&Settings, &mut dyn Memory) -> Result<Made>,
}

impl PolicyEntry {
    /// The policy's own knobs and those of the [`guard`], which policies without knobs and those
    /// that foresee do not have.
    pub fn all_knobs(&self) -> Vec<Knob> {
        let mut knobs = (self.knobs)();
        if !knobs.is_empty() && !self.foresees {
            knobs.extend(guard::GuardKnobs::declared());
        }
        knobs
    }
}

impl fmt::Debug for PolicyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyEntry").field("what", &self.what).finish_non_exhaustive()
    }
}

/// The registry: one line per policy, which has the name of its module.
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
    colloid,
    tpp,
    memtis,
    hybridtier,
    damon,
    nomad,
    ssp,
    oracle,
}

/// Find a policy by name.
///
/// # Errors
/// If there is none; the error suggests the nearest name.
pub fn find(name: &str) -> Result<&'static PolicyEntry> {
    POLICIES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy).ok_or_else(|| {
        let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
        Error::input(
            "--policy",
            format!("no tiering policy is called `{}`", clip(name)),
            knobs::suggest(name, &names),
        )
    })
}

/// Find a policy by name and check its settings.
///
/// # Errors
/// If there is no such policy or knob (the error suggests the nearest name), or a value is invalid.
pub fn check(name: &str, settings: &Settings) -> Result<&'static PolicyEntry> {
    let policy = find(name)?;
    settings.check(name, &policy.all_knobs())?;
    Ok(policy)
}

/// Create a policy for `mem`.
///
/// # Errors
/// Those of [`check`]; if the memory lacks a required capability.
pub fn make(name: &str, settings: &Settings, mem: &mut dyn Memory) -> Result<Made> {
    guard::make(check(name, settings)?, settings, mem)
}
