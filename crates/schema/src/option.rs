//! Options: declared once with [`options!`](crate::options), beside the study that uses them.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::{Entry, Given, Value, Wrong};

/// What an option is unless it is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Default {
    /// The value; `None` where the option must be given.
    pub given: Option<Given>,
    /// What help says of it, where the value does not say it itself.
    pub shown: &'static str,
}

impl<T: Into<Given>> From<T> for Default {
    fn from(given: T) -> Self {
        Self { given: Some(given.into()), shown: "" }
    }
}

/// Nothing, which means what `shown` says: `all`, `the machine's`.
pub fn none(shown: &'static str) -> Default {
    Default { given: Some(Given::Nothing), shown }
}

/// The option must be given.
pub fn required() -> Default {
    Default { given: None, shown: "" }
}

/// The declaration of one option.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its name in Python, in files and in the record of a run.
    pub name: &'static str,
    /// What it is, for help and docs.
    pub what: &'static str,
    /// What it is unless given.
    pub default: Default,
    /// As [`Value::metavar`].
    pub metavar: &'static str,
    /// As [`Value::python`].
    pub python: String,
    /// As [`Value::registry`].
    pub registry: &'static str,
    /// As [`Value::choices`].
    pub choices: Vec<Entry>,
    /// As [`Value::open`].
    pub open: bool,
    /// As [`Value::RECORDED`].
    pub recorded: bool,
}

impl Spec {
    /// The option of this name, of the type `T`.
    pub fn new<T: Value>(name: &'static str, what: &'static str, default: Default) -> Self {
        Self {
            name,
            what,
            default,
            metavar: T::metavar(),
            python: T::python(),
            registry: T::registry(),
            choices: T::choices(),
            open: T::open(),
            recorded: T::RECORDED,
        }
    }

    /// How it is written on a command line: `--page-sizes`. A name that is a word of the language
    /// ends in `_`, which is left out: `from_` is `--from`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.trim_end_matches('_').replace('_', "-"))
    }

    /// The declaration as JSON, from which `make declared` writes everything else.
    pub fn to_json(&self) -> Json {
        let choices = self.choices.iter().map(|one| json!([one.name, one.what]));
        json!({
            "name": self.name,
            "what": self.what,
            "required": self.default.given.is_none(),
            "default": self.default.given.as_ref().map_or(Json::Null, Json::from),
            "shown": self.default.shown,
            "metavar": self.metavar,
            "python": self.python,
            "registry": self.registry,
            "choices": choices.collect::<Vec<_>>(),
            "open": self.open,
            "recorded": self.recorded,
        })
    }
}

/// Options that were declared with [`options!`](crate::options).
pub trait Options: Sized {
    /// Their declarations, in order.
    fn specs() -> Vec<Spec>;
    /// Read what was given, by name; the defaults for the rest.
    ///
    /// # Errors
    /// An unknown name, a value that is refused, an option that is missing: with its flag.
    fn read(given: &BTreeMap<String, Given>) -> Result<Self, Wrong>;
    /// What was read, by name: what the record of a run holds.
    fn plain(&self) -> Map<String, Json>;
}

/// Refuse names that none of `specs` has.
#[doc(hidden)]
pub fn check_names(specs: &[Spec], given: &BTreeMap<String, Given>) -> Result<(), Wrong> {
    let known = |name: &str| specs.iter().any(|spec| spec.name == name);
    let Some(name) = given.keys().find(|name| !known(name)) else { return Ok(()) };
    let flags: Vec<_> = specs.iter().map(Spec::flag).collect();
    let shown: String = name.chars().take(40).collect();
    Err(Wrong {
        place: format!("--{}", shown.replace('_', "-")),
        what: format!("there is no such option; there are: {}", flags.join(", ")),
    })
}

/// The value of one option.
#[doc(hidden)]
pub fn read_one<T: Value>(spec: &Spec, given: &BTreeMap<String, Given>) -> Result<T, Wrong> {
    let Some(value) = given.get(spec.name).or(spec.default.given.as_ref()) else {
        return Err(Wrong { place: spec.flag(), what: "is missing; it must be given".into() });
    };
    T::read(value).map_err(|what| Wrong { place: spec.flag(), what })
}

/// Declare options: a struct, its schema and its reader. The documentation of a field is the text
/// of help and docs, its type says how it is written.
///
/// ```
/// use nearfar_schema::{Count, Options as _, Runtime, none};
///
/// nearfar_schema::options! {
///     /// Options of a study.
///     pub struct Options {
///         /// Entries of the TLB.
///         tlb: Count<1, 65536> = 64,
///         /// The part of the pages to simulate.
///         sample: Option<f64> = none("all"),
///         /// Threads; 0 = one per core.
///         threads: Runtime<Count> = 0,
///     }
/// }
/// let given = [("tlb".to_owned(), "128".into())].into();
/// let options = Options::read(&given).unwrap();
/// assert_eq!((options.tlb.0, options.sample, options.threads.0.0), (128, None, 0));
/// assert_eq!(Options::specs()[1].flag(), "--sample");
/// assert_eq!(Options::read(&[("tbl".to_owned(), 1.into())].into()).unwrap_err().place, "--tbl");
/// ```
#[macro_export]
macro_rules! options {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $options:ident {
            $($(#[doc = $what:literal])+ $name:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $visible struct $options {
            $($(#[doc = $what])+ pub $name: $type,)*
        }

        impl $crate::Options for $options {
            fn specs() -> Vec<$crate::Spec> {
                vec![$($crate::Spec::new::<$type>(
                    stringify!($name),
                    concat!($($what,)+).trim_start(),
                    $default.into(),
                ),)*]
            }

            fn read(
                given: &std::collections::BTreeMap<String, $crate::Given>,
            ) -> Result<Self, $crate::Wrong> {
                let specs = Self::specs();
                $crate::option::check_names(&specs, given)?;
                let mut specs = specs.iter();
                let mut next = || specs.next().expect("a spec for each field");
                Ok(Self {
                    $($name: $crate::option::read_one::<$type>(next(), given)?,)*
                })
            }

            fn plain(&self) -> $crate::serde_json::Map<String, $crate::serde_json::Value> {
                let mut plain = $crate::serde_json::Map::new();
                $(if <$type as $crate::Value>::RECORDED {
                    plain.insert(
                        stringify!($name).to_owned(),
                        $crate::Value::plain(&self.$name),
                    );
                })*
                plain
            }
        }
    };
}
