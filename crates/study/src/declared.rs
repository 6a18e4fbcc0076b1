//! Every declaration of options, rows and registries, for those who write them as source.

use nearfar_schema::{Options, Spec, column};
use serde_json::{Map, Value as Json, json};

use crate::paging;

/// What a command takes and answers.
struct Command {
    name: &'static str,
    options: fn() -> Vec<Spec>,
    rows: &'static [Table],
}

/// A table by its name, and its declaration as JSON.
type Table = (&'static str, fn() -> Json);

/// One line for each command of the engine.
const COMMANDS: &[Command] = &[Command {
    name: "paging",
    options: paging::Asked::specs,
    rows: &[("rows", column::to_json::<paging::Row>)],
}];

/// Everything as JSON: commands by name, each with its options and tables; the registries that
/// options choose from, by name.
pub fn to_json() -> Json {
    let mut commands = Map::new();
    let mut registries = Map::new();
    for command in COMMANDS {
        let specs = (command.options)();
        for spec in specs.iter().filter(|spec| !spec.registry.is_empty()) {
            let names = spec.choices.iter().map(|entry| json!([entry.name, entry.what]));
            registries.insert(spec.registry.to_owned(), names.collect());
        }
        let options: Json = specs.iter().map(Spec::to_json).collect();
        let tables = command.rows.iter().map(|(name, rows)| ((*name).to_owned(), rows()));
        let tables = Json::Object(tables.collect());
        let declared = json!({ "options": options, "tables": tables });
        commands.insert(command.name.to_owned(), declared);
    }
    json!({ "commands": commands, "registries": registries })
}
