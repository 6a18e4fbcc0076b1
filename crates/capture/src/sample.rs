//! The option `--sample`: the share of the program's pages whose references are recorded.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use nearfar_schema::units::parse_share;
use nearfar_schema::{Given, Value};
use nearfar_trace::hash::mix;
use nearfar_trace::sample::{limit, rate};
use nearfar_trace::{Kind, PageSample};

use crate::layout::{Header, PAGE_SHIFT};

/// A sample of a growing footprint is halved at this many pages: enough for confidence intervals
/// of a few percent (`nearfar paging` refuses below 1,000), and few enough for a small trace.
pub const AUTO_PAGES: u64 = 8192;

/// The share of the program's pages whose references are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    Share(f64),
    /// All pages at first. The sample is halved whenever it reaches [`AUTO_PAGES`] pages.
    Auto,
}

impl Rate {
    fn at_start(self) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::Auto => 1.0,
        }
    }

    /// Set the sample that the plugin is to record.
    pub fn set(self, header: &Header, seed: u64) {
        header.sample.store(limit(self.at_start()), Relaxed);
        header.sample_seed.store(mix(seed), Relaxed);
        let max = if self == Self::Auto { AUTO_PAGES } else { 0 };
        header.sample_pages.store(max, Relaxed);
    }

    /// The final share. Pages in the final sample were sampled from the start.
    pub fn at_end(self, header: &Header) -> f64 {
        match self {
            Self::Share(share) => share,
            Self::Auto => rate(header.sample.load(Relaxed)),
        }
    }

    /// The description of a sample before any reference is counted.
    pub fn sample(self, seed: u64) -> PageSample {
        PageSample { rate: self.at_start(), seed, ..PageSample::default() }
    }
}

/// Numbers of loads, stores and, with `fetch`, fetches, by kind.
pub fn counts(references: [u64; 3], fetch: bool) -> BTreeMap<Kind, u64> {
    let kinds = [Kind::Fetch, Kind::Load, Kind::Store].into_iter().zip(references);
    kinds.filter(|(kind, _)| fetch || *kind != Kind::Fetch).collect()
}

impl Value for Rate {
    const METAVAR: &'static str = "SHARE|auto";
    fn python() -> String {
        "str | float".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let text = given.to_string();
        if text.trim() == "auto" {
            return Ok(Self::Auto);
        }
        let share = parse_share(&text).filter(|share| *share >= MIN_SHARE).map(Self::Share);
        share.ok_or_else(|| {
            let given = given.shown();
            format!("'{given}' is not a share of pages; write for example 0.01, 1% or auto")
        })
    }
    fn plain(&self) -> serde_json::Value {
        match self {
            Self::Share(share) => (*share).into(),
            Self::Auto => "auto".into(),
        }
    }
}

/// The smallest share: one page of an address space of 16 TiB.
const MIN_SHARE: f64 = 1.0 / (1u64 << (44 - PAGE_SHIFT)) as f64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout;

    #[test]
    fn shares_are_read() {
        let read = |text: &str| Rate::read(&text.into());
        assert_eq!(read("1%"), Ok(Rate::Share(0.01)));
        assert_eq!(read("0.5"), Ok(Rate::Share(0.5)));
        assert_eq!(read("auto"), Ok(Rate::Auto));
        for wrong in ["0", "-1%", "101%", "nan", "1e-30", "", "some"] {
            assert!(read(wrong).unwrap_err().contains("is not a share of pages"), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn plugin_and_trace_sample_the_same_pages(page in 0u64..1 << 36, seed: u64, rate in 0.0..1.0) {
            let sample = PageSample { rate, seed, ..PageSample::default() };
            let sampled = layout::is_sampled(page, mix(seed), limit(rate));
            prop_assert_eq!(sample.contains(page), sampled);
            // The kernel's references to files have synthetic addresses from 2^63 (bit 51 of a page
            // number). The hash ignores this bit.
            prop_assert_eq!(sample.contains(page | 1 << 51), sampled);
        }
    }
}
