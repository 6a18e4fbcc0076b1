//! Values as given by the user: text on a command line or in a file, or plain values from Python.

use std::fmt;

use serde_json::Value as Json;

#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// No value, as Python's `None`.
    Nothing,
    Flag(bool),
    Whole(i128),
    Real(f64),
    /// Text, in the grammar of the option.
    Text(String),
    List(Vec<Given>),
}

impl Given {
    /// Its items: those of a list or of comma-separated text, or the value itself.
    pub fn items(&self) -> Vec<Given> {
        match self {
            Given::List(items) => items.clone(),
            Given::Text(text) => text.split(',').map(|item| item.trim().into()).collect(),
            one => vec![one.clone()],
        }
    }

    /// Its first 40 characters, for messages.
    pub fn shown(&self) -> String {
        self.to_string().chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

/// The text as on a command line.
impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Given::Nothing => f.write_str("nothing"),
            Given::Flag(flag) => flag.fmt(f),
            Given::Whole(number) => number.fmt(f),
            Given::Real(number) => number.fmt(f),
            Given::Text(text) => f.write_str(text),
            Given::List(items) => {
                let items: Vec<_> = items.iter().map(Given::to_string).collect();
                f.write_str(&items.join(","))
            }
        }
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

/// Read from the record of a run.
impl From<&Json> for Given {
    fn from(plain: &Json) -> Self {
        match plain {
            Json::Null => Given::Nothing,
            Json::Bool(flag) => (*flag).into(),
            Json::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => number.into(),
                (_, Some(number)) => number.into(),
                _ => Given::Real(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => text.as_str().into(),
            Json::Array(items) => Given::List(items.iter().map(Given::from).collect()),
            Json::Object(_) => plain.to_string().as_str().into(),
        }
    }
}
