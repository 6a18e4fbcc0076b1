//! Declarations of commands: their options and tables.

use serde_json::{Map, Value as Json, json};

use crate::{Spec, choice};

pub struct Command {
    /// Its name, as typed after `nearfar`.
    pub name: &'static str,
    pub options: fn() -> Vec<Spec>,
    /// Tables of its result.
    pub tables: &'static [Table],
}

/// Name of a table, and [`column::to_json`](crate::column::to_json) of its rows' type.
pub type Table = (&'static str, fn() -> Json);

/// All declarations as JSON: commands by name, each with its options and tables, and registries (lists
/// of choices that options share) by name.
pub fn to_json<'a>(all: impl IntoIterator<Item = &'a Command>) -> Json {
    let mut commands = Map::new();
    let mut registries = Map::new();
    for command in all {
        let specs = (command.options)();
        for spec in specs.iter().filter(|spec| !spec.registry.is_empty()) {
            registries.insert(spec.registry.to_owned(), choice::to_json(&spec.choices));
        }
        let options: Json = specs.iter().map(Spec::to_json).collect();
        let tables = command.tables.iter().map(|(name, rows)| ((*name).to_owned(), rows()));
        let tables = Json::Object(tables.collect());
        let declared = json!({ "options": options, "tables": tables });
        commands.insert(command.name.to_owned(), declared);
    }
    json!({ "commands": commands, "registries": registries })
}
