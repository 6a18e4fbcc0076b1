//! The command line: a trace and `--option value` pairs.

use std::path::PathBuf;
use std::str::FromStr;

use nearfar_trace::{Error, Reader, Result};

/// A parsed command line.
pub struct Arguments {
    trace: PathBuf,
    options: Vec<(String, String)>,
}

impl Arguments {
    /// Read `TRACE [--option value ...]`; an option not in `known` is an error.
    pub fn parse(mut words: impl Iterator<Item = String>, known: &[&str]) -> Result<Self> {
        let Some(trace) = words.next() else {
            return Err(Error::input("nearfar-bench", "no trace given", "give a trace folder"));
        };
        let mut options = Vec::new();
        while let Some(name) = words.next() {
            if !known.contains(&name.as_str()) {
                let fix = format!("choose from {}", known.join(", "));
                return Err(Error::input(name, "no such option", fix));
            }
            let Some(value) = words.next() else {
                return Err(Error::input(name, "has no value", "put one after it"));
            };
            options.push((name, value));
        }
        Ok(Self { trace: trace.into(), options })
    }

    /// Open the trace.
    pub fn open(&self) -> Result<Reader> {
        Reader::open(&self.trace)
    }

    /// The first word, if it is a name instead of a trace.
    pub fn name(&self) -> &str {
        self.trace.to_str().unwrap_or_default()
    }

    /// The value of option `name`, if given.
    pub fn option<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let given = self.options.iter().rev().find(|(key, _)| key == name);
        given.map(|(_, value)| parse(name, value)).transpose()
    }

    /// The comma-separated values of option `name`, if given.
    pub fn list<T: FromStr>(&self, name: &str) -> Result<Option<Vec<T>>> {
        let given: Option<String> = self.option(name)?;
        given.map(|text| text.split(',').map(|word| parse(name, word)).collect()).transpose()
    }

    /// The number of rounds; default 1.
    pub fn rounds(&self) -> Result<usize> {
        Ok(self.option("--rounds")?.unwrap_or(1).max(1))
    }
}

fn parse<T: FromStr>(name: &str, value: &str) -> Result<T> {
    let wrong = |_| Error::input(name, format!("`{value}` makes no sense"), "give a number");
    value.parse().map_err(wrong)
}
