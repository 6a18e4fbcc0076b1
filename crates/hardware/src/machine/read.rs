//! The strict parser: its errors name the file, the line, the key and the nearest valid key.

use std::ops::Range;

use nearfar_trace::{Error, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Machine;

impl Machine {
    /// Parse the text of a machine file. `name` is its path or name, for messages; the file stem
    /// becomes the machine's name.
    ///
    /// # Errors
    /// Unknown, missing or repeated keys, a number without unit or source, values that are out of
    /// range or contradict each other. The error names the file, the line and the key.
    pub fn parse(name: &str, text: &str) -> Result<Machine> {
        let mut machine = read(text).map_err(|fault| {
            let mut place = name.to_owned();
            if let Some(at) = fault.at {
                let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
                place += &format!(" line {}", before.iter().filter(|b| **b == b'\n').count() + 1);
            }
            if !fault.path.is_empty() {
                place += &format!(" key {}", fault.path);
            }
            Error::input(place, fault.what, "")
        })?;
        let stem = name.rsplit('/').next().unwrap_or(name);
        machine.name = stem.strip_suffix(".toml").unwrap_or(stem).to_owned();
        Ok(machine)
    }
}

/// An error in a machine file.
pub(super) struct Fault {
    /// Byte offset of the error, if known.
    at: Option<usize>,
    /// Dotted key of the error; empty if unknown.
    pub path: String,
    /// Description, one line.
    pub what: String,
}

impl Fault {
    fn new(span: Option<Range<usize>>, path: String, what: &str) -> Self {
        Self { at: span.map(|span| span.start), path, what: what.replace('\n', " ") }
    }
}

/// Parse a machine, but leave its name empty.
pub(super) fn read(text: &str) -> std::result::Result<Machine, Fault> {
    let table =
        DeTable::parse(text).map_err(|e| Fault::new(e.span(), String::new(), e.message()))?;
    let parsed: std::result::Result<Machine, _> = toml::from_str(text);
    let machine = parsed.map_err(|e| {
        let path = e.span().map_or(String::new(), |span| path_at(table.get_ref(), &span));
        Fault::new(e.span(), path, &explain(e.message()))
    })?;
    machine.check().map_err(|(path, what)| {
        let span = span_of(table.get_ref(), &path);
        Fault::new(span, path, &what)
    })?;
    Ok(machine)
}

/// serde's message in the terms of machine files. For an unknown key or variant, it suggests the nearest.
fn explain(message: &str) -> String {
    for (start, noun) in [("unknown field `", "key"), ("unknown variant `", "kind")] {
        let Some((word, rest)) =
            message.strip_prefix(start).and_then(|rest| rest.rsplit_once("`, expected "))
        else {
            continue;
        };
        let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        return unknown(noun, word, &known);
    }
    if message.starts_with("wanted exactly 1 element") {
        return "takes exactly one kind below it, such as [storage.NAME.hdd]".to_owned();
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("the key {field} is missing; add it");
    }
    message.to_owned()
}

/// A message that `word` is not one of `known`, which suggests the nearest.
pub(super) fn unknown(noun: &str, word: &str, known: &[&str]) -> String {
    let word = clip(word);
    match nearest(&word, known) {
        Some(best) if known.len() > 1 => format!(
            "unknown {noun} `{word}`; did you mean `{best}`? ({noun}s here: {})",
            known.join(", ")
        ),
        Some(best) => format!("unknown {noun} `{word}`; did you mean `{best}`?"),
        None => format!("unknown {noun} `{word}`; none is allowed here"),
    }
}

/// The first 40 characters of an untrusted word, on one line.
pub fn clip(word: &str) -> String {
    word.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The word of `known` with the smallest edit distance; the first of equals.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(64).collect();
    known.iter().copied().min_by_key(|candidate| {
        let mut row: Vec<usize> = (0..=word.len()).collect();
        for (i, c) in candidate.chars().enumerate() {
            let mut diagonal = row[0];
            row[0] = i + 1;
            for (j, w) in word.iter().enumerate() {
                let change = diagonal + usize::from(c != *w);
                diagonal = row[j + 1];
                row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
            }
        }
        row[word.len()]
    })
}

/// Dotted path of the smallest entry whose key or value contains the start of `span`.
fn path_at(table: &DeTable<'_>, span: &Range<usize>) -> String {
    fn visit(
        table: &DeTable<'_>,
        at: usize,
        path: &mut Vec<String>,
        best: &mut (usize, Vec<String>),
    ) {
        for (key, value) in table {
            path.push(clip(key.get_ref()));
            for covered in [key.span(), value.span()] {
                // Of equal sizes, the deeper one wins: both tables of `[a.b]` have the same span.
                if covered.contains(&at) && covered.len() <= best.0 {
                    *best = (covered.len(), path.clone());
                }
            }
            if let DeValue::Table(inner) = value.get_ref() {
                visit(inner, at, path, best);
            }
            path.pop();
        }
    }
    let mut best = (usize::MAX, Vec::new());
    visit(table, span.start, &mut Vec::new(), &mut best);
    best.1.join(".")
}

/// Position of the value at a dotted path.
fn span_of(table: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
    let mut table = table;
    let mut found: Option<&Spanned<DeValue<'_>>> = None;
    for key in path.split('.') {
        let Some((_, value)) = table.iter().find(|(candidate, _)| candidate.get_ref() == key)
        else {
            break;
        };
        found = Some(value);
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    found.map(Spanned::span)
}
