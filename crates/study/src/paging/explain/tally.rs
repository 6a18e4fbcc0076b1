//! Adds up events by memory region and address range, and by the code that caused them.

use std::collections::BTreeMap;

use nearfar_trace::{Reader, Result};
use rustc_hash::FxHashMap;

use super::{Counts, Explained, Place, RANGES, SITES, Site};
use crate::info::names::{self, Names, UNNAMED};

/// log2 of the bytes of the smallest address range, unless a page is larger.
pub const MIN_RANGE_SHIFT: u32 = 16;

pub struct Tally {
    names: Names,
    counted: Counted,
    /// Address of each thread's last instruction fetch.
    fetched: FxHashMap<u32, u64>,
    /// log2 of the bytes of a cell; cells are merged into ranges at the end.
    cell_shift: u32,
    /// 4 KiB page and cell of the previous reference.
    current: Option<(u64, u64)>,
    /// Region of `current`.
    region: u32,
    /// Counts of `current` that are not yet in `counted`.
    counts: Counts,
}

impl Tally {
    /// `shift` is log2 of the page size.
    pub fn new(reader: &Reader, shift: u32) -> Result<Self> {
        Ok(Self {
            names: Names::new(reader)?,
            counted: Counted::default(),
            fetched: FxHashMap::default(),
            cell_shift: shift.max(MIN_RANGE_SHIFT),
            current: None,
            region: 0,
            counts: Counts::default(),
        })
    }

    /// Start record number `at`, of `thread`. Must be called for every record, in order.
    pub fn record(&mut self, at: u64, thread: u32) {
        let changed = self.names.advance(at);
        if self.names.switch_to(thread) || changed {
            self.commit();
        }
    }

    pub fn fetch(&mut self, thread: u32, addr: u64) {
        self.fetched.insert(thread, addr);
    }

    /// Count the events of a reference by a thread, or by the kernel for it. `references` is 1 for
    /// a record's first reference to each page, else 0.
    pub fn reference(
        &mut self,
        (thread, by_kernel): (u32, bool),
        addr: u64,
        events: Counts,
        references: u64,
    ) {
        self.enter(addr);
        if by_kernel {
            self.counted.kernel.add(&Counts { references, ..events });
        }
        if events != Counts::default() {
            let site = self.fetched.get(&thread).map(|&addr| (self.names.code(addr), addr));
            self.counted.sites.entry(site).or_default().add(&events);
            self.counts.add(&events);
        }
        self.counts.references += references;
    }

    /// Make the page and cell of `addr` the current ones.
    fn enter(&mut self, addr: u64) {
        let place = (addr >> 12, addr >> self.cell_shift);
        if self.current != Some(place) {
            self.commit();
            self.region = self.names.region(place.0);
            self.current = Some(place);
        }
    }

    /// Add `counts` to the counts of the current region and cell.
    fn commit(&mut self) {
        if let Some((_, cell)) = self.current.take() {
            let counts = std::mem::take(&mut self.counts);
            self.counted.places.entry((self.region, cell)).or_default().add(&counts);
        }
    }

    pub fn finish(mut self) -> Explained {
        self.commit();
        if self.fetched.is_empty() {
            self.counted.sites.clear();
        }
        let programs = self.names.programs().to_vec();
        self.counted.explained(&self.names.finish(), &programs, self.cell_shift, None)
    }
}

/// Counts by region and cell, and by the code that the thread fetched last.
#[derive(Default)]
pub struct Counted {
    /// Counts of the kernel's references.
    pub kernel: Counts,
    /// By region id and cell.
    pub places: FxHashMap<(u32, u64), Counts>,
    /// By code and its address; `None` before the thread's first fetch.
    pub sites: FxHashMap<Option<(names::Code, u64)>, Counts>,
}

/// The sites (code addresses) with most events, and the sum of all others; `name_of` names a region.
fn top_sites(
    sites: FxHashMap<Option<(names::Code, u64)>, Counts>,
    programs: &[String],
    name_of: impl Fn(u32) -> String,
) -> Vec<Site> {
    let mut sites: Vec<_> = sites.into_iter().collect();
    sites.sort_by_key(|(site, c)| {
        let key = site.map(|(code, addr)| (addr, code.program, code.offset, code.region));
        (key.is_none(), std::cmp::Reverse(c.tlb_misses + c.faults + c.minor_faults), key)
    });
    let mut rest = Counts::default();
    let mut listed = Vec::new();
    for (site, counts) in sites {
        match site {
            Some((code, addr)) if listed.len() < SITES => listed.push(Site {
                name: name_of(code.region),
                program: programs.get(code.program as usize).cloned().unwrap_or_default(),
                offset: code.offset,
                addr: Some(addr),
                counts,
            }),
            _ => rest.add(&counts),
        }
    }
    if rest != Counts::default() {
        listed.push(Site {
            name: "(others)".to_owned(),
            program: String::new(),
            offset: None,
            addr: None,
            counts: rest,
        });
    }
    listed
}

impl Counted {
    /// Make the result. `merged` and `texts` are from [`Names::finish`]: the final region of each region id,
    /// and the names of final regions. `resident`: peak bytes of private memory by region id.
    pub fn explained(
        self,
        (merged, texts): &(Vec<u32>, Vec<Option<String>>),
        programs: &[String],
        cell_shift: u32,
        resident: Option<&[u64]>,
    ) -> Explained {
        let final_region = |id: u32| merged.get(id as usize).copied().unwrap_or(id) as usize;
        let mut total = Counts::default();
        let mut regions: BTreeMap<usize, (u64, u64, Counts)> = BTreeMap::new();
        let mut cells: BTreeMap<u64, (Vec<usize>, Counts)> = BTreeMap::new();
        for ((id, cell), counts) in self.places {
            total.add(&counts);
            let id = final_region(id);
            let (low, high, sum) = regions.entry(id).or_insert((cell, cell, Counts::default()));
            (*low, *high) = (cell.min(*low), cell.max(*high));
            sum.add(&counts);
            let (ids, sum) = cells.entry(cell).or_default();
            ids.push(id);
            sum.add(&counts);
        }
        // Merge aligned groups of 2, 4, 8, ... cells, so that ranges have round addresses.
        let mut doublings = 0;
        while cells.len() > RANGES {
            doublings += 1;
            let mut fewer: BTreeMap<u64, (Vec<usize>, Counts)> = BTreeMap::new();
            for (cell, (ids, counts)) in cells {
                let (merged_ids, sum) = fewer.entry(cell >> 1).or_default();
                merged_ids.extend(ids);
                sum.add(&counts);
            }
            cells = fewer;
        }
        let shift = cell_shift + doublings;
        let bounds =
            |low: u64, high: u64, shift: u32| (low << shift, u128::from(high + 1) << shift);
        let name = |id: usize| {
            texts.get(id).cloned().flatten().unwrap_or_else(|| {
                // Code without data references has no bounds.
                let Some((low, high, _)) = regions.get(&id) else { return UNNAMED.to_owned() };
                let (low, high) = bounds(*low, *high, cell_shift);
                format!("{low:#x}-{high:#x}")
            })
        };
        let sites = top_sites(self.sites, programs, |id| name(final_region(id)));
        let ranges = cells
            .into_iter()
            .map(|(cell, (mut ids, counts))| {
                ids.sort_unstable();
                ids.dedup();
                let names: Vec<String> = ids.into_iter().map(name).collect();
                let (addr_low, addr_high) = bounds(cell, cell, shift);
                Place { name: names.join(" + "), addr_low, addr_high, resident_bytes: None, counts }
            })
            .collect();
        // Without region events, 2 MiB blocks are merged into regions only at the end: add up their peaks.
        let mut peaks: FxHashMap<usize, u64> = FxHashMap::default();
        for (id, bytes) in resident.into_iter().flatten().enumerate() {
            *peaks.entry(final_region(id as u32)).or_default() += bytes;
        }
        let mut regions: Vec<Place> = regions
            .iter()
            .map(|(&id, &(low, high, counts))| {
                let (addr_low, addr_high) = bounds(low, high, cell_shift);
                let resident_bytes = resident.map(|_| peaks.get(&id).copied().unwrap_or(0));
                Place { name: name(id), addr_low, addr_high, resident_bytes, counts }
            })
            .collect();
        regions.sort_by_key(|r| {
            (
                std::cmp::Reverse(r.counts.tlb_misses + r.counts.faults + r.counts.minor_faults),
                r.addr_low,
            )
        });
        let kernel = self.kernel;
        // Set by the caller.
        let (lifetimes, kernel_instructions) = (false, 0);
        Explained { lifetimes, total, kernel, kernel_instructions, regions, ranges, sites }
    }
}
