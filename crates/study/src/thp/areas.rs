//! Costs by area. An area is a mapping, named as in `nearfar explain`.

use std::collections::BTreeMap;

use nearfar_trace::{Reader, Result};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::info::names::Names;
use crate::lifetimes::{self, Change, PAGE_SHIFT};
use crate::paging::machine::areas::AreaCosts;
use crate::paging::machine::observe::Observe;
use crate::paging::machine::touches::Chunk;
use crate::paging::machine::waits::{PageSize, Watch};

/// An area under a policy. Times are averages per reference of the program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Area {
    pub policy: String,
    /// Name of the mapping in which its pages were first touched.
    pub area: String,
    /// Waiting for TLBs, page walks, caches and memory.
    pub wait_ns: f64,
    /// Faults and swap.
    pub fault_ns: f64,
    /// Part of `fault_ns`: faults that raise the peak of private memory, or map existing pages.
    pub start_ns: f64,
    /// Mean private memory.
    pub mean_bytes: f64,
    /// Part of `mean_bytes` in pages larger than 4 KiB.
    pub large_bytes: f64,
}

/// Records the area of each new block (a 4 KiB page at its first touch) in each chunk of the trace.
pub struct Areas {
    names: Names,
    /// Thread of the last record.
    thread: usize,
    /// Areas of the new blocks of the current chunk, in order.
    born: Vec<u32>,
    /// Number of changes of the current chunk that were processed.
    seen: usize,
    /// By area: first and last page of new blocks.
    bounds: FxHashMap<u32, (u64, u64)>,
    /// Faults that mapped pages of the page cache, by area.
    maps: FxHashMap<u32, u64>,
    /// Sum of `maps`.
    mapped: u64,
}

impl Areas {
    /// The state before the first record.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn new(reader: &Reader) -> Result<Self> {
        Ok(Self {
            names: Names::new(reader)?,
            thread: usize::MAX,
            born: Vec::new(),
            seen: 0,
            bounds: FxHashMap::default(),
            maps: FxHashMap::default(),
            mapped: 0,
        })
    }

    /// Take the areas of the new blocks of a finished chunk.
    pub fn take(&mut self) -> Vec<u32> {
        self.seen = 0;
        std::mem::take(&mut self.born)
    }

    pub fn finish(self) -> Named {
        let (merged, mut texts) = self.names.finish();
        let final_id = |id: u32| merged.get(id as usize).copied().unwrap_or(id);
        // Without events, an area is a touched address range, which is its name.
        let mut bounds: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        for (id, (low, high)) in self.bounds {
            let total = bounds.entry(final_id(id)).or_insert((low, high));
            *total = (low.min(total.0), high.max(total.1));
        }
        for (id, (low, high)) in bounds {
            if let Some(text) = texts.get_mut(id as usize) {
                text.get_or_insert_with(|| {
                    format!("{:#x}-{:#x}", low << PAGE_SHIFT, (high + 1) << PAGE_SHIFT)
                });
            }
        }
        Named { merged, texts, maps: self.maps }
    }
}

/// The names of all areas.
pub struct Named {
    /// Final area by region id of [`Names`].
    merged: Vec<u32>,
    texts: Vec<Option<String>>,
    maps: FxHashMap<u32, u64>,
}

impl Named {
    /// The areas under a policy, in order of first touch. `map_ns`: time of a fault that maps a page of
    /// the page cache.
    pub fn rows(
        &self,
        policy: &str,
        page_size: &mut PageSize,
        (references, lasted_ns, map_ns): (u64, f64, f64),
    ) -> Vec<Area> {
        let costs = page_size.areas().unwrap_or_default();
        let mut areas: BTreeMap<u32, Area> = BTreeMap::new();
        let ns = |total: f64| total / references.max(1) as f64;
        let mut add = |id: u32, cost: &AreaCosts, maps: u64| {
            let id = self.merged.get(id as usize).copied().unwrap_or(id);
            let area = areas.entry(id).or_insert_with(|| Area {
                policy: policy.to_owned(),
                area: self.texts.get(id as usize).cloned().flatten().unwrap_or_default(),
                ..Area::default()
            });
            let maps_ns = maps as f64 * map_ns;
            area.wait_ns += ns(page_size.waited_ns(cost.wait_ps));
            area.fault_ns += ns(cost.fault_ps as f64 / 1e3 + maps_ns);
            area.start_ns += ns(cost.start_ps as f64 / 1e3 + maps_ns);
            let [mean, large] = cost.page_ns.map(|sum| sum * 4096.0 / lasted_ns.max(1.0));
            area.mean_bytes += mean;
            area.large_bytes += large;
        };
        for (id, cost) in (0..).zip(costs.all()) {
            add(id, cost, 0);
        }
        for (&id, &maps) in &self.maps {
            add(id, &AreaCosts::default(), maps);
        }
        areas
            .into_values()
            .filter(|area| area.wait_ns + area.fault_ns + area.mean_bytes > 0.0)
            .collect()
    }
}

impl Observe for Areas {
    #[inline]
    fn record(&mut self, at: u64, thread: usize, _addr: u64, _kind: u8) {
        self.names.advance(at);
        if self.thread != thread {
            self.thread = thread;
            self.names.switch_to(thread as u32);
        }
    }

    fn touched(&mut self, chunk: &Chunk, number: u64, maps: u64) {
        // `maps` counts all faults so far that mapped pages of the page cache.
        let new = &chunk.changes[self.seen..];
        let born = new.iter().any(|(_, (change, _))| matches!(change, Change::Born { .. }));
        self.seen = chunk.changes.len();
        if !born && maps == self.mapped {
            return;
        }
        let page = lifetimes::address(number << PAGE_SHIFT) >> PAGE_SHIFT;
        let area = self.names.region(page);
        if born {
            self.born.push(area);
            let (low, high) = self.bounds.entry(area).or_insert((page, page));
            (*low, *high) = (page.min(*low), page.max(*high));
        }
        *self.maps.entry(area).or_default() += maps - self.mapped;
        self.mapped = maps;
    }
}

/// The areas of the new blocks of a chunk.
pub struct Born<'a>(pub std::slice::Iter<'a, u32>);

impl Watch for Born<'_> {
    fn area(&mut self, change: &Change) -> u32 {
        match change {
            Change::Born { .. } => self.0.next().copied().unwrap_or_default(),
            _ => 0,
        }
    }
}
