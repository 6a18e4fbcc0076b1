//! Option types: their syntax, parsing and recording.

use serde_json::Value as Json;

use crate::{Entry, Given};

/// An invalid value or unknown option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The flag of the option: `--page-sizes`.
    pub place: String,
    /// The error and the remedy, separated by a semicolon.
    pub what: String,
}

/// A message that `given` is not what was `expected`, with a remedy.
pub(crate) fn refuse(given: &Given, expected: &str, fix: &str) -> String {
    format!("'{}' is not {expected}; {fix}", given.shown())
}

/// An option type.
pub trait Value: Sized {
    /// Whether results depend on it, so that runs record it.
    const RECORDED: bool = true;
    /// Whether it is a positional argument.
    const ARGUMENT: bool = false;
    /// Placeholder in help: `SIZE`, `COUNT`; empty for a flag.
    const METAVAR: &'static str;
    /// Name of the list of its valid names (its registry), if several options share the list.
    const REGISTRY: &'static str = "";
    /// The type in a Python signature.
    fn python() -> String;
    /// Its valid names, for a type with names.
    fn choices() -> Vec<Entry> {
        Vec::new()
    }
    /// Whether values other than [`Self::choices`] are valid, such as a path.
    fn open() -> bool {
        Self::choices().is_empty()
    }
    /// Parse a value.
    ///
    /// # Errors
    /// The error and the remedy, separated by a semicolon.
    fn read(given: &Given) -> Result<Self, String>;
    /// The value in the record of a run, which [`Self::read`] accepts.
    fn plain(&self) -> Json;
}

impl Value for bool {
    const METAVAR: &'static str = "";
    fn python() -> String {
        "bool".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Flag(flag) => Ok(*flag),
            Given::Text(text) if text == "true" => Ok(true),
            Given::Text(text) if text == "false" => Ok(false),
            other => Err(refuse(other, "true or false", "write true or false")),
        }
    }
    fn plain(&self) -> Json {
        (*self).into()
    }
}

impl Value for String {
    const METAVAR: &'static str = "TEXT";
    fn python() -> String {
        "str".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Text(text) => Ok(text.clone()),
            other => Err(refuse(other, "text", "give text")),
        }
    }
    fn plain(&self) -> Json {
        self.as_str().into()
    }
}

impl Value for f64 {
    const METAVAR: &'static str = "NUMBER";
    fn python() -> String {
        "float".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let number = match given {
            Given::Real(number) => Some(*number),
            Given::Whole(number) => Some(*number as f64),
            Given::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        number
            .filter(|number| number.is_finite())
            .ok_or_else(|| refuse(given, "a number", "write a number such as 0.5"))
    }
    fn plain(&self) -> Json {
        (*self).into()
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(pub u64);

impl<const MIN: u64, const MAX: u64> Value for Count<MIN, MAX> {
    const METAVAR: &'static str = "COUNT";
    fn python() -> String {
        "int".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let number = match given {
            Given::Whole(number) => Some(*number),
            Given::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        number
            .and_then(|number| u64::try_from(number).ok())
            .filter(|number| (MIN..=MAX).contains(number))
            .map(Self)
            .ok_or_else(|| {
                let fix = match MAX {
                    u64::MAX if MIN == 0 => "give a whole number from 0".to_owned(),
                    u64::MAX => format!("give a whole number of at least {MIN}"),
                    _ => format!("give a whole number from {MIN} to {MAX}"),
                };
                format!("{} is out of range; {fix}", given.shown())
            })
    }
    fn plain(&self) -> Json {
        self.0.into()
    }
}

/// Inherit the placeholder and names from the type of its values.
macro_rules! forward {
    ($type:ty) => {
        const METAVAR: &'static str = <$type>::METAVAR;
        const REGISTRY: &'static str = <$type>::REGISTRY;
        fn choices() -> Vec<Entry> {
            <$type>::choices()
        }
        fn open() -> bool {
            <$type>::open()
        }
    };
}

impl<T: Value> Value for Option<T> {
    const RECORDED: bool = T::RECORDED;
    forward!(T);
    fn python() -> String {
        format!("{} | None", T::python())
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Nothing => Ok(None),
            some => T::read(some).map(Some),
        }
    }
    fn plain(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::plain)
    }
}

/// Values separated by commas.
#[derive(Clone, Debug, PartialEq)]
pub struct List<T>(pub Vec<T>);

impl<T: Value> Value for List<T> {
    const RECORDED: bool = T::RECORDED;
    forward!(T);
    fn python() -> String {
        format!("str | Sequence[{}]", T::python())
    }
    fn read(given: &Given) -> Result<Self, String> {
        given.items().iter().map(T::read).collect::<Result<_, _>>().map(Self)
    }
    fn plain(&self) -> Json {
        Json::Array(self.0.iter().map(T::plain).collect())
    }
}

/// Wrappers that are parsed and recorded as their contents, and add a property to the option.
macro_rules! wrappers {
    ($($(#[$attribute:meta])* $name:ident: $recorded:expr, $argument:expr;)*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name<T>(pub T);

            impl<T: Value> Value for $name<T> {
                const RECORDED: bool = $recorded;
                const ARGUMENT: bool = $argument;
                forward!(T);
                fn python() -> String {
                    T::python()
                }
                fn read(given: &Given) -> Result<Self, String> {
                    T::read(given).map(Self)
                }
                fn plain(&self) -> Json {
                    self.0.plain()
                }
            }
        )*
    };
}
wrappers! {
    /// A value that does not affect results: it is not in the record of a run.
    Runtime: false, T::ARGUMENT;
    /// A positional argument: `zipf` in `nearfar generate zipf`.
    Argument: T::RECORDED, true;
}
