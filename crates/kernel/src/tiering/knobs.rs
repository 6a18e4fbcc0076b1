//! Knobs: the constants of a policy.
//!
//! [`knobs!`](crate::knobs) declares a group once: name, type, default, meaning and source of each
//! knob. It generates the struct that the policy reads, the list for help and docs, and the parser
//! of settings.

use std::collections::BTreeMap;

use nearfar_hardware::machine::{clip, nearest};
use nearfar_hardware::units;
use nearfar_trace::{Error, Result};

use super::{FRAME, Time};

/// One constant of a policy.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    pub name: &'static str,
    /// Kind of value: "a count", "a time", ...
    pub kind: &'static str,
    /// The default value, as text.
    pub default: &'static str,
    pub what: &'static str,
    /// Where the default comes from.
    pub source: &'static str,
    /// All valid values, if there are few.
    pub choices: &'static [&'static str],
    /// Value for tests, which takes effect within a few hundred references to a few dozen pages;
    /// `None`: the default.
    pub in_tests: Option<&'static str>,
    /// Validate a value at a scale.
    pub check: fn(&str, f64) -> std::result::Result<(), String>,
}

/// The user's settings, and the scale of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Values by knob name.
    pub values: BTreeMap<String, String>,
    /// Factor of times and amounts of memory: a run of 1/64 of the memory and of the work takes 1/64
    /// of the time, so that rates stay the same. 1 is full scale.
    pub scale: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { values: BTreeMap::new(), scale: 1.0 }
    }
}

impl Settings {
    /// Shrink a default number of samples with the scale: a shrunk run has fewer samples.
    pub(super) fn scale_samples(&self, knob: &str, samples: &mut u64) {
        if !self.values.contains_key(knob) {
            *samples = ((*samples as f64 * self.scale) as u64).max(1);
        }
    }

    /// Refuse unknown knobs and invalid values.
    pub(super) fn check(&self, policy: &str, known: &[Knob]) -> Result<()> {
        for (name, value) in &self.values {
            let place = format!("knob {policy}.{}", clip(name));
            let Some(knob) = known.iter().find(|knob| knob.name == name) else {
                let names: Vec<&str> = known.iter().map(|knob| knob.name).collect();
                return Err(if names.is_empty() {
                    Error::input(place, format!("{policy} has no knobs"), "leave it out")
                } else {
                    Error::input(place, "there is no such knob", suggest(name, &names))
                });
            };
            (knob.check)(value, self.scale)
                .map_err(|why| Error::input(place, format!("{:?}: {why}", clip(value)), ""))?;
        }
        Ok(())
    }
}

/// A remedy: the nearest of `names`, and all of them.
pub(super) fn suggest(word: &str, names: &[&str]) -> String {
    let best = nearest(word, names).unwrap_or_default();
    format!("did you mean `{best}`? (there are: {})", names.join(", "))
}

/// A type that a knob may have.
pub trait KnobValue: Sized {
    /// Kind of value.
    const KIND: &'static str;
    /// All valid values, if there are few.
    const CHOICES: &'static [&'static str] = &[];
    /// Parse a value. The error describes valid values.
    fn read(text: &str, scale: f64) -> std::result::Result<Self, String>;
}

impl KnobValue for u64 {
    const KIND: &'static str = "a count";
    fn read(text: &str, _: f64) -> std::result::Result<Self, String> {
        text.parse()
            .ok()
            .filter(|n| *n <= 1 << 40)
            .ok_or_else(|| "write a whole number, at most 2^40".into())
    }
}

impl KnobValue for f64 {
    const KIND: &'static str = "a number";
    fn read(text: &str, _: f64) -> std::result::Result<Self, String> {
        text.parse()
            .ok()
            .filter(|n: &f64| n.is_finite() && *n >= 0.0)
            .ok_or_else(|| "write a number that is not negative, such as 0.5".into())
    }
}

impl KnobValue for bool {
    const KIND: &'static str = "true or false";
    const CHOICES: &'static [&'static str] = &["true", "false"];
    fn read(text: &str, _: f64) -> std::result::Result<Self, String> {
        text.parse().map_err(|_| "write true or false".into())
    }
}

/// A time; shrinks with the scale of the run.
impl KnobValue for Time {
    const KIND: &'static str = "a time";
    fn read(text: &str, scale: f64) -> std::result::Result<Self, String> {
        let ps = units::Time::parse(text)?.ps();
        Ok(Time::from_ps(((ps as f64 * scale) as u64).max(1)))
    }
}

/// Memory in frames; shrinks with the scale of the run to at least one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames(pub u64);

impl KnobValue for Frames {
    const KIND: &'static str = "an amount of memory";
    fn read(text: &str, scale: f64) -> std::result::Result<Self, String> {
        let bytes = units::Size::parse(text)?.bytes();
        Ok(Frames(((bytes as f64 * scale / FRAME as f64) as u64).max(1)))
    }
}

/// A group of knobs.
pub trait Knobs: Sized {
    /// The knobs of the group.
    fn declared() -> Vec<Knob>;
    /// The values of `settings`, or the defaults.
    ///
    /// # Errors
    /// An input error that names the knob.
    fn read(settings: &Settings) -> Result<Self>;
}

/// The value of one knob.
#[doc(hidden)]
pub fn value<V: KnobValue>(name: &str, default: &str, settings: &Settings) -> Result<V> {
    let text = settings.values.get(name).map_or(default, String::as_str);
    V::read(text, settings.scale)
        .map_err(|why| Error::input(format!("knob {name}"), format!("{:?}: {why}", clip(text)), ""))
}

/// Declare a group of knobs: `name: type = default (in tests value), meaning, source of the
/// default;`.
#[macro_export]
macro_rules! knobs {
    (
        $(#[$doc:meta])*
        $group:ident {
            $($name:ident: $type:ty = $default:literal $((in tests $tests:literal))?,
                $what:literal, $source:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $group {
            $(#[doc = $what] pub $name: $type,)*
        }

        impl $crate::tiering::knobs::Knobs for $group {
            fn declared() -> Vec<$crate::tiering::knobs::Knob> {
                vec![$($crate::tiering::knobs::Knob {
                    name: stringify!($name),
                    kind: <$type as $crate::tiering::knobs::KnobValue>::KIND,
                    default: $default,
                    what: $what,
                    source: $source,
                    choices: <$type as $crate::tiering::knobs::KnobValue>::CHOICES,
                    in_tests: [$(Some($tests),)? None][0],
                    check: |text, scale| {
                        <$type as $crate::tiering::knobs::KnobValue>::read(text, scale).map(drop)
                    },
                },)*]
            }

            fn read(
                settings: &$crate::tiering::knobs::Settings,
            ) -> nearfar_trace::Result<Self> {
                Ok(Self {
                    $($name: $crate::tiering::knobs::value(
                        stringify!($name), $default, settings,
                    )?,)*
                })
            }
        }
    };
}
