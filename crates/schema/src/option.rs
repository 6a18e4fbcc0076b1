//! Options, declared with [`options!`](crate::options) next to the study that uses them.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::{Entry, Given, Value, Wrong, choice};

/// The default of an option.
#[derive(Clone, Debug, PartialEq)]
pub struct Default {
    /// The value; `None` if the option is required.
    pub given: Option<Given>,
    /// Its text in help, if it differs from the value.
    pub shown: String,
}

impl<T: Into<Given>> From<T> for Default {
    fn from(given: T) -> Self {
        Self { given: Some(given.into()), shown: String::new() }
    }
}

/// A default of no value, which `shown` describes in help: `all`, `the machine's`.
pub fn none(shown: &str) -> Default {
    Default { given: Some(Given::Nothing), shown: shown.to_owned() }
}

/// No default, because the option is required.
pub fn required() -> Default {
    Default { given: None, shown: String::new() }
}

/// The declaration of one option.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Name in Python, in files and in the record of a run.
    pub name: &'static str,
    /// Description, for help and docs.
    pub what: String,
    pub default: Default,
    /// As [`Value::METAVAR`], or as declared.
    pub metavar: &'static str,
    /// As [`Value::python`].
    pub python: String,
    /// As [`Value::REGISTRY`].
    pub registry: &'static str,
    /// As [`Value::choices`].
    pub choices: Vec<Entry>,
    /// As [`Value::open`].
    pub open: bool,
    /// As [`Value::RECORDED`].
    pub recorded: bool,
    /// As [`Value::ARGUMENT`].
    pub argument: bool,
    /// Parse a value. Returns its form in the record of a run.
    pub read: fn(&Given) -> Result<Json, String>,
}

impl Spec {
    /// Declare an option of the type `T`.
    pub fn new<T: Value>(name: &'static str, what: &'static str, default: Default) -> Self {
        Self {
            name,
            what: what.to_owned(),
            default,
            metavar: T::METAVAR,
            python: T::python(),
            registry: T::REGISTRY,
            choices: T::choices(),
            open: T::open(),
            recorded: T::RECORDED,
            argument: T::ARGUMENT,
            read: |given| T::read(given).map(|value| value.plain()),
        }
    }

    /// The same option with this placeholder for its value, instead of that of its type.
    pub fn with_metavar(self, metavar: &'static str) -> Self {
        Self { metavar, ..self }
    }

    /// The same option, but optional, because only some choices of a command take it. Help still
    /// shows its default.
    pub fn optional(self) -> Self {
        let shown = match &self.default.given {
            Some(Given::Nothing) | None => self.default.shown,
            Some(given) => given.to_string(),
        };
        let python = match self.python.strip_suffix(" | None") {
            Some(_) => self.python,
            None => format!("{} | None", self.python),
        };
        Self { default: none(&shown), python, ..self }
    }

    /// Its flag, such as `--page-sizes`, or the placeholder of an argument, such as `NAME`. The
    /// final `_` of a name that is a Python keyword is dropped: `from_` is `--from`.
    pub fn flag(&self) -> String {
        if self.argument {
            return self.name.to_uppercase();
        }
        format!("--{}", self.name.trim_end_matches('_').replace('_', "-"))
    }

    /// The declaration as JSON, for `make declared`.
    pub fn to_json(&self) -> Json {
        json!({
            "name": self.name,
            "what": self.what,
            "required": self.default.given.is_none(),
            "default": self.default.given.as_ref().map_or(Json::Null, Json::from),
            "shown": self.default.shown,
            "metavar": self.metavar,
            "python": self.python,
            "registry": self.registry,
            "choices": choice::to_json(&self.choices),
            "open": self.open,
            "recorded": self.recorded,
            "argument": self.argument,
        })
    }
}

/// Options declared with [`options!`](crate::options).
pub trait Options: Sized {
    /// Their declarations, in order.
    fn specs() -> Vec<Spec>;
    /// Parse values by name; an option that is not in `given` has its default.
    ///
    /// # Errors
    /// An unknown name, an invalid value, or a missing option.
    fn read(given: &BTreeMap<String, Given>) -> Result<Self, Wrong>;
    /// The values by name, for the record of a run.
    fn plain(&self) -> Map<String, Json>;
}

/// Reject names that are not in `specs`.
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

/// Parse one option.
#[doc(hidden)]
pub fn read_one<T: Value>(spec: &Spec, given: &BTreeMap<String, Given>) -> Result<T, Wrong> {
    let Some(value) = given.get(spec.name).or(spec.default.given.as_ref()) else {
        return Err(Wrong { place: spec.flag(), what: "is missing; it must be given".into() });
    };
    T::read(value).map_err(|what| Wrong { place: spec.flag(), what })
}

/// Declare options: a struct, its schema and its parser. The documentation of a field is the text
/// for help and docs, and its type determines its syntax.
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
///         #[metavar = "THREADS"]
///         threads: Runtime<Count> = 0,
///     }
/// }
/// let given = [("tlb".to_owned(), "128".into())].into();
/// let options = Options::read(&given).unwrap();
/// assert_eq!((options.tlb.0, options.sample, options.threads.0.0), (128, None, 0));
/// assert_eq!(Options::specs()[1].flag(), "--sample");
/// assert_eq!(Options::specs()[2].metavar, "THREADS");
/// assert_eq!(Options::read(&[("tbl".to_owned(), 1.into())].into()).unwrap_err().place, "--tbl");
/// ```
#[macro_export]
macro_rules! options {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $options:ident {
            $(
                $(#[doc = $what:literal])+
                $(#[metavar = $metavar:literal])?
                $name:ident: $type:ty = $default:expr,
            )*
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
                )$(.with_metavar($metavar))?,)*]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Argument, Bytes};

    #[test]
    fn an_optional_option_still_shows_its_default() {
        let spec = Spec::new::<f64>("alpha", "Skew.", 1.5.into()).optional();
        assert_eq!(spec.default, none("1.5"));
        assert_eq!(spec.python, "float | None");
        let twice = Spec::new::<Option<Bytes>>("stride", "Step.", none("a page")).optional();
        assert_eq!((twice.default, twice.python.as_str()), (none("a page"), "str | int | None"));
        assert_eq!(Spec::new::<String>("mix", "Parts.", required()).optional().default, none(""));
    }

    #[test]
    fn an_argument_has_a_place_and_no_flag() {
        let spec = Spec::new::<Argument<String>>("name", "Name.", required());
        assert_eq!((spec.argument, spec.flag()), (true, "NAME".to_owned()));
        let missing = read_one::<Argument<String>>(&spec, &BTreeMap::new()).unwrap_err();
        assert_eq!(missing.place, "NAME");
    }

    #[test]
    fn recorded_values_are_read_back() {
        let spec = Spec::new::<Bytes>("stride", "Step.", required());
        let plain = (spec.read)(&"4K".into()).unwrap();
        assert_eq!(plain, 4096);
        assert_eq!((spec.read)(&Given::from(&plain)), Ok(plain));
        for json in [json!(null), json!(true), json!(-3), json!(1.5), json!("a"), json!([1, "b"])] {
            assert_eq!(Json::from(&Given::from(&json)), json);
        }
    }
}
