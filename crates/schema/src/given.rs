//! A value as it was given: text on a command line or in a file, anything plain from Python.

use serde_json::Value as Json;

/// A value as it was given.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// Nothing: the same as leaving the option out, where it need not be given.
    Nothing,
    /// True or false.
    Flag(bool),
    /// A whole number.
    Whole(i128),
    /// A number.
    Real(f64),
    /// Text, in the grammar of the option.
    Text(String),
    /// Several values.
    List(Vec<Given>),
}

impl Given {
    /// Its items: those of a list, of text separated by commas, or itself alone.
    pub fn items(&self) -> Vec<Given> {
        match self {
            Given::List(items) => items.clone(),
            Given::Text(text) => text.split(',').map(|item| item.trim().into()).collect(),
            one => vec![one.clone()],
        }
    }

    /// As it would be written on a command line, at most 40 characters of it: for messages.
    pub fn shown(&self) -> String {
        let text = match self {
            Given::Nothing => "nothing".into(),
            Given::Flag(flag) => flag.to_string(),
            Given::Whole(number) => number.to_string(),
            Given::Real(number) => number.to_string(),
            Given::Text(text) => text.clone(),
            Given::List(items) => items.iter().map(Given::shown).collect::<Vec<_>>().join(","),
        };
        text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

impl From<&str> for Given {
    fn from(text: &str) -> Self {
        Given::Text(text.to_owned())
    }
}

impl From<bool> for Given {
    fn from(flag: bool) -> Self {
        Given::Flag(flag)
    }
}

impl From<f64> for Given {
    fn from(number: f64) -> Self {
        Given::Real(number)
    }
}

macro_rules! from_whole {
    ($($whole:ty),*) => {
        $(impl From<$whole> for Given {
            fn from(number: $whole) -> Self {
                Given::Whole(number.into())
            }
        })*
    };
}
from_whole!(i32, i64, u32, u64);

impl From<&Given> for Json {
    fn from(given: &Given) -> Self {
        match given {
            Given::Nothing => Json::Null,
            Given::Flag(flag) => (*flag).into(),
            Given::Whole(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) => number.into(),
                _ => number.to_string().into(),
            },
            Given::Real(number) => (*number).into(),
            Given::Text(text) => text.as_str().into(),
            Given::List(items) => Json::Array(items.iter().map(Json::from).collect()),
        }
    }
}
