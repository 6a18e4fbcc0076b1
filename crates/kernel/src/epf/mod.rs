//! Embedded page faults (paper 002, section 2.3): faults while a DRAM-interface SSD moves a page
//! from its flash to its DRAM.
//!
//! A policy, one file each, decides whether a fault goes to the kernel, which puts the thread to
//! sleep for the predicted time. Otherwise the core waits for the device.

use nearfar_schema::{Entry, Given, Value};

pub mod all;
pub mod none;
pub mod smart;

/// An embedded page fault (EPF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Duration predicted by the device, nanoseconds.
    pub predicted_ns: u64,
}

/// A policy for embedded page faults.
pub trait Epf: Send + Sync {
    /// Whether the fault goes to the kernel.
    fn pass(&self, fault: &Fault) -> bool;
}

/// A policy, or a description of the error in its argument.
type PolicyResult = std::result::Result<Box<dyn Epf>, String>;

/// A registered policy.
#[derive(Clone, Copy)]
pub struct PolicyEntry {
    /// Name on the command line.
    pub name: &'static str,
    /// Syntax, with an example of the argument.
    pub usage: &'static str,
    /// One line for help and docs.
    pub what: &'static str,
    /// Create the policy from its argument, the text after the colon.
    make: fn(Option<&str>) -> PolicyResult,
}

pub const POLICIES: &[PolicyEntry] = &[none::POLICY, all::POLICY, smart::POLICY];

/// Parse a policy: `none`, `all`, `smart:50us`.
///
/// # Errors
/// A description of the error and of the fix, separated by a semicolon.
pub fn parse(text: &str) -> Result<Box<dyn Epf>, String> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let shown: String = text.chars().take(40).collect();
    let Some(policy) = POLICIES.iter().find(|policy| policy.name == name) else {
        let usages: Vec<_> = POLICIES.iter().map(|policy| policy.usage).collect();
        return Err(format!("no policy {shown:?}; choose from {}", usages.join(", ")));
    };
    (policy.make)(argument).map_err(|what| format!("{shown:?}: {what}; write {}", policy.usage))
}

/// An option's value: a policy's name, with an argument after a colon if it takes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyText(pub String);

impl Value for PolicyText {
    const METAVAR: &'static str = "POLICY";
    const REGISTRY: &'static str = "epf";
    fn python() -> String {
        "str".into()
    }
    fn choices() -> Vec<Entry> {
        let entry = |policy: &PolicyEntry| {
            let what = match policy.usage == policy.name {
                true => policy.what.to_owned(),
                false => format!("{}, as in {}", policy.what, policy.usage),
            };
            Entry { name: policy.name, what }
        };
        POLICIES.iter().map(entry).collect()
    }
    fn open() -> bool {
        // A choice with another argument, such as `smart:20us`, is valid too.
        true
    }
    fn read(given: &Given) -> Result<Self, String> {
        let text = String::read(given)?;
        parse(&text).map(|_| Self(text))
    }
    fn plain(&self) -> nearfar_schema::serde_json::Value {
        self.0.as_str().into()
    }
}

/// Make a policy that takes no argument.
fn bare(argument: Option<&str>, policy: impl Epf + 'static) -> PolicyResult {
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
        #[test]
        fn extreme_thresholds_equal_all_and_none(predicted_ns in 0u64..1_000_000_000_000, at in 0u64..2_000_000) {
            let fault = Fault { predicted_ns };
            let pass = |text: &str| parse(text).unwrap().pass(&fault);
            prop_assert!(pass("all") && pass("smart:0ns"));
            prop_assert!(!pass("none") && !pass("smart:1000s"));
            prop_assert_eq!(pass(&format!("smart:{at}ns")), predicted_ns >= at);
        }
    }

    #[test]
    fn an_option_keeps_the_argument_of_its_policy() {
        let written = PolicyText::read(&"smart:50us".into()).unwrap();
        assert_eq!(written.plain(), "smart:50us");
        assert!(PolicyText::read(&Given::Whole(5)).is_err());
    }

    #[test]
    fn invalid_policies_are_refused() {
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
            assert!(error.contains(part), "{error}");
        }
    }
}
