//! Types of the tiering study's option values.

use nearfar_kernel::tiering::POLICIES;
use nearfar_schema::{Count, Entry, Given, Registry as _, Value};
use serde_json::Value as Json;

use super::workload::Workloads;

/// Programs that run together: names of generated workloads or of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loads(pub Vec<String>);

impl Value for Loads {
    const METAVAR: &'static str = Workloads::METAVAR;
    const REGISTRY: &'static str = Workloads::NAME;
    fn python() -> String {
        "str | Path | Sequence[str | Path]".into()
    }
    fn choices() -> Vec<Entry> {
        Workloads::entries()
    }
    fn open() -> bool {
        // A trace or a .toml file is also valid.
        true
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        Ok(Self(given.items().iter().map(Given::to_string).collect()))
    }
    fn plain(&self) -> Json {
        match self.0.as_slice() {
            [only] => only.as_str().into(),
            several => several.into(),
        }
    }
}

/// Shares of fast memory, one number per program, in proportion.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares(pub Vec<f64>);

impl Value for Shares {
    const METAVAR: &'static str = "SHARES";
    fn python() -> String {
        "str".into()
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let text = given.to_string();
        let shares: Option<Vec<f64>> = text
            .split(':')
            .map(|share| share.trim().parse().ok().filter(|share| (1e-6..=1e6).contains(share)))
            .collect();
        shares.map(Self).ok_or_else(|| {
            format!(
                "'{}' are not shares; write a number from 1e-6 to 1e6 for each program, such as 2:1",
                given.shown()
            )
        })
    }
    fn plain(&self) -> Json {
        self.0.iter().map(f64::to_string).collect::<Vec<_>>().join(":").into()
    }
}

/// Names of policies. Policies written in Python are passed separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(pub Vec<String>);

impl Value for Policies {
    const METAVAR: &'static str = "POLICIES";
    const REGISTRY: &'static str = "policy";
    fn python() -> String {
        "PolicyLike | Sequence[PolicyLike]".into()
    }
    fn choices() -> Vec<Entry> {
        POLICIES.iter().map(|(name, policy)| Entry { name, what: policy.what.into() }).collect()
    }
    fn open() -> bool {
        // `all`, or a Python file, is also valid.
        true
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let names: Vec<_> = given.items().iter().map(Given::to_string).collect();
        Ok(match names.as_slice() {
            [all] if all == "all" => {
                Self(POLICIES.iter().map(|(name, _)| (*name).into()).collect())
            }
            _ => Self(names),
        })
    }
    fn plain(&self) -> Json {
        self.0.as_slice().into()
    }
}

/// Factor on generated workloads and the machine's memory, above 0 and up to 16: `1/64`, `0.5`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// As the user wrote it.
    pub text: String,
    pub share: f64,
}

impl Value for Scale {
    const METAVAR: &'static str = "SHARE";
    fn python() -> String {
        "str | float".into()
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let text = given.to_string();
        let share = match text.split_once('/') {
            Some((part, whole)) => part
                .trim()
                .parse::<f64>()
                .and_then(|part| whole.trim().parse::<f64>().map(|whole| part / whole)),
            None => text.trim().parse(),
        };
        match share {
            Ok(share) if share > 0.0 && share <= 16.0 => Ok(Self { text, share }),
            _ => Err(format!(
                "'{}' is not a scale above 0 and up to 16; write for example 1/64",
                given.shown()
            )),
        }
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}

/// A number of seeds, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// This many consecutive seeds.
    Many(u64),
    /// These seeds.
    These(Vec<u64>),
}

const MAX_SEEDS: usize = 10_000;

impl Seeds {
    /// The seeds; [`Seeds::Many`] begins at `first`.
    pub fn from(&self, first: u64) -> Vec<u64> {
        match self {
            Seeds::Many(count) => (first..first + count).collect(),
            Seeds::These(seeds) => seeds.clone(),
        }
    }
}

impl Value for Seeds {
    const METAVAR: &'static str = "COUNT";
    fn python() -> String {
        "int | Sequence[int]".into()
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let refused = || {
            format!(
                "'{}' is not a number of seeds; give 1 to {MAX_SEEDS}, or a list of 1 to {MAX_SEEDS} seeds \
                 from 0 to 2^64 - 1",
                given.shown()
            )
        };
        match given {
            Given::List(seeds) if (1..=MAX_SEEDS).contains(&seeds.len()) => {
                let read = |seed| Count::<0>::read(seed).map(|seed| seed.0);
                seeds.iter().map(read).collect::<std::result::Result<_, _>>().map(Self::These)
            }
            one => Count::<1, { MAX_SEEDS as u64 }>::read(one).map(|count| Self::Many(count.0)),
        }
        .map_err(|_| refused())
    }
    fn plain(&self) -> Json {
        match self {
            Seeds::Many(count) => (*count).into(),
            Seeds::These(seeds) => seeds.as_slice().into(),
        }
    }
}
