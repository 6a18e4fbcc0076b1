//! Where machines are found: a path, a folder, or the ones built in.

use std::path::Path;

use nearfar_trace::{Error, Result};

use super::Machine;
use super::read::nearest;

/// Name and text of every machine of `machines/` when this was built, sorted by name.
pub fn builtin() -> &'static [(&'static str, &'static str)] {
    const LIST: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/machines.rs"));
    LIST
}

/// A machine file is a page of text; anything much larger is a mistake.
const LARGEST: u64 = 1 << 20;

impl Machine {
    /// Load a machine by path (anything with a `/` or ending in `.toml`) or by name: first
    /// `search/NAME.toml`, then the built-in machines.
    ///
    /// # Errors
    /// Input errors: no such file or name (the nearest name is given), or what [`Machine::parse`]
    /// refuses.
    pub fn load(path_or_name: &str, search: &Path) -> Result<Machine> {
        if path_or_name.contains('/') || path_or_name.ends_with(".toml") {
            return from_file(Path::new(path_or_name));
        }
        let file = search.join(format!("{path_or_name}.toml"));
        if !path_or_name.is_empty() && file.is_file() {
            return from_file(&file);
        }
        match builtin().iter().find(|(name, _)| *name == path_or_name) {
            Some((name, text)) => Machine::parse(name, text),
            None => {
                let names: Vec<&str> = builtin().iter().map(|(name, _)| *name).collect();
                let meant = nearest(path_or_name, &names)
                    .map_or(String::new(), |name| format!("; did you mean `{name}`?"));
                Err(Error::input(
                    format!("machine {}", super::read::clip(path_or_name)),
                    format!("no such machine{meant}"),
                    format!("give a path to a .toml file or one of: {}", names.join(", ")),
                ))
            }
        }
    }
}

fn from_file(path: &Path) -> Result<Machine> {
    let place = path.display().to_string();
    let size = path.metadata().map_err(|e| Error::io(path, "cannot read", &e))?;
    if size.is_dir() {
        return Err(Error::input(place, "is a folder", "give a machine file, NAME.toml"));
    }
    if size.len() > LARGEST {
        return Err(Error::input(place, "over 1 MiB", "a machine file is a page of TOML"));
    }
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, "cannot read", &e))?;
    match String::from_utf8(bytes) {
        Ok(text) => Machine::parse(&place, &text),
        Err(e) => Err(Error::input(
            place,
            format!("byte {} is not UTF-8", e.utf8_error().valid_up_to()),
            "a machine file is TOML in UTF-8",
        )),
    }
}
