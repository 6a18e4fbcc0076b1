//! The setup of a run, which `nearfar run` passes to the library in the program in an environment variable.

use std::collections::BTreeMap;

use nearfar_kernel::tiering::Settings;
use serde::{Deserialize, Serialize};

use crate::numbers::GROUP;
use crate::{PAGE, Sizes, far};

pub const VARIABLE: &str = "NEARFAR_RUN";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Bytes of fast memory.
    pub fast: u64,
    /// Size of the far tier in bytes, before compression.
    pub far_size: u64,
    /// The far tier, as [`far::find`](crate::far::find) reads it.
    pub far: String,
    /// Minimum latency of the far tier in nanoseconds.
    pub far_latency_ns: u64,
    /// Embedded page faults (EPF): which threads sleep while their page is read from the far tier, as
    /// [`epf::parse`](nearfar_kernel::epf::parse) reads it.
    pub epf: String,
    pub policy: String,
    /// The policy runs in the launcher ([`remote`](crate::remote)).
    pub remote: bool,
    pub knobs: BTreeMap<String, String>,
    /// PID of the launcher.
    pub launcher: u32,
    /// The launcher's descriptor of the file of [`Shared`](crate::shared::Shared).
    pub shared: u32,
    /// The launcher's descriptor of the eventfd that wakes it.
    pub bell: u32,
}

impl Setup {
    /// As JSON.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parse the text of [`to_text`](Self::to_text).
    ///
    /// # Errors
    /// It is not such a text.
    pub fn from_text(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("{VARIABLE}: {error}"))
    }

    pub fn settings(&self) -> Settings {
        Settings { values: self.knobs.clone(), ..Settings::default() }
    }

    /// Whether the far tier's pages stay in the program's memory, on a memory node.
    pub fn is_mapped(&self) -> bool {
        far::find(&self.far).is_ok_and(|(_, tier, _)| tier.is_mapped)
    }

    /// The sizes in pages. [`Self::fast`] includes the window (a few far pages in the program's memory) and
    /// the spare frames; [`Sizes::fast`] does not.
    pub fn sizes(&self) -> Sizes {
        let pages = |bytes: u64| bytes / PAGE as u64;
        let frames = pages(self.fast);
        let far_is_mapped = self.is_mapped();
        let window = if far_is_mapped { 0 } else { (frames / 64).clamp(8, 4096) };
        let spare = (frames / 128).clamp(8, 512);
        // Page numbers are allocated in groups, so a page without neighbours takes a whole group. A high
        // limit is cheap: page tables take memory only for numbers in use.
        let numbers = u64::from(GROUP) * (frames + pages(self.far_size)) + (1 << 16);
        Sizes {
            // The options refuse a budget below 1 MiB: 64 is a safeguard only.
            fast: frames.saturating_sub(window + spare).max(64),
            far: pages(self.far_size),
            window,
            spare: spare as usize,
            pages: numbers.min(1 << 30) as u32,
            far_is_mapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_is_read_as_written_and_its_sizes_fit_the_budget() {
        let setup = Setup {
            fast: 5 << 20,
            far_size: 1 << 40,
            far: "file:/tmp/a=b".into(),
            far_latency_ns: 3,
            epf: "smart:50us".into(),
            policy: "ssp".into(),
            remote: true,
            knobs: [("notice".into(), "write-protect".into())].into(),
            launcher: 2,
            shared: 3,
            bell: 4,
        };
        assert_eq!(Setup::from_text(&setup.to_text()), Ok(setup.clone()));
        assert!(Setup::from_text("fast=x").unwrap_err().starts_with("NEARFAR_RUN: "));
        let sizes = setup.sizes();
        assert_eq!(sizes.fast + sizes.window + sizes.spare as u64, 5 << 8);
        assert_eq!(sizes.pages, 1 << 30);
        let small = Setup { far_size: 80 << 20, ..setup.clone() }.sizes();
        assert!(u64::from(small.pages) >= u64::from(GROUP) * (small.fast + small.far));
        // The parking area holds every page: fast, 10,240 far, 10 spare frames, and a margin of 64.
        let mapped = Setup { far: "node:1".into(), far_size: 40 << 20, ..setup }.sizes();
        assert_eq!(mapped.fast + mapped.spare as u64, 5 << 8);
        assert_eq!(
            (mapped.window, u64::from(mapped.parking())),
            (0, mapped.fast + 10_240 + 10 + 64)
        );
    }
}
