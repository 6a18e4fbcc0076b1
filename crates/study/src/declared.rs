//! Every declaration of options, rows and registries, for those who write them as source.

use nearfar_schema::{Entry, Options, Registry, Spec, column};
use serde_json::{Map, Value as Json, json};

use crate::{numa, paging, ssd, tiering};

/// What a command takes and answers.
struct Command {
    name: &'static str,
    options: fn() -> Vec<Spec>,
    rows: &'static [Table],
}

/// A table by its name, and its declaration as JSON.
type Table = (&'static str, fn() -> Json);

/// One line for each command of the engine.
const COMMANDS: &[Command] = &[
    Command {
        name: "paging",
        options: paging::Asked::specs,
        rows: &[("rows", column::to_json::<paging::Row>)],
    },
    Command {
        name: "ssd",
        options: ssd::Asked::specs,
        rows: &[("rows", column::to_json::<ssd::Cell>)],
    },
    Command {
        name: "numa alloc",
        options: numa::AllocAsked::specs,
        rows: &[("rows", column::to_json::<numa::AllocRow>)],
    },
    Command {
        name: "numa run",
        options: numa::RunAsked::specs,
        rows: &[("rows", column::to_json::<numa::RunRow>)],
    },
    Command {
        name: "numa pair",
        options: numa::PairAsked::specs,
        rows: &[("rows", column::to_json::<numa::PairRow>)],
    },
    Command { name: "numa plan", options: numa::PlanAsked::specs, rows: &[] },
    Command {
        name: "tiering",
        options: tiering::options::Asked::specs,
        rows: &[
            ("rows", column::to_json::<tiering::Row>),
            ("series", column::to_json::<tiering::Point>),
        ],
    },
];

/// A registry by its name, with its entries as JSON.
fn registry<R: Registry>() -> (&'static str, Json) {
    (R::NAME, entries(&R::entries()))
}

/// Registries that arguments choose from, and no option.
const REGISTRIES: &[fn() -> (&'static str, Json)] = &[registry::<tiering::workload::Workloads>];

fn entries(entries: &[Entry]) -> Json {
    entries.iter().map(|entry| json!([entry.name, entry.what])).collect()
}

/// Everything as JSON: commands by name, each with its options and tables; the registries that
/// options choose from, by name.
pub fn to_json() -> Json {
    let mut commands = Map::new();
    let mut registries = Map::new();
    for command in COMMANDS {
        let specs = (command.options)();
        for spec in specs.iter().filter(|spec| !spec.registry.is_empty()) {
            registries.insert(spec.registry.to_owned(), entries(&spec.choices));
        }
        let options: Json = specs.iter().map(Spec::to_json).collect();
        let tables = command.rows.iter().map(|(name, rows)| ((*name).to_owned(), rows()));
        let tables = Json::Object(tables.collect());
        let declared = json!({ "options": options, "tables": tables });
        commands.insert(command.name.to_owned(), declared);
    }
    for registry in REGISTRIES {
        let (name, entries) = registry();
        registries.insert(name.to_owned(), entries);
    }
    json!({ "commands": commands, "registries": registries })
}
