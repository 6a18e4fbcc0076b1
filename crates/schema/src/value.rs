//! The types that an option may have: how each is written, read and recorded.

use serde_json::Value as Json;

use crate::{Entry, Given};

/// A value that is refused, or an option that there is not: where, what is wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The flag of the option: `--page-sizes`.
    pub place: String,
    /// What is wrong and what to write instead, with a semicolon between.
    pub what: String,
}

/// That `given` is not `a`; `fix` says what would be.
pub(crate) fn refuse(given: &Given, a: &str, fix: &str) -> String {
    format!("'{}' is not {a}; {fix}", given.shown())
}

/// A type that an option may have.
pub trait Value: Sized {
    /// Whether results depend on it, so that it belongs into the record of a run.
    const RECORDED: bool = true;
    /// Whether it is written without a flag, in its place after the command.
    const ARGUMENT: bool = false;
    /// How the value is called in help: `SIZE`, `COUNT`; empty for a flag.
    fn metavar() -> &'static str;
    /// The type in a Python signature.
    fn python() -> String;
    /// The registry that the names are of, where several options share it.
    fn registry() -> &'static str {
        ""
    }
    /// The names that may be written, where the type has names.
    fn choices() -> Vec<Entry> {
        Vec::new()
    }
    /// Whether other values than [`Self::choices`] are taken: a path, an argument after a colon.
    fn open() -> bool {
        Self::choices().is_empty()
    }
    /// Read it.
    ///
    /// # Errors
    /// What is wrong with the value and what to write instead, with a semicolon between.
    fn read(given: &Given) -> Result<Self, String>;
    /// What was read, as the record of a run holds it: [`Self::read`] takes it again.
    fn plain(&self) -> Json;
}

impl Value for bool {
    fn metavar() -> &'static str {
        ""
    }
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
    fn metavar() -> &'static str {
        "TEXT"
    }
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
    fn metavar() -> &'static str {
        "NUMBER"
    }
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
    fn metavar() -> &'static str {
        "COUNT"
    }
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

/// What a type takes over from the type of its values: how they are called, and their names.
macro_rules! forward {
    ($type:ty) => {
        fn metavar() -> &'static str {
            <$type>::metavar()
        }
        fn registry() -> &'static str {
            <$type>::registry()
        }
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
        match T::python().as_str() {
            "str" => "str | Sequence[str]".into(),
            one => format!("str | Sequence[{one}]"),
        }
    }
    fn read(given: &Given) -> Result<Self, String> {
        given.items().iter().map(T::read).collect::<Result<_, _>>().map(Self)
    }
    fn plain(&self) -> Json {
        Json::Array(self.0.iter().map(T::plain).collect())
    }
}

/// Types that are read and written as what they hold, and say one thing more of the option.
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
    /// A value that changes no result, only how it is come by: it is not in the record of a run.
    Runtime: false, T::ARGUMENT;
    /// A value that a command takes without a flag: `zipf` in `nearfar generate zipf`.
    Argument: T::RECORDED, true;
}
