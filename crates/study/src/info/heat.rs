//! The heat map: touches by address and time. Rows are touched pages only, in ascending order,
//! neighbours merged until at most [`ROWS`] are left.

use nearfar_trace::{Batch, Columns, Error, Reader, Result};
use serde::Serialize;

use super::pages::Pages;
use super::{BINS, OnProgress, PAGE_SHIFT, last_page};

/// Most rows of the map.
pub const ROWS: usize = 256;

/// One row: touched pages from `addr_low` up to, but not including, `addr_high`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressBin {
    /// First byte of its first page.
    pub addr_low: u64,
    /// Byte after its last page; may be 2^64.
    pub addr_high: u128,
    /// Name of its region (of the one with most pages, where it had to span several).
    pub label: String,
    /// Touched pages in it.
    pub pages: u64,
}

/// Touches by address and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeatMap {
    /// Columns of `counts`.
    pub time_bins: usize,
    /// Rows of `counts`, by ascending address.
    pub address_bins: Vec<AddressBin>,
    /// `counts[row][time]`: records that touched the row; one over a border counts in both rows.
    pub counts: Vec<Vec<u64>>,
    /// Records in a column; the last one may have fewer.
    pub records_per_bin: u64,
    /// Seconds of the capture at which a column begins, and at which the last one ends, where known.
    pub seconds: Option<Vec<f64>>,
}

/// Divide touched pages, given as (page, region) in ascending order of the page, into at most
/// [`ROWS`] rows: returns how many pages each takes. No row spans a change of region unless there
/// are more changes than rows.
pub fn divide(pages: &[(u64, u32)]) -> Vec<usize> {
    let runs: Vec<usize> = pages.chunk_by(|a, b| a.1 == b.1).map(<[_]>::len).collect();
    if runs.len() > ROWS {
        return even(pages.len(), ROWS);
    }
    let rows = |most: usize| runs.iter().map(|run| run.div_ceil(most)).sum::<usize>();
    // The least number of pages per row for which the rows suffice.
    let (mut low, mut high) = (1, runs.iter().copied().max().unwrap_or(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if rows(middle) <= ROWS {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    runs.into_iter().flat_map(|run| even(run, run.div_ceil(low))).collect()
}

/// `count` in `parts` shares that differ by one at most.
fn even(count: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|i| count * (i + 1) / parts - count * i / parts).collect()
}

/// Fill the map in one pass over the trace. `touched` gives page, region and id of every page;
/// `name` the name of a region.
pub fn fill(
    reader: &Reader,
    pages: &mut Pages,
    mut touched: Vec<(u64, u32, u32)>,
    name: impl Fn(u32) -> String,
    records: u64,
    on_progress: OnProgress<'_>,
) -> Result<HeatMap> {
    touched.sort_unstable();
    let plain: Vec<(u64, u32)> = touched.iter().map(|&(page, region, _)| (page, region)).collect();
    let shares = divide(&plain);
    drop(plain);
    let mut row_of = vec![0u8; pages.len()];
    let mut address_bins = Vec::new();
    let mut from = 0;
    for (row, share) in shares.into_iter().enumerate() {
        let members = &touched[from..from + share];
        from += share;
        let mut regions: Vec<u32> = members.iter().map(|m| m.1).collect();
        regions.sort_unstable();
        let main = regions.chunk_by(|a, b| a == b).max_by_key(|run| run.len());
        let others = regions.chunk_by(|a, b| a == b).count().saturating_sub(1);
        let (Some(first), Some(last), Some(main)) = (members.first(), members.last(), main) else {
            continue;
        };
        for member in members {
            row_of[member.2 as usize] = row as u8;
        }
        let mut label = name(main[0]);
        if others > 0 {
            label.push_str(&format!(" and {others} more"));
        }
        address_bins.push(AddressBin {
            addr_low: first.0 << PAGE_SHIFT,
            addr_high: u128::from(last.0 + 1) << PAGE_SHIFT,
            label,
            pages: share as u64,
        });
    }
    drop(touched);

    let per_bin = records.div_ceil(BINS).max(1);
    let time_bins = records.div_ceil(per_bin) as usize;
    let mut flat = vec![0u64; time_bins * ROWS];
    let mut batches = reader.batches(Columns { kind: false, ..Columns::PAGING });
    let mut batch = Batch::default();
    let changed = || {
        let place = reader.path().display().to_string();
        Error::input(place, "changed while it was read", "run again when it is finished")
    };
    let (mut done, mut next_progress) = (0u64, 0);
    while batches.next_into(&mut batch)? {
        for (i, (&addr, &size)) in batch.addr.iter().zip(&batch.size).enumerate() {
            let column = ((done + i as u64) / per_bin) as usize * ROWS;
            let column = flat.get_mut(column..column + ROWS).ok_or_else(changed)?;
            let mut last = None;
            for page in addr >> PAGE_SHIFT..=last_page(addr, size) {
                let row = row_of[pages.find(page).ok_or_else(changed)? as usize];
                if last != Some(row) {
                    column[usize::from(row)] += 1;
                    last = Some(row);
                }
            }
        }
        done += batch.len() as u64;
        if done >= next_progress {
            on_progress(done)?;
            next_progress = done + super::PROGRESS_STEP;
        }
    }
    let counts = (0..address_bins.len())
        .map(|row| (0..time_bins).map(|time| flat[time * ROWS + row]).collect())
        .collect();
    let edges = (0..=time_bins as u64).map(|bin| (bin * per_bin).min(records));
    let seconds =
        reader.info().clock.as_ref().map(|clock| edges.map(|at| clock.seconds(at)).collect());
    Ok(HeatMap { time_bins, address_bins, counts, records_per_bin: per_bin, seconds })
}
