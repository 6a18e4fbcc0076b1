//! Regions of the address space, from the counts of the pass over the trace.

use super::pass::{Counts, PageState};
use super::{PAGE_SHIFT, REGIONS, Region};

/// All regions in order of their final ids, touched or not. `counts` and `touched_pages` are by the region
/// ids of the pass; `final_region` returns the final id, which several of these can share.
pub fn regions(
    state: &[PageState],
    counts: &[Counts],
    touched_pages: &[u64],
    final_region: &impl Fn(u32) -> u32,
    names: Vec<Option<String>>,
) -> Vec<Region> {
    let mut bounds = vec![(u64::MAX, 0u64); names.len()];
    for page in state {
        let (low, high) = &mut bounds[final_region(page.region) as usize];
        *low = page.number.min(*low);
        *high = page.number.max(*high);
    }
    let mut regions: Vec<Region> = names
        .into_iter()
        .zip(bounds)
        .map(|(name, (low, high))| {
            // A region without pages at the end of the trace has no bounds.
            let has_pages = low <= high;
            let addr_low = has_pages.then_some(low << PAGE_SHIFT);
            let addr_high = has_pages.then_some(u128::from(high + 1) << PAGE_SHIFT);
            let range = || format!("{:#x}-{:#x}", addr_low.unwrap_or(0), addr_high.unwrap_or(0));
            Region { name: name.unwrap_or_else(range), addr_low, addr_high, ..Region::default() }
        })
        .collect();
    for (id, (counts, pages)) in counts.iter().zip(touched_pages).enumerate() {
        let region = &mut regions[final_region(id as u32) as usize];
        let [loads, stores, fetches, kernel_loads, kernel_stores, kernel_fetches, ..] = *counts;
        add(
            region,
            &Region {
                pages: *pages,
                records: counts.iter().sum(),
                loads,
                stores,
                fetches,
                kernel_loads,
                kernel_stores,
                kernel_fetches,
                ..Region::default()
            },
        );
    }
    regions
}

fn add(to: &mut Region, other: &Region) {
    to.pages += other.pages;
    to.records += other.records;
    to.loads += other.loads;
    to.stores += other.stores;
    to.fetches += other.fetches;
    to.kernel_loads += other.kernel_loads;
    to.kernel_stores += other.kernel_stores;
    to.kernel_fetches += other.kernel_fetches;
}

/// Touched regions, most records first; those beyond [`REGIONS`] are summed up.
pub fn hottest(mut regions: Vec<Region>) -> Vec<Region> {
    regions.retain(|region| region.pages > 0);
    // A stable sort keeps equally hot regions in the order in which they were mapped.
    regions.sort_by_key(|region| std::cmp::Reverse(region.records));
    if regions.len() > REGIONS {
        let rest = regions.split_off(REGIONS);
        let name = format!("({} others)", rest.len());
        let mut others = Region { name, ..Region::default() };
        rest.iter().for_each(|region| add(&mut others, region));
        regions.push(others);
    }
    regions
}
