//! Checks that `trace.json` does not contradict itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Component, Path};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::Info;
use crate::error::{Error, Result};
use crate::footprint::PAGE_SHIFT;
use crate::record::{Kind, KindSet};

/// Maximum 4 KiB pages that one record can touch: 65,535 bytes from the last byte of a page on.
const PAGES_OF_A_RECORD: u64 = 17;

/// Deserialize a map, rejecting duplicate keys. By default, the last of equal keys wins.
pub(crate) fn unique<'de, D, K>(deserializer: D) -> std::result::Result<BTreeMap<K, u64>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord,
{
    struct Unique<K>(PhantomData<K>);

    impl<'de, K: Deserialize<'de> + Ord> Visitor<'de> for Unique<K> {
        type Value = BTreeMap<K, u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("counts by name")
        }

        fn visit_map<A: MapAccess<'de>>(
            self,
            mut entries: A,
        ) -> std::result::Result<Self::Value, A::Error> {
            let mut counts = BTreeMap::new();
            while let Some((key, count)) = entries.next_entry()? {
                if counts.insert(key, count).is_some() {
                    return Err(A::Error::custom("duplicate name"));
                }
            }
            Ok(counts)
        }
    }

    deserializer.deserialize_map(Unique(PhantomData))
}

impl Info {
    /// Check for contradictions, without reading the parts. `place` names the file.
    ///
    /// # Errors
    /// The first contradiction.
    pub(super) fn check(&self, place: &str) -> Result<()> {
        self.contradiction().map_or(Ok(()), |what| {
            Err(Error::input(place, what, "capture or import the trace again"))
        })
    }

    fn contradiction(&self) -> Option<String> {
        if self.complete && self.incomplete_reason.is_some() {
            return Some("`incomplete_reason` is set although `complete` is true".to_owned());
        }
        let threads = || self.threads.iter();
        let parts = self.parts.iter().map(|part| part.records);
        adds_up("parts", parts, "records", self.records)
            .or_else(|| {
                let counts = self.records_by_kind.values().copied();
                adds_up("records_by_kind", counts, "records", self.records)
            })
            .or_else(|| {
                let counts = threads().map(|thread| thread.records);
                adds_up("threads", counts, "records", self.records)
            })
            .or_else(|| {
                let counts = threads().map(|thread| thread.instructions);
                adds_up("threads", counts, "instructions", self.instructions)
            })
            .or_else(|| {
                duplicate(threads().map(|thread| thread.index))
                    .map(|index| format!("`threads` has index {index} twice"))
            })
            .or_else(|| self.source.sample.as_ref()?.contradiction(&self.records_by_kind))
            .or_else(|| self.clock.as_ref()?.contradiction(self.records))
            .or_else(|| self.parts())
            .or_else(|| self.pages())
    }

    fn parts(&self) -> Option<String> {
        // A part is a file in this folder, never a path out of it.
        let is_name = |file: &str| {
            let mut components = Path::new(file).components();
            let first = components.next();
            let alone = components.next().is_none() && !file.contains(['/', '\0']);
            alone && matches!(first, Some(Component::Normal(_)))
        };
        let mut files = self.parts.iter().map(|part| part.file.as_str());
        let other = files
            .clone()
            .find(|file| !is_name(file))
            .map(|file| format!("`parts` has {file:?}, which is not a file name"));
        other.or_else(|| duplicate(&mut files).map(|file| format!("`parts` has {file:?} twice")))
    }

    fn pages(&self) -> Option<String> {
        let mut total = 0u64;
        let mut by_kind = [0u64; Kind::ALL.len()];
        for (label, &pages) in &self.pages_by_kinds {
            let kinds = label.split('+').map(Kind::from_name).collect::<Option<Vec<_>>>();
            let set = kinds.into_iter().flatten().fold(0, |set, kind| set | kind.bit());
            // A different order, or a duplicate kind, would be a second label for the same set.
            if set == 0 || KindSet(set).label() != *label {
                return Some(format!(
                    "`pages_by_kinds` has {label:?}, which is not a set of kinds"
                ));
            }
            for kind in Kind::ALL.into_iter().filter(|kind| KindSet(set).contains(*kind)) {
                let sum = &mut by_kind[kind as usize];
                *sum = sum.saturating_add(pages);
            }
            total = total.saturating_add(pages);
        }
        if total > 1 << (u64::BITS - PAGE_SHIFT) {
            return Some("`pages_by_kinds` has more pages than an address space".to_owned());
        }
        Kind::ALL.into_iter().find_map(|kind| {
            let pages = by_kind[kind as usize];
            let records = self.records_by_kind.get(&kind).copied().unwrap_or(0);
            let too_few = records > 0 && pages == 0;
            let too_many = pages > records.saturating_mul(PAGES_OF_A_RECORD);
            (too_few || too_many).then(|| {
                let kind = kind.name();
                format!(
                    "`pages_by_kinds` has {pages} pages of `{kind}`, which {records} records \
                     in `records_by_kind` cannot have touched"
                )
            })
        })
    }
}

/// A message if the counts in `key` do not add up to the `total` of `name`.
fn adds_up(
    key: &str,
    mut counts: impl Iterator<Item = u64>,
    name: &str,
    total: u64,
) -> Option<String> {
    match counts.try_fold(0u64, u64::checked_add) {
        Some(sum) if sum == total => None,
        Some(sum) => Some(format!("`{key}` has {sum} {name} in total, but `{name}` is {total}")),
        None => Some(format!("`{key}` has more than 2^64 {name} in total")),
    }
}

/// The first duplicate.
fn duplicate<T: Ord + Copy>(items: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    items.into_iter().find(|&item| !seen.insert(item))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn good() -> Value {
        let checksum = format!("xxh3-128:{}", "0".repeat(32));
        json!({
            "schema": 2,
            "tool": "0.1.0",
            "source": {"kind": "import", "detail": "", "command": [], "arch": ""},
            "complete": true,
            "records": 60,
            "instructions": 9,
            "records_by_kind": {"load": 30, "store": 20, "kernel-load": 10},
            "pages_by_kinds": {"load": 3, "load+store": 2, "store+kernel-load": 4},
            "threads": [
                {"index": 0, "process": 1, "records": 60, "instructions": 7},
                {"index": 3, "process": 1, "records": 0, "instructions": 2},
            ],
            "parts": [
                {"file": "part-00000.parquet", "records": 40, "bytes": 1, "checksum": checksum},
                {"file": "part-00001.parquet", "records": 20, "bytes": 1},
            ],
            "regions": {"events": 0, "bytes": 1, "checksum": checksum},
            "clock": {"milliseconds": [3, 8], "records": [0, 60]},
        })
    }

    /// Load `text` as a `trace.json`. Errors come without the file name.
    fn load(text: &str) -> std::result::Result<Info, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("trace.json"), text).unwrap();
        Info::load(folder.path()).map_err(|error| {
            let text = error.to_string();
            assert!(text.lines().count() == 1 && error.exit_code() == 2, "{text:?}");
            let (_, what) = text.split_once("trace.json: ").expect("names the file");
            what.to_owned()
        })
    }

    #[test]
    fn a_consistent_file_is_accepted() {
        let info = load(&good().to_string()).unwrap();
        assert!(info.has_lifetimes() && info.regions.is_some());
        assert_eq!(serde_json::to_value(&info).unwrap()["parts"], good()["parts"]);
        let mut old = good();
        old["schema"] = json!(1);
        old.as_object_mut().unwrap().remove("regions");
        assert!(!load(&old.to_string()).unwrap().has_lifetimes());
        // A set of kinds without pages, a kind without records, a part without records.
        let mut unusual = good();
        unusual["pages_by_kinds"]["fetch"] = json!(0);
        unusual["records_by_kind"]["fetch"] = json!(0);
        unusual["parts"][1]["records"] = json!(0);
        unusual["parts"][0]["records"] = json!(60);
        load(&unusual.to_string()).unwrap();
    }

    #[test]
    fn every_contradiction_is_reported() {
        let huge = u64::MAX;
        let cases: &[(&str, Value, &str)] = &[
            ("/schema", json!(0), "trace schema 0 is not 1 to 2"),
            ("/schema", json!(3), "trace schema 3 is not 1 to 2"),
            ("/schema", json!(-1), "damaged: invalid value"),
            ("/schema", json!(1u64 << 40), "damaged: invalid value"),
            ("/records", json!(61), "`parts` has 60 records in total, but `records` is 61"),
            ("/records", json!(-60), "damaged: invalid value"),
            ("/records", json!(6e1), "damaged: invalid type"),
            ("/records", json!(1e300), "damaged: invalid type"),
            ("/records", Value::Null, "damaged: invalid type"),
            (
                "/instructions",
                json!(8),
                "`threads` has 9 instructions in total, but `instructions` is 8",
            ),
            ("/instructions", json!(huge), "`threads` has 9 instructions in total"),
            ("/incomplete_reason", json!("full"), "`incomplete_reason` is set although"),
            ("/records_by_kind/load", json!(31), "`records_by_kind` has 61 records in total"),
            ("/records_by_kind/load", json!(huge), "`records_by_kind` has more than 2^64 records"),
            ("/records_by_kind/jump", json!(0), "damaged: unknown variant"),
            ("/pages_by_kinds/jump", json!(1), "`pages_by_kinds` has \"jump\", which is not a set"),
            ("/pages_by_kinds/", json!(1), "`pages_by_kinds` has \"\", which is not a set"),
            ("/pages_by_kinds/store+load", json!(1), "`pages_by_kinds` has \"store+load\""),
            ("/pages_by_kinds/load+load", json!(1), "`pages_by_kinds` has \"load+load\""),
            ("/pages_by_kinds/load+", json!(1), "`pages_by_kinds` has \"load+\""),
            ("/pages_by_kinds/fetch", json!(1), "1 pages of `fetch`, which 0 records"),
            ("/pages_by_kinds/load", json!(509), "511 pages of `load`, which 30 records"),
            ("/pages_by_kinds/load", json!(huge), "more pages than an address space"),
            ("/pages_by_kinds", json!({}), "0 pages of `load`, which 30 records"),
            ("/pages_by_kinds/load", json!(-3), "damaged: invalid value"),
            ("/threads/0/records", json!(59), "`threads` has 59 records in total"),
            ("/threads/1/records", json!(huge), "`threads` has more than 2^64 records"),
            ("/threads/1/instructions", json!(huge), "`threads` has more than 2^64 instructions"),
            ("/threads/1/index", json!(0), "`threads` has index 0 twice"),
            ("/threads/1/index", json!(1u64 << 32), "damaged: invalid value"),
            ("/threads", json!([]), "`threads` has 0 records in total"),
            ("/parts/1/records", json!(21), "`parts` has 61 records in total"),
            ("/parts/1/records", json!(huge), "`parts` has more than 2^64 records"),
            ("/parts/1/file", json!("part-00000.parquet"), "\"part-00000.parquet\" twice"),
            ("/parts/1/file", json!("../a.parquet"), "\"../a.parquet\", which is not a file name"),
            ("/parts/1/file", json!("./part-00000.parquet"), "which is not a file name"),
            ("/parts/1/file", json!("/etc/passwd"), "which is not a file name"),
            ("/parts/1/file", json!(".."), "which is not a file name"),
            ("/parts/1/file", json!(""), "which is not a file name"),
            ("/parts/1/file", json!("a\0b"), "which is not a file name"),
            ("/parts/0/checksum", json!("0f"), "damaged: invalid value: string \"0f\""),
            ("/parts/0/bytes", json!(-1), "damaged: invalid value"),
            ("/regions/checksum", Value::Null, "damaged: invalid type"),
            ("/regions/colour", json!(1), "damaged: unknown field"),
            ("/clock/records", json!([60]), "`clock` is not two ascending lists"),
            ("/clock/records", json!([9, 8]), "`clock` is not two ascending lists"),
            ("/clock/records/1", json!(61), "`clock` has a sample with 61 records"),
            ("/clock/milliseconds/1", json!(2), "`clock` is not two ascending lists"),
            ("/clock/milliseconds/1", json!(0.5), "damaged: invalid type"),
        ];
        for (key, value, expected) in cases {
            let mut text = good();
            let (of, name) = key.rsplit_once('/').unwrap();
            match text.pointer_mut(of).unwrap() {
                Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
                item => item[name] = value.clone(),
            }
            let what = load(&text.to_string()).expect_err(key);
            assert!(what.contains(expected), "{key} {value}: {what}");
        }
    }

    #[test]
    fn a_duplicate_name_is_reported() {
        for (from, to) in [
            ("\"load\":3", "\"load\":9,\"load\":3"),
            ("\"load\":30", "\"load\":1,\"load\":30"),
            ("\"schema\":2", "\"schema\":1,\"schema\":2"),
        ] {
            let text = good().to_string();
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            let what = load(&changed).unwrap_err();
            assert!(what.contains("damaged: "), "{what}");
        }
    }
}
