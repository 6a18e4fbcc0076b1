//! What `nearfar run` tells the library that it loads into the program, in one variable of the
//! environment.

use std::collections::BTreeMap;

use nearfar_kernel::tiering::Settings;

use crate::numbers::GROUP;
use crate::{PAGE, Sizes, far};

/// The variable.
pub const VARIABLE: &str = "NEARFAR_RUN";

/// How a program is to be run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Setup {
    /// Bytes of fast memory.
    pub fast: u64,
    /// Bytes that the far tier may hold, before compression.
    pub far_size: u64,
    /// The far tier, as [`far::find`](crate::far::find) reads it.
    pub far: String,
    /// Nanoseconds that a request to the far tier takes at least.
    pub far_latency_ns: u64,
    /// Which threads sleep while their page comes from the far tier, as
    /// [`epf::parse`](nearfar_kernel::epf::parse) reads it.
    pub epf: String,
    /// The policy: one of the registry, or what the launcher's is called.
    pub policy: String,
    /// The launcher has the policy, and answers for every process over a socket
    /// ([`remote`](crate::remote)).
    pub remote: bool,
    /// Its knobs.
    pub knobs: BTreeMap<String, String>,
    /// The supervisor's process.
    pub launcher: u32,
    /// Its descriptor of the file of [`Shared`](crate::shared::Shared).
    pub shared: u32,
    /// Its eventfd, which calls it.
    pub bell: u32,
}

impl Setup {
    /// As one text of lines. No value may hold a line's end.
    pub fn to_text(&self) -> String {
        let mut lines = vec![
            format!("fast={}", self.fast),
            format!("far_size={}", self.far_size),
            format!("far={}", self.far),
            format!("far_latency_ns={}", self.far_latency_ns),
            format!("epf={}", self.epf),
            format!("policy={}", self.policy),
            format!("remote={}", u8::from(self.remote)),
            format!("launcher={}", self.launcher),
            format!("shared={}", self.shared),
            format!("bell={}", self.bell),
        ];
        lines.extend(self.knobs.iter().map(|(knob, value)| format!("knob.{knob}={value}")));
        lines.join("\n")
    }

    /// The reverse.
    ///
    /// # Errors
    /// The line that is not one of these.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut setup = Self::default();
        for line in text.lines() {
            let wrong = || format!("{VARIABLE}: {line}");
            let (key, value) = line.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse::<u64>().map_err(|_| wrong());
            match key {
                "fast" => setup.fast = number()?,
                "far_size" => setup.far_size = number()?,
                "far" => value.clone_into(&mut setup.far),
                "far_latency_ns" => setup.far_latency_ns = number()?,
                "epf" => value.clone_into(&mut setup.epf),
                "policy" => value.clone_into(&mut setup.policy),
                "remote" => setup.remote = number()? != 0,
                "launcher" => setup.launcher = number()? as u32,
                "shared" => setup.shared = number()? as u32,
                "bell" => setup.bell = number()? as u32,
                _ => {
                    let knob = key.strip_prefix("knob.").ok_or_else(wrong)?;
                    setup.knobs.insert(knob.to_owned(), value.to_owned());
                }
            }
        }
        Ok(setup)
    }

    /// The policy's settings.
    pub fn settings(&self) -> Settings {
        Settings { values: self.knobs.clone(), ..Settings::default() }
    }

    /// Whether the far tier's pages stay in the program's memory, on a memory node.
    pub fn is_mapped(&self) -> bool {
        far::find(&self.far).is_ok_and(|(_, tier, _)| tier.is_mapped)
    }

    /// Frames and pages. The window and the spare frames are part of the fast memory.
    pub fn sizes(&self) -> Sizes {
        let pages = |bytes: u64| bytes / PAGE as u64;
        let all = pages(self.fast);
        let mapped = self.is_mapped();
        let window = if mapped { 0 } else { (all / 64).clamp(8, 4096) };
        let spare = (all / 128).clamp(8, 512);
        // A page that is far from every other takes a group of numbers. The tables by number are zeros
        // at first, and take memory only where numbers are in use.
        let numbers = u64::from(GROUP) * (all + pages(self.far_size)) + (1 << 16);
        Sizes {
            fast: all.saturating_sub(window + spare).max(64),
            far: pages(self.far_size),
            window,
            spare: spare as usize,
            pages: numbers.min(1 << 30) as u32,
            mapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
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
        assert!(Setup::from_text("fast=x").is_err() && Setup::from_text("nothing").is_err());
        let sizes = setup.sizes();
        assert_eq!(sizes.fast + sizes.window + sizes.spare as u64, 5 << 8);
        // Each page may be in a group of its own, as far as there can be numbers.
        assert_eq!(sizes.pages, 1 << 30);
        let small = Setup { far_size: 80 << 20, ..setup.clone() }.sizes();
        assert!(u64::from(small.pages) >= u64::from(GROUP) * (small.fast + small.far));
        // Every page on a memory node may be parked, and none is let through a window.
        let mapped = Setup { far: "node:1".into(), far_size: 40 << 20, ..setup }.sizes();
        assert_eq!(mapped.fast + mapped.spare as u64, 5 << 8);
        assert_eq!((mapped.window, u64::from(mapped.lot())), (0, mapped.fast + 10_240 + 10 + 64));
    }
}
