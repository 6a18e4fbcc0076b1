//! Embedded page faults (UMD, 002, section 2.3): what is done while a DRAM-interface SSD moves a
//! page from its flash to its DRAM.
//!
//! One file per policy. A policy decides whether the fault is passed to the kernel as an exception;
//! the kernel then puts the thread to sleep for the time the device predicts, unless the thread may
//! not sleep just then. What is not passed is waited for on the core. Thresholds are the user's:
//! nothing here knows a time of its own.

use nearfar_trace::{Error, Result};

pub mod all;
pub mod none;
pub mod smart;

/// An embedded page fault as the memory management unit sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How long the device says the page will take, nanoseconds.
    pub predicted_ns: u64,
}

/// A policy.
pub trait Epf: Send + Sync {
    /// Whether the fault goes to the kernel.
    fn pass(&self, fault: &Fault) -> bool;
}

/// A policy, or what is wrong with its argument.
type Made = std::result::Result<Box<dyn Epf>, String>;

/// A policy's name, what it is, and how it is made of what follows the name's colon.
#[derive(Clone, Copy)]
pub struct Named {
    /// The name on the command line.
    pub name: &'static str,
    /// How it is written, with an example of its argument.
    pub usage: &'static str,
    /// One line for help and docs.
    pub what: &'static str,
    /// Makes it; `None` where the name stands alone. The error says what is wrong.
    make: fn(Option<&str>) -> Made,
}

/// Every policy.
pub const POLICIES: [Named; 3] = [none::NAMED, all::NAMED, smart::NAMED];

/// The policy written as `text`: `none`, `all`, `smart:50us`.
///
/// # Errors
/// An input error that lists the policies.
pub fn parse(text: &str) -> Result<Box<dyn Epf>> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let shown: String = text.chars().take(40).collect();
    let Some(policy) = POLICIES.iter().find(|policy| policy.name == name) else {
        let usages: Vec<_> = POLICIES.iter().map(|policy| policy.usage).collect();
        let fix = format!("choose from {}", usages.join(", "));
        return Err(Error::input("--epf", format!("no policy {shown:?}"), fix));
    };
    (policy.make)(argument).map_err(|what| {
        Error::input("--epf", format!("{shown:?}: {what}"), format!("write {}", policy.usage))
    })
}

/// For policies that take no argument.
fn bare(argument: Option<&str>, policy: impl Epf + 'static) -> Made {
    match argument {
        None => Ok(Box::new(policy)),
        Some(_) => Err("takes no argument".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A threshold of 0 is `all`; one that nothing reaches is `none`; between, it is a step.
        #[test]
        fn thresholds_at_their_limits(predicted_ns in 0u64..1_000_000_000_000, at in 0u64..2_000_000) {
            let fault = Fault { predicted_ns };
            let pass = |text: &str| parse(text).unwrap().pass(&fault);
            prop_assert!(pass("all") && pass("smart:0ns"));
            prop_assert!(!pass("none") && !pass("smart:1000s"));
            prop_assert_eq!(pass(&format!("smart:{at}ns")), predicted_ns >= at);
        }
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        for (text, part) in [
            ("", "choose from none, all, smart:50us"),
            ("some", "no policy \"some\""),
            ("all:5us", "takes no argument"),
            ("smart", "write smart:50us"),
            ("smart:", "write smart:50us"),
            ("smart:50", "without a unit"),
            ("smart:-1us", "negative"),
        ] {
            let error = parse(text).err().unwrap();
            assert_eq!(error.exit_code(), 2);
            let error = error.to_string();
            assert!(error.starts_with("--epf: ") && error.contains(part), "{error}");
        }
    }
}
