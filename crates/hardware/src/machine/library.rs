//! Finds machines: by path, in a folder, or built in.

use std::path::Path;

use nearfar_trace::{Error, Result, file};

use super::read::{clip, nearest, read};
use super::{Machine, set};

/// Name and text of the machines in `machines/` at build time, sorted by name.
pub fn builtin() -> &'static [(&'static str, &'static str)] {
    const LIST: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/machines.rs"));
    LIST
}

/// The remedy if a study cannot use `machine`: use a built-in machine for which `serve` is true, or
/// make the `change` in the machine's file (for a built-in machine, in a copy).
pub fn remedy(machine: &str, change: &str, serve: impl Fn(&Machine) -> bool) -> String {
    let serving: Vec<&str> = builtin()
        .iter()
        .filter(|(_, text)| read(text).is_ok_and(|machine| serve(&machine)))
        .map(|(name, _)| *name)
        .collect();
    let other = match serving.as_slice() {
        [] => "use another --machine (`nearfar machine list`)".to_owned(),
        [only] => format!("use --machine {only}"),
        names => format!("use a --machine such as {}", names.join(", ")),
    };
    if !builtin().iter().any(|(name, _)| *name == machine) {
        return format!("{other}; or {change} in its file");
    }
    let copy = format!("my-{machine}.toml");
    format!(
        "{other}; or `nearfar machine show {machine} --format toml > {copy}`, {change} there, and use \
         --machine {copy}"
    )
}

const MAX_BYTES: u64 = 1 << 20;

/// A machine and its source.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFile {
    /// The machine, with the overrides of `set`.
    pub machine: Machine,
    /// The name or path that it was loaded by.
    pub place: String,
    /// Text of its file, with the overrides of `set` and all comments.
    pub text: String,
    /// Overrides: key and value, as given.
    pub set: Vec<(String, String)>,
}

impl MachineFile {
    /// Load a machine by path (anything with a `/` or ending in `.toml`) or by name: first
    /// `search/NAME.toml`, then the built-in machines.
    ///
    /// # Errors
    /// There is no such file or name, or [`Machine::parse`] fails.
    pub fn load(path_or_name: &str, search: &Path) -> Result<Self> {
        let (place, text) = find(path_or_name, search)?;
        let machine = Machine::parse(&place, &text)?;
        Ok(Self { machine, place: path_or_name.to_owned(), text, set: Vec::new() })
    }

    /// Parse the text of a machine file.
    ///
    /// # Errors
    /// As [`Machine::parse`].
    pub fn parse(place: &str, text: &str) -> Result<Self> {
        let machine = Machine::parse(place, text)?;
        Ok(Self { machine, place: place.to_owned(), text: text.to_owned(), set: Vec::new() })
    }

    /// Parse a machine from JSON, as in results.
    ///
    /// # Errors
    /// It is not a valid machine.
    pub fn from_json(name: &str, json: &str) -> Result<Self> {
        let wrong = |what: String| Error::input(format!("machine {name}"), what, "");
        // Convert to TOML: a second deserializer of machines would take long to compile.
        let json: serde_json::Value =
            serde_json::from_str(json).map_err(|e| wrong(e.to_string()))?;
        let text = toml::to_string(&json).map_err(|e| wrong(e.to_string()))?;
        Self::parse(name, &text)
    }

    /// The machine with overridden values; see [`set`].
    ///
    /// # Errors
    /// There is no such key, or [`Machine::parse`] rejects its value.
    pub fn with(&self, values: &[(String, String)]) -> Result<Self> {
        let (text, paths) = set::apply(&self.machine.name, &self.text, values)?;
        let mut machine = read(&text).map_err(|fault| {
            let flags = values.iter().zip(&paths).filter(|(_, path)| fault.path.starts_with(*path));
            let mut flags: Vec<_> = flags.map(|(value, _)| set::flag(value)).collect();
            if flags.is_empty() {
                flags = values.iter().map(set::flag).collect();
            }
            let place = format!("machine {} {}", self.machine.name, flags.join(" "));
            let key =
                if fault.path.is_empty() { String::new() } else { format!(" key {}", fault.path) };
            Error::input(place + &key, fault.what, "")
        })?;
        machine.name.clone_from(&self.machine.name);
        let set = self.set.iter().chain(values).cloned().collect();
        Ok(Self { machine, place: self.place.clone(), text, set })
    }

    /// The machine with the storage `name` of another machine, replacing its own storage of that name.
    ///
    /// # Errors
    /// The other machine has no such storage.
    pub fn with_storage_of(&self, other: &Self, name: &str) -> Result<Self> {
        let text = set::copy_storage(&other.machine.name, &other.text, &self.text, name)?;
        let mut machine = Machine::parse(&self.machine.name, &text)?;
        machine.name.clone_from(&self.machine.name);
        Ok(Self { machine, place: self.place.clone(), text, set: self.set.clone() })
    }
}

impl Machine {
    /// The machine of [`MachineFile::load`].
    ///
    /// # Errors
    /// As [`MachineFile::load`].
    pub fn load(path_or_name: &str, search: &Path) -> Result<Machine> {
        Ok(MachineFile::load(path_or_name, search)?.machine)
    }
}

/// The place (for messages) and the text of a machine file.
fn find(path_or_name: &str, search: &Path) -> Result<(String, String)> {
    if path_or_name.contains('/') || path_or_name.ends_with(".toml") {
        return from_file(Path::new(path_or_name));
    }
    let file = search.join(format!("{path_or_name}.toml"));
    if !path_or_name.is_empty() && file.is_file() {
        return from_file(&file);
    }
    match builtin().iter().find(|(name, _)| *name == path_or_name) {
        Some((name, text)) => Ok(((*name).to_owned(), (*text).to_owned())),
        None => {
            let names: Vec<&str> = builtin().iter().map(|(name, _)| *name).collect();
            let meant = nearest(path_or_name, &names)
                .map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            Err(Error::input(
                format!("machine {}", clip(path_or_name)),
                format!("no such machine{meant}"),
                format!("give a path to a .toml file or one of: {}", names.join(", ")),
            ))
        }
    }
}

fn from_file(path: &Path) -> Result<(String, String)> {
    let place = path.display().to_string();
    let bytes = file::read(path, "a machine file", MAX_BYTES)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((place, text)),
        Err(e) => Err(Error::input(
            place,
            format!("byte {} is not UTF-8", e.utf8_error().valid_up_to()),
            "a machine file is TOML in UTF-8",
        )),
    }
}
