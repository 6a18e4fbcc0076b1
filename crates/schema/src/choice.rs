//! Registries of named entries, and enums with named variants.

use std::fmt;
use std::marker::PhantomData;

use serde_json::{Value as Json, json};

use crate::{Given, Value};

/// An entry of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: &'static str,
    /// One line of description, for help and docs.
    pub what: String,
}

/// `entries` as JSON: name and description of each.
pub(crate) fn to_json(entries: &[Entry]) -> Json {
    entries.iter().map(|entry| json!([entry.name, entry.what])).collect()
}

/// A registry, such as of policies, formats or modes.
pub trait Registry {
    /// Its name: `replacement`.
    const NAME: &'static str;
    /// Noun for an entry in messages: `policy`.
    const KIND: &'static str;
    /// Placeholder for an entry in help: `POLICY`.
    const METAVAR: &'static str;
    /// All entries, in the order of help and docs.
    fn entries() -> Vec<Entry>;
}

/// The name of an entry of a registry.
pub struct Choice<R> {
    /// The name, which is in the registry.
    pub name: &'static str,
    registry: PhantomData<fn() -> R>,
}

impl<R: Registry> Choice<R> {
    /// The entry of this name; `None` if the registry has none.
    pub fn of(name: &str) -> Option<Self> {
        let found = R::entries().into_iter().find(|entry| entry.name == name)?;
        Some(Self { name: found.name, registry: PhantomData })
    }
}

impl<R> Clone for Choice<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Choice<R> {}

impl<R> PartialEq for Choice<R> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<R> fmt::Debug for Choice<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl<R: Registry> Value for Choice<R> {
    const METAVAR: &'static str = R::METAVAR;
    const REGISTRY: &'static str = R::NAME;
    fn python() -> String {
        "str".into()
    }
    fn choices() -> Vec<Entry> {
        R::entries()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let found = match given {
            Given::Text(text) => Self::of(text),
            _ => None,
        };
        found.ok_or_else(|| unknown(R::KIND, given, &R::entries()))
    }
    fn plain(&self) -> Json {
        self.name.into()
    }
}

/// A message that `given` is not one of `entries`, which it lists.
pub fn unknown(kind: &str, given: &Given, entries: &[Entry]) -> String {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    format!("no {kind} '{}'; choose one of {}", given.shown(), names.join(", "))
}

/// Declare an enum of plain variants with names. Their documentation is the help text. `"pattern"`
/// is the noun in messages. `"pattern" in "patterns"` also names the registry, if several options
/// share it.
///
/// ```
/// nearfar_schema::choices! {
///     /// The order of accesses.
///     pub enum Pattern: "pattern" {
///         /// Anywhere.
///         Random = "random",
///         /// One after the other.
///         Sequential = "sequential",
///     }
/// }
/// use nearfar_schema::Value;
/// assert_eq!(Pattern::read(&"random".into()), Ok(Pattern::Random));
/// assert_eq!(Pattern::choices()[1].what, "One after the other.");
/// ```
#[macro_export]
macro_rules! choices {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $choice:ident: $kind:literal $(in $registry:literal)? {
            $($(#[doc = $what:literal])+ $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $choice {
            $($(#[doc = $what])+ $variant,)+
        }

        impl $choice {
            /// The name by which it is chosen.
            pub fn name(self) -> &'static str {
                match self {
                    $($choice::$variant => $name,)+
                }
            }
        }

        impl $crate::Value for $choice {
            const METAVAR: &'static str = "NAME";
            const REGISTRY: &'static str = concat!("", $($registry)?);
            fn python() -> String {
                "str".into()
            }
            fn choices() -> Vec<$crate::Entry> {
                vec![$($crate::Entry {
                    name: $name,
                    what: concat!($($what,)+).trim_start().into(),
                },)+]
            }
            fn read(given: &$crate::Given) -> Result<Self, String> {
                match given {
                    $($crate::Given::Text(text) if text == $name => Ok(Self::$variant),)+
                    other => Err($crate::choice::unknown($kind, other, &Self::choices())),
                }
            }
            fn plain(&self) -> $crate::serde_json::Value {
                self.name().into()
            }
        }
    };
}
