//! Overrides keys of a machine file, such as `node.slow.read_latency=200ns`.
//!
//! The text of the file is edited and parsed again, so that the same checks apply to the new
//! values. Keys are looked up in the JSON Schema, which includes optional ones. A level of a key
//! may be omitted if no other level fits: `node.slow.read_latency` is
//! `node.slow.local.read_latency` unless the node also has a `remote` section.

use nearfar_trace::{Error, Result};
use serde_json::Value as Json;
use toml_edit::{DocumentMut, InlineTable, Item, Table, Value};

use super::Machine;
use super::read::{clip, unknown};

const SOURCE: &str = "given with --set";

/// Kinds of storage that hold files.
const DISKS: [&str; 3] = ["hdd", "nvme", "nvm"];

/// `--set KEY=VALUE`, for messages.
pub(super) fn flag((key, value): &(String, String)) -> String {
    format!("--set {}={}", clip(key), clip(value))
}

/// Write `values` into `text`. Returns the new text and the full key of each value.
pub(super) fn apply(
    machine: &str,
    text: &str,
    values: &[(String, String)],
) -> Result<(String, Vec<String>)> {
    let mut document = parsed(machine, text)?;
    let schema = Json::from(schemars::schema_for!(Machine));
    let mut paths = Vec::new();
    for one in values {
        let (path, rule) = resolve(&schema, document.as_item(), &one.0)
            .map_err(|what| Error::input(format!("machine {machine} {}", flag(one)), what, ""))?;
        write(&mut document, &path, rule, &one.1);
        paths.push(path.join("."));
    }
    Ok((document.to_string(), paths))
}

/// Copy the storage `name` from the text `from` of `machine` to the text `into`. If the storage is
/// zram, its `files` (the device that holds files) becomes a copy of the first disk of `into`, if any.
pub(super) fn copy_storage(machine: &str, from: &str, into: &str, name: &str) -> Result<String> {
    let (from, mut into) = (parsed(machine, from)?, parsed(machine, into)?);
    let Some(section) = from.get("storage").and_then(|storages| storages.get(name)) else {
        let what = format!("has no storage {}", clip(name));
        return Err(Error::input(format!("machine {machine}"), what, ""));
    };
    let mut section = section.clone();
    let mut storages = Table::new();
    storages.set_implicit(true);
    let storages = into.entry("storage").or_insert(Item::Table(storages));
    if let Some(table) = storages.as_table_like_mut() {
        let disk = table.iter().find(|(_, one)| DISKS.iter().any(|kind| one.get(kind).is_some()));
        let zram = section.as_table_like_mut().and_then(|kinds| kinds.get_mut("zram"));
        if let (Some(zram), Some((_, disk))) = (zram, disk) {
            zram["files"] = disk.clone();
        }
        table.insert(name, section);
    }
    Ok(into.to_string())
}

fn parsed(machine: &str, text: &str) -> Result<DocumentMut> {
    text.parse().map_err(|e: toml_edit::TomlError| {
        Error::input(format!("machine {machine}"), e.message(), "")
    })
}

/// Full path of a key, including an omitted level, and its schema (`rule`).
fn resolve<'a>(
    schema: &'a Json,
    document: &Item,
    key: &str,
) -> std::result::Result<(Vec<String>, &'a Json), String> {
    let (mut rule, mut item) = (schema, Some(document));
    let mut path: Vec<String> = Vec::new();
    for part in key.split('.') {
        let known = match is_sourced(rule) {
            true => Vec::new(),
            false => children(schema, rule, item),
        };
        // Keys of the sections below, for a `part` that omits a level.
        let inner: Vec<_> = known
            .iter()
            .filter(|(_, rule)| !is_sourced(rule))
            .filter_map(|(name, rule)| Some((name, item?.get(name)?, *rule)))
            .flat_map(|(name, item, rule)| {
                children(schema, rule, Some(item))
                    .into_iter()
                    .map(move |(key, rule)| (name, key, rule))
            })
            .collect();
        let step = known.iter().find(|(name, _)| name == part).map(|(_, rule)| (None, *rule));
        let mut skipped = inner.iter().filter(|(_, key, _)| key == part);
        let step = step.or_else(|| match (skipped.next(), skipped.next()) {
            (Some((level, _, rule)), None) => Some((Some(*level), *rule)),
            _ => None,
        });
        let Some((level, next)) = step else {
            let levels: Vec<_> = inner
                .iter()
                .filter(|(_, key, _)| key == part)
                .map(|(level, ..)| level.as_str())
                .collect();
            if !levels.is_empty() {
                return Err(format!("which {part}? there is one in each of {}", levels.join(", ")));
            }
            let mut names: Vec<&str> = Vec::new();
            let keys =
                known.iter().map(|(name, _)| name).chain(inner.iter().map(|(_, key, _)| key));
            for key in keys {
                if !names.contains(&key.as_str()) {
                    names.push(key);
                }
            }
            return Err(unknown("key", part, &names));
        };
        for name in level.map(String::as_str).into_iter().chain([part]) {
            item = item.and_then(|item| item.get(name));
            path.push(name.to_owned());
        }
        rule = next;
    }
    let below = children(schema, rule, item);
    if !below.is_empty() && !is_sourced(rule) {
        let names: Vec<&str> = below.iter().map(|(name, _)| name.as_str()).collect();
        return Err(format!("is a section; set one of its keys: {}", names.join(", ")));
    }
    Ok((path, rule))
}

/// The valid child keys and their schemas; in a section with user-defined keys, those in the file.
fn children<'a>(schema: &'a Json, rule: &'a Json, item: Option<&Item>) -> Vec<(String, &'a Json)> {
    let listed = |properties: &'a Json| {
        properties
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, rule)| (name.clone(), resolve_reference(schema, rule)))
    };
    let chosen = |name: &str| item.is_some_and(|item| item.get(name).is_some());
    let any_name = &rule["additionalProperties"];
    if any_name.is_object() {
        let names =
            item.and_then(Item::as_table_like).map(|table| table.iter().map(|(name, _)| name));
        return names
            .into_iter()
            .flatten()
            .map(|name| (name.to_owned(), resolve_reference(schema, any_name)))
            .collect();
    }
    // An enum: only the variant in the file.
    let kinds = rule["oneOf"].as_array().into_iter().flatten();
    let kinds = kinds.flat_map(|kind| listed(&kind["properties"])).filter(|(name, _)| chosen(name));
    listed(&rule["properties"]).chain(kinds).collect()
}

/// Resolve a reference or an optional value to its schema.
fn resolve_reference<'a>(schema: &'a Json, rule: &'a Json) -> &'a Json {
    if let Some(name) = rule["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return resolve_reference(schema, &schema["$defs"][name]);
    }
    rule["anyOf"].get(0).map_or(rule, |some| resolve_reference(schema, some))
}

/// Whether a key's value is a [`Sourced`](super::Sourced): its parts `value` and `source` are no keys.
fn is_sourced(rule: &Json) -> bool {
    rule["properties"]["source"].is_object()
}

/// Write `text` at `path`, with a source if `rule` requires one. Preserves comments.
fn write(document: &mut DocumentMut, path: &[String], rule: &Json, text: &str) {
    let Some((last, levels)) = path.split_last() else { return };
    let mut table: &mut dyn toml_edit::TableLike = document.as_table_mut();
    for level in levels {
        let entry = table.entry(level).or_insert_with(|| Item::Table(Table::new()));
        let Some(below) = entry.as_table_like_mut() else { return };
        table = below;
    }
    let value = plain(text);
    if !is_sourced(rule) {
        put(table, last, value);
        return;
    }
    let sourced = table.entry(last).or_insert_with(|| Item::Value(InlineTable::new().into()));
    let Some(sourced) = sourced.as_table_like_mut() else { return };
    put(sourced, "value", value);
    put(sourced, "source", SOURCE.into());
}

/// Replace or add a value. Preserves surrounding blanks and comments.
fn put(table: &mut dyn toml_edit::TableLike, key: &str, mut value: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => {
            table.insert(key, Item::Value(value));
        }
    }
}

/// `text` as a number, a list or otherwise a string.
fn plain(text: &str) -> Value {
    match text.trim().parse::<Value>() {
        Ok(value @ (Value::Integer(_) | Value::Float(_) | Value::Array(_))) => value,
        _ => text.into(),
    }
}
