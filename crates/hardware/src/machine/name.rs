//! The option `--machine`: a built-in machine, or the path of a file.

use nearfar_schema::{Entry, Given, List, Value};

use super::{Machine, builtin};

/// A machine by name or path, for [`Machine::load`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineName(pub String);

/// One or several machines, separated by commas.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineNames(pub List<MachineName>);

impl Value for MachineNames {
    const METAVAR: &'static str = "MACHINES";
    const REGISTRY: &'static str = MachineName::REGISTRY;
    fn python() -> String {
        "MachineLike | Sequence[MachineLike]".into()
    }
    fn choices() -> Vec<Entry> {
        MachineName::choices()
    }
    fn open() -> bool {
        MachineName::open()
    }
    fn read(given: &Given) -> Result<Self, String> {
        List::read(given).map(Self)
    }
    fn plain(&self) -> serde_json::Value {
        self.0.plain()
    }
}

impl Value for MachineName {
    const METAVAR: &'static str = "MACHINE";
    const REGISTRY: &'static str = "machine";
    fn python() -> String {
        "MachineLike".into()
    }
    fn choices() -> Vec<Entry> {
        let described = |(name, text): &(&'static str, &str)| {
            let machine = Machine::parse(name, text).expect("a built-in machine is valid");
            Entry { name, what: machine.description }
        };
        builtin().iter().map(described).collect()
    }
    fn open() -> bool {
        // A path is valid as well.
        true
    }
    fn read(given: &Given) -> Result<Self, String> {
        String::read(given).map(Self)
    }
    fn plain(&self) -> serde_json::Value {
        self.0.as_str().into()
    }
}
