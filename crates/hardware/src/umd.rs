//! A DRAM-interface SSD (the "unified memory device", UMD, of paper 002): flash that stores every page,
//! and a small DRAM cache that the host accesses directly.
//!
//! The DRAM is write-back, with LRU over all accesses. A page that is not in DRAM is loaded by a
//! *service*: the least recently used page is evicted and, if dirty, programmed (with garbage
//! collection if necessary), then the requested page is read. These steps are sequential, because
//! they share a DRAM frame; services of different pages overlap if they use different dies. A page
//! that was never written to the device needs no flash read. Once the DRAM is full, even a new
//! page that replaces a clean one needs a service: one DRAM access, as in the paper.

use nearfar_trace::{Error, Result};

use crate::flash::{Array, Command, Conditioned, Ftl, Geometry, Precondition, Step, Times};
use crate::list::{Links, List};
use crate::machine::Machine;

/// A service that has begun, as reported to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Number of its job in the flash array.
    pub job: u32,
    /// Predicted nanoseconds on an idle device, including garbage collection, but without erases, which
    /// the paper does not count.
    pub predicted_ns: u64,
    /// Whether the page is read from flash.
    pub from_flash: bool,
}

/// Where the content of a loaded page comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// From flash: it is read, and the page is clean.
    Stored,
    /// From the program: nothing is read, and the page is dirty.
    New,
    /// From a disk controller, whose write the device does not see, as in MARSSx86: nothing is read, and
    /// the page is clean.
    Unseen,
}

/// Result of loading a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loading {
    /// The evicted page, whose mapping the host must remove.
    pub evicted: Option<u32>,
    /// The service to wait for; `None` if the page is available at once.
    pub service: Option<Service>,
}

// Bits of the state of a page.
const RESIDENT: u8 = 1;
const DIRTY: u8 = 2;
const ARRIVING: u8 = 4;

pub struct Umd {
    ftl: Ftl,
    array: Array,
    times: Times,
    /// Nanoseconds to move a page out of the DRAM, and into it.
    page_out_ns: u64,
    page_in_ns: u64,
    frames: u32,
    used: u32,
    state: Vec<u8>,
    links: Links,
    lru: List,
    dirty_evictions: u64,
    clean_evictions: u64,
    steps: Vec<Step>,
    commands: Vec<Command>,
}

impl Umd {
    /// The device of a machine, with this much DRAM, initially empty.
    ///
    /// # Errors
    /// The machine has no `[flash]` or no DRAM, or the size is not between one page and the
    /// device's capacity.
    pub fn new(machine: &Machine, dram_bytes: u64) -> Result<Self> {
        let geometry = Geometry::new(machine)?;
        let times = Times::new(machine)?;
        let dram = &machine.dram()?.local;
        let frames = dram_bytes / geometry.page_bytes;
        if frames == 0 || frames > u64::from(geometry.user_pages) {
            return Err(Error::input(
                "--dram",
                format!("{dram_bytes} bytes must be between one page and the device's capacity"),
                format!("give {} to {} bytes", geometry.page_bytes, geometry.user_bytes()),
            ));
        }
        let page_ns = |latency: f64, moving: Option<f64>| (latency + moving.unwrap_or(0.0)).round();
        let move_ns = |rate: &Option<crate::machine::Sourced<nearfar_schema::units::Bandwidth>>| {
            rate.as_ref().map(|rate| rate.value.ns_for(geometry.page_bytes))
        };
        let read = dram.read_latency.value.ns();
        let write = dram.write_latency.as_ref().map_or(read, |latency| latency.value.ns());
        let pages = geometry.user_pages as usize;
        Ok(Self {
            array: Array::new(&geometry),
            times,
            page_out_ns: page_ns(read, move_ns(&dram.read_bandwidth)) as u64,
            page_in_ns: page_ns(write, move_ns(&dram.write_bandwidth)) as u64,
            frames: frames as u32,
            used: 0,
            state: vec![0; pages],
            links: Links::new(pages),
            lru: List::default(),
            dirty_evictions: 0,
            clean_evictions: 0,
            steps: Vec::new(),
            commands: Vec::new(),
            ftl: Ftl::new(geometry),
        })
    }

    /// Fill and overwrite the flash before use.
    pub fn precondition(&mut self, how: &Precondition) -> Conditioned {
        how.apply(&mut self.ftl)
    }

    /// The translation layer: counts, wear, capacity.
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    pub fn array(&mut self) -> &mut Array {
        &mut self.array
    }

    /// Capacity of the DRAM in pages.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Evictions so far: of dirty pages, of clean pages.
    pub fn evictions(&self) -> (u64, u64) {
        (self.dirty_evictions, self.clean_evictions)
    }

    /// Whether `page` is in the DRAM or being loaded.
    #[inline]
    pub fn resident(&self, page: u32) -> bool {
        self.state[page as usize] & RESIDENT != 0
    }

    /// The host accessed `page`, which is in the DRAM.
    #[inline]
    pub fn touch(&mut self, page: u32, writes: bool) {
        self.state[page as usize] |= if writes { DIRTY } else { 0 };
        if self.lru.newest() != Some(page) {
            self.links.remove(&mut self.lru, page);
            self.links.push(&mut self.lru, page);
        }
    }

    /// Whether a page can be loaded without an eviction.
    pub fn has_room(&self) -> bool {
        self.used < self.frames
    }

    /// Load `page` at time `now`. The page must not be resident. [`Content::Stored`] counts as new if
    /// the page was never written to flash.
    pub fn load(&mut self, now: u64, page: u32, content: Content) -> Loading {
        self.steps.clear();
        self.commands.clear();
        let mut evicted = None;
        if self.has_room() {
            self.used += 1;
        } else {
            evicted = Some(self.evict());
        }
        let stored = content == Content::Stored;
        let read = if stored { self.ftl.read(page) } else { None };
        if let Some(command) = read {
            self.times.steps(command, &mut self.steps);
            self.commands.push(command);
        }
        if read.is_some() || evicted.is_some() {
            Step::Delay { ns: self.page_in_ns }.append(&mut self.steps);
        }
        let clean = read.is_some() || content == Content::Unseen;
        self.state[page as usize] = RESIDENT | if clean { 0 } else { DIRTY };
        self.links.push(&mut self.lru, page);
        if self.steps.is_empty() {
            return Loading { evicted, service: None };
        }
        self.state[page as usize] |= ARRIVING;
        let predicted_ns = self.steps.iter().map(|step| step.counted_ns()).sum();
        let job = self.array.submit(now, &self.steps);
        let from_flash = read.is_some();
        Loading { evicted, service: Some(Service { job, predicted_ns, from_flash }) }
    }

    /// The flash commands of the last [`load`](Umd::load), in order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// The service of `page` is complete: the page may be evicted again.
    pub fn arrived(&mut self, page: u32) {
        self.state[page as usize] &= !ARRIVING;
    }

    /// Evict the least recently used page that is not being loaded, and program it if it is dirty.
    ///
    /// # Panics
    /// All pages are being loaded. The caller must ensure that there are more frames than
    /// concurrent services.
    fn evict(&mut self) -> u32 {
        let mut page = self.lru.oldest().expect("the DRAM is full");
        while self.state[page as usize] & ARRIVING != 0 {
            page = self.links.newer(page).expect("a page that has arrived");
        }
        self.links.remove(&mut self.lru, page);
        let dirty = self.state[page as usize] & DIRTY != 0;
        self.state[page as usize] = 0;
        if dirty {
            self.dirty_evictions += 1;
            Step::Delay { ns: self.page_out_ns }.append(&mut self.steps);
            let (times, steps, commands) = (self.times, &mut self.steps, &mut self.commands);
            self.ftl.write(page, |command| {
                times.steps(command, steps);
                commands.push(command);
            });
        } else {
            self.clean_evictions += 1;
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use nearfar_trace::generate::rng::Rng;
    use proptest::prelude::*;

    use super::*;

    fn machine() -> Machine {
        Machine::load("umd", std::path::Path::new("")).unwrap()
    }

    fn device(frames: u64) -> Umd {
        Umd::new(&machine(), frames * 4096).unwrap()
    }

    /// Finish all jobs, and complete the service of `page`. Returns the end of the last job.
    fn wait(umd: &mut Umd, page: u32, now: u64) -> u64 {
        while umd.array().step() {}
        let mut end = now;
        while let Some((time, _)) = umd.array().finished() {
            end = end.max(time);
        }
        umd.arrived(page);
        end
    }

    /// LRU hit ratios of Zipf references. Che's approximation: a page with the share q of references
    /// hits with probability 1 - exp(-q t), where these probabilities sum to the number of frames.
    #[test]
    fn hit_ratios_agree_with_ches_approximation() {
        let pages = 10_000u64;
        for alpha in [0.6, 0.8, 1.0, 1.2] {
            let weights: Vec<f64> = (1..=pages).map(|k| (k as f64).powf(-alpha)).collect();
            let sum: f64 = weights.iter().sum();
            let cumulative: Vec<f64> = weights
                .iter()
                .scan(0.0, |total, weight| {
                    *total += weight / sum;
                    Some(*total)
                })
                .collect();
            for frames in [100, 1000, 5000] {
                let (mut low, mut high) = (0.0, 1e9);
                for _ in 0..200 {
                    let t = (low + high) / 2.0;
                    let resident: f64 = weights.iter().map(|w| 1.0 - (-w / sum * t).exp()).sum();
                    if resident < frames as f64 { low = t } else { high = t }
                }
                let che: f64 =
                    weights.iter().map(|w| w / sum * (1.0 - (-w / sum * low).exp())).sum();
                let mut umd = device(frames);
                let mut rng = Rng::new(3);
                let (mut hits, count, warm_up) = (0, 600_000, 200_000);
                for number in 0..count + warm_up {
                    let draw = rng.unit();
                    let page = cumulative.partition_point(|c| *c <= draw).min(9_999) as u32;
                    if umd.resident(page) {
                        hits += u32::from(number >= warm_up);
                        umd.touch(page, false);
                    } else if umd.load(0, page, Content::Stored).service.is_some() {
                        wait(&mut umd, page, 0);
                    }
                }
                let found = f64::from(hits) / f64::from(count);
                assert!((found - che).abs() < 0.004, "{alpha} {frames}: {found} Che {che}");
            }
        }
    }

    proptest! {
        /// No written page is lost, and a service alone takes as long as predicted: 50 ns into or out
        /// of DRAM, 25 us to read and 200 us to program flash.
        #[test]
        fn dram_equals_an_lru_list(
            frames in 1usize..20,
            refs in prop::collection::vec((0u32..40, any::<bool>()), 1..600),
            unseen in any::<bool>(),
            striped in any::<bool>(),
        ) {
            let mut machine = machine();
            if striped {
                let flash = machine.flash.as_mut().unwrap();
                let mut stripe = flash.dies_per_channel.clone();
                stripe.value.0 = 8;
                flash.stripe = Some(stripe);
            }
            let stripe = if striped { 8 } else { 1 };
            let mut umd = Umd::new(&machine, frames as u64 * 4096).unwrap();
            // Pages in the DRAM, least recently used first, and whether they are dirty.
            let mut list: Vec<(u32, bool)> = Vec::new();
            let mut flash = std::collections::BTreeSet::new();
            let mut now = 0;
            let mut programs = 0;
            for (page, writes) in refs {
                let place = list.iter().position(|(p, _)| *p == page);
                prop_assert_eq!(umd.resident(page), place.is_some());
                if let Some(place) = place {
                    let (_, dirty) = list.remove(place);
                    list.push((page, dirty || writes));
                    umd.touch(page, writes);
                    continue;
                }
                let mut expected = 0;
                let out = (list.len() == frames).then(|| list.remove(0));
                if let Some((old, true)) = out {
                    flash.insert(old);
                    programs += 1;
                    // A stripe is programmed with its last page.
                    expected += 50 + if programs % stripe == 0 { 200_000 } else { 0 };
                }
                let new = !flash.contains(&page);
                expected += if new { 0 } else { 25_000 };
                expected += if new && out.is_none() { 0 } else { 50 };
                list.push((page, writes || new && !unseen));
                let content = match (new, unseen) {
                    (true, true) => Content::Unseen,
                    (true, false) => Content::New,
                    (false, _) => Content::Stored,
                };
                let loading = umd.load(now, page, content);
                prop_assert_eq!(loading.evicted, out.map(|(old, _)| old));
                prop_assert_eq!(loading.service.map_or(0, |s| s.predicted_ns), expected);
                prop_assert_eq!(wait(&mut umd, page, now), now + expected);
                now += expected;
                umd.touch(page, writes);
                for page in &flash {
                    prop_assert!(umd.ftl().place(*page).is_some());
                }
            }
            umd.ftl().verify();
            prop_assert_eq!(u64::from(umd.ftl().mapped()), flash.len() as u64);
        }
    }

    #[test]
    fn impossible_dram_sizes_are_refused() {
        for bytes in [0, 4095, 4 << 30] {
            let error = Umd::new(&machine(), bytes).err().unwrap().to_string();
            assert!(error.starts_with("--dram: ") && error.contains("give 4096 to"), "{error}");
        }
        let plain = Machine::load("nvme", std::path::Path::new("")).unwrap();
        let error = Umd::new(&plain, 4096).err().unwrap().to_string();
        assert!(error.contains("has no [flash]"), "{error}");
    }
}
