//! Generated workloads as TOML files: `workloads/generated/NAME.toml`.

use std::path::Path;
use std::sync::LazyLock;

use nearfar_hardware::node::LINE;
use nearfar_kernel::tiering::FRAME;
use nearfar_schema::units::{Size, Time};
use nearfar_schema::{Given, Registry, Value};
use nearfar_trace::{Error, Result, file};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::Mix;

/// The built-in workloads, in listing order.
const FILES: [(&str, &str); 10] = [
    ("nomad-small", include_str!("../../../../../workloads/generated/nomad-small.toml")),
    ("nomad-medium", include_str!("../../../../../workloads/generated/nomad-medium.toml")),
    ("nomad-large", include_str!("../../../../../workloads/generated/nomad-large.toml")),
    ("nomad-threads", include_str!("../../../../../workloads/generated/nomad-threads.toml")),
    ("pointer-chase", include_str!("../../../../../workloads/generated/pointer-chase.toml")),
    ("normal-rows", include_str!("../../../../../workloads/generated/normal-rows.toml")),
    ("ranked", include_str!("../../../../../workloads/generated/ranked.toml")),
    ("gups", include_str!("../../../../../workloads/generated/gups.toml")),
    ("antagonist", include_str!("../../../../../workloads/generated/antagonist.toml")),
    ("hot-cold", include_str!("../../../../../workloads/generated/hot-cold.toml")),
];

/// Default number of parts of a `ranked` array.
pub(super) const RANKS: u32 = 10;

const MAX_FILE_BYTES: u64 = 1 << 20;

/// A workload that is generated. Unknown keys are errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// One line, shown in lists of workloads.
    pub description: String,
    /// Source of the workload's figures.
    pub source: String,
    /// Number of threads, which divide the operations, and first touch memory in the order of addresses.
    /// With one, an access takes the idle latency; with more, latency and bandwidth follow the load.
    #[serde(default = "one")]
    pub threads: u32,
    /// Loads or stores that a thread has in flight at once, capped at the processor's fill buffers.
    /// Ignored if `access` is whole pages.
    #[serde(default = "one")]
    pub misses: u32,
    /// Processor time of an operation besides its accesses.
    #[serde(default)]
    pub work: Option<Time>,
    /// Bytes of a *row*, which one operation accesses: one cache line, or whole pages in order.
    pub access: Size,
    /// Operations of all threads in the warm-up and in each round.
    pub operations: u64,
    /// Time that the program sleeps before each round.
    #[serde(default)]
    pub pause: Option<Time>,
    /// Loads and stores of the rounds, in place of `--mix`. The warm-up only stores.
    #[serde(default, deserialize_with = "parse_some")]
    pub mix: Option<Mix>,
    /// Memory of the workload, in the order of addresses.
    pub array: Vec<Array>,
}

/// Memory that is accessed in one way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    pub size: Size,
    /// Phase in which the array is accessed.
    #[serde(default = "rounds", deserialize_with = "parse_value")]
    pub phase: Phases,
    /// Distribution of the accessed rows.
    #[serde(deserialize_with = "parse_value")]
    pub distribution: Distribution,
    /// Share of a phase's operations, relative to other arrays.
    #[serde(default = "whole")]
    pub weight: f64,
    /// `normal` only: position of the most popular row, as a share of the array; .5 if left out.
    #[serde(default)]
    pub mean: Option<f64>,
    /// `normal` only: the standard deviation, as a share of the array; .1 if left out.
    #[serde(default)]
    pub deviation: Option<f64>,
    /// `ranked` only: number of parts of the array; [`RANKS`] if left out.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// Random draws repeat after this many, counted over all threads; 0: never.
    #[serde(default)]
    pub draws: u64,
    /// Share of the array by which the accessed rows shift each round, wrapping around.
    #[serde(default)]
    pub shift: f64,
}

nearfar_schema::choices! {
    /// When an array is accessed.
    pub enum Phases: "phase" {
        /// in the rounds
        Rounds = "rounds",
        /// in the warm-up
        WarmUp = "warm-up",
        /// in the warm-up and in the rounds
        Both = "both",
        /// in the first touch of all memory only
        Never = "never",
    }
}

nearfar_schema::choices! {
    /// Which row of an array an operation accesses.
    pub enum Distribution: "distribution" {
        /// by popularity, set by --pattern and --placement
        Zipf = "zipf",
        /// normally distributed around a mean row
        Normal = "normal",
        /// all rows equally often
        Uniform = "uniform",
        /// rows one after the other; threads begin at different places
        Sequential = "sequential",
        /// all rows, in one random cycle that repeats
        Chase = "chase",
        /// each row of part r (from 0) exactly r times per cycle, in a random order that repeats;
        /// part 0 never
        Ranked = "ranked",
    }
}

fn rounds() -> Phases {
    Phases::Rounds
}
fn one() -> u32 {
    1
}
fn whole() -> f64 {
    1.0
}

/// Parse a [`Value`].
fn parse_value<'de, D: Deserializer<'de>, V: Value>(
    deserializer: D,
) -> std::result::Result<V, D::Error> {
    V::read(&Given::Text(String::deserialize(deserializer)?)).map_err(de::Error::custom)
}

fn parse_some<'de, D: Deserializer<'de>, V: Value>(
    deserializer: D,
) -> std::result::Result<Option<V>, D::Error> {
    parse_value(deserializer).map(Some)
}

/// The built-in workloads by name.
pub static WORKLOADS: LazyLock<Vec<(&'static str, Workload)>> = LazyLock::new(|| {
    let read = |(name, text)| Workload::parse(name, text).map(|workload| (name, workload)).ok();
    FILES.into_iter().filter_map(read).collect()
});

/// The built-in workloads as choices of an option.
pub struct Workloads;

impl Registry for Workloads {
    const NAME: &'static str = "workload";
    const KIND: &'static str = "workload";
    const METAVAR: &'static str = "WORKLOAD";
    fn entries() -> Vec<nearfar_schema::Entry> {
        let entry = |(name, workload): &(&'static str, Workload)| nearfar_schema::Entry {
            name,
            what: workload.description.clone(),
        };
        WORKLOADS.iter().map(entry).collect()
    }
}

impl Workload {
    /// A built-in workload, or one from a file if the name ends in `.toml`.
    ///
    /// # Errors
    /// There is no such workload, or its file is not valid.
    pub fn load(name: &str) -> Result<Self> {
        if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
            return Self::parse(name, &read(name)?);
        }
        let known = WORKLOADS.iter().find(|(known, _)| *known == name);
        known.map(|(_, workload)| workload.clone()).ok_or_else(|| {
            let names: Vec<_> = WORKLOADS.iter().map(|(name, _)| *name).collect();
            Error::input(
                "--workload",
                format!("no workload is called `{}`", name.chars().take(40).collect::<String>()),
                format!("choose one of {}, or give a trace or a .toml file", names.join(", ")),
            )
        })
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |what: String| Error::input(name.to_owned(), what, "");
        let workload: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            let what = error.message().replace('\n', " ");
            // Replace names of Rust types.
            let what = ["u32", "u64"].iter().fold(what, |what, kind| {
                what.replace(&format!("expected {kind}"), "expected a whole number from 0")
            });
            let what = what.replace("expected f64", "expected a number");
            let what = what.replace("map, expected a sequence", "a table, expected [[array]]");
            wrong(format!("line {line}: {what}"))
        })?;
        workload.check().map_err(wrong)?;
        Ok(workload)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let access = self.access.bytes();
        if access != LINE && (access == 0 || !access.is_multiple_of(FRAME) || access > 64 << 20) {
            return Err("`access` must be 64B, or whole pages of 4KiB up to 64MiB".into());
        }
        for (key, value) in [("threads", self.threads), ("misses", self.misses)] {
            if !(1..=1024).contains(&value) {
                return Err(format!("`{key} = {value}` is not within 1 to 1024"));
            }
        }
        if !(1..=1 << 48).contains(&self.operations) {
            return Err(format!("`operations = {}` is not within 1 to 2^48", self.operations));
        }
        if !(1..=64).contains(&self.array.len()) {
            return Err("give 1 to 64 [[array]] sections".into());
        }
        for (index, array) in self.array.iter().enumerate() {
            let normal = array.distribution == Distribution::Normal;
            let shares = [
                ("mean", array.mean, 0.0, normal),
                ("deviation", array.deviation, 1e-6, normal),
                ("shift", Some(array.shift), 0.0, true),
            ];
            for (key, value, least, has) in shares {
                let Some(value) = value else { continue };
                if !has {
                    return Err(format!("[[array]] {}: only `normal` has `{key}`", index + 1));
                }
                if !(least..=1.0).contains(&value) {
                    let what =
                        format!("`{key} = {value}` is not a share of the array, {least} to 1");
                    return Err(format!("[[array]] {}: {what}", index + 1));
                }
            }
            if let Some(ranks) = array.ranks
                && (array.distribution != Distribution::Ranked || !(2..=1000).contains(&ranks))
            {
                let what = format!("`ranks = {ranks}`: only `ranked` has `ranks`, 2 to 1000");
                return Err(format!("[[array]] {}: {what}", index + 1));
            }
            if !(array.weight > 0.0 && array.weight <= 1e6) {
                let what =
                    format!("`weight = {}` is not above 0 and at most 1000000", array.weight);
                return Err(format!("[[array]] {}: {what}", index + 1));
            }
        }
        let round = |array: &Array| matches!(array.phase, Phases::Rounds | Phases::Both);
        if !self.array.iter().any(round) {
            return Err("no [[array]] is accessed in the rounds".into());
        }
        Ok(())
    }
}

fn read(name: &str) -> Result<String> {
    let bytes = file::read(Path::new(name), "a workload file", MAX_FILE_BYTES)?;
    String::from_utf8(bytes).map_err(|_| Error::input(name.to_owned(), "not UTF-8 text", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_built_in_files_are_valid() {
        assert_eq!(WORKLOADS.len(), FILES.len());
        for (name, text) in FILES {
            Workload::parse(name, text).unwrap();
        }
    }

    #[test]
    fn mistakes_name_the_line_or_the_key() {
        let text = FILES[1].1;
        for (from, to, said) in [
            ("access =", "bytes =", "unknown field"),
            ("\"zipf\"", "\"bell\"", "distribution"),
            ("operations = 30_000_000", "operations = 0", "`operations = 0`"),
            ("access = \"4KiB\"", "access = \"5KiB\"", "whole pages"),
            ("phase = \"warm-up\"", "shift = 2", "[[array]] 1: `shift = 2` is not a share"),
            ("phase = \"warm-up\"", "mean = 0.5", "only `normal` has `mean`"),
            ("phase = \"warm-up\"", "ranks = 8", "only `ranked` has `ranks`"),
            ("operations = 30_000_000", "operations = \"many\"", "line 4: "),
            ("30_000_000", "-3", "expected a whole number"),
            ("phase = \"warm-up\"", "phase = \"later\"", "line "),
            (
                "size = \"13824MiB\"\ndistribution",
                "phase = \"never\"\nsize = \"1GiB\"\ndistribution",
                "in the rounds",
            ),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text, "{from}");
            let error = Workload::parse("mine.toml", &changed).unwrap_err().to_string();
            assert!(error.starts_with("mine.toml") && error.contains(said), "{error}");
        }
        assert!(Workload::load("no.toml").unwrap_err().to_string().starts_with("no.toml"));
    }
}
