//! The heat map: touches by address and time. Its rows are the touched pages in ascending order,
//! merged to at most [`ROWS`].

use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, Error, Reader, Result};
use serde::Serialize;

use super::{BINS, OnProgress, PAGE_SHIFT, TwoThreads, last_page};

/// Maximum number of rows.
pub const ROWS: usize = 256;

/// One row: touched pages from `addr_low` up to, but not including, `addr_high`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AddressBin {
    /// First byte of the first page.
    pub addr_low: u64,
    /// Byte after the last page; may be 2^64.
    pub addr_high: u128,
    /// Name of the region with most pages, and the number of other regions.
    pub label: String,
    /// Touched pages.
    pub pages: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeatMap {
    /// Number of columns of `counts`.
    pub time_bins: usize,
    /// Rows of `counts`, by ascending address.
    pub address_bins: Vec<AddressBin>,
    /// `counts[row][time]`: records that touched the row; a record can count in several rows.
    pub counts: Vec<Vec<u64>>,
    /// Records per column; the last one may have fewer.
    pub records_per_bin: u64,
    /// Start of each column and end of the last one, in seconds since the first record, if known.
    pub seconds: Option<Vec<f64>>,
}

/// Divide touched pages, given as (page, region) in ascending order of pages, into at most [`ROWS`]
/// rows. Returns the number of pages of each row. A row has one region, unless there are more than
/// [`ROWS`] runs of pages with one region.
pub fn divide(pages: &[(u64, u32)]) -> Vec<usize> {
    let runs: Vec<usize> = pages.chunk_by(|a, b| a.1 == b.1).map(<[_]>::len).collect();
    if runs.len() > ROWS {
        return even(pages.len(), ROWS);
    }
    let rows = |max_pages: usize| runs.iter().map(|run| run.div_ceil(max_pages)).sum::<usize>();
    // Binary search for the minimum number of pages per row.
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

/// Split `count` into `parts` shares that differ by at most one.
fn even(count: usize, parts: usize) -> Vec<usize> {
    (0..parts).map(|i| count * (i + 1) / parts - count * i / parts).collect()
}

/// Maps pages to rows.
struct Rows {
    first: [u64; ROWS],
    last: [u64; ROWS],
    /// A direct-mapped cache: page << [`ROW_BITS`] | row.
    recent: [u64; RECENT],
}

const RECENT: usize = 1 << 10;
const ROW_BITS: u32 = ROWS.ilog2();

impl Rows {
    /// From the first and last page of each row, ascending.
    fn new(rows: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut map = Self { first: [u64::MAX; ROWS], last: [0; ROWS], recent: [u64::MAX; RECENT] };
        for (row, (first, last)) in rows.take(ROWS).enumerate() {
            (map.first[row], map.last[row]) = (first, last);
        }
        map
    }

    #[inline]
    fn find(&mut self, page: u64) -> Option<usize> {
        let index = (page ^ page >> 10) as usize % RECENT;
        let cached = self.recent[index];
        if cached >> ROW_BITS == page {
            return Some(cached as usize % ROWS);
        }
        let row = self.search(page)?;
        self.recent[index] = page << ROW_BITS | row as u64;
        Some(row)
    }

    /// Branch-free binary search.
    fn search(&self, page: u64) -> Option<usize> {
        let mut row = 0;
        let mut step = ROWS / 2;
        while step > 0 {
            // `row + step` is below `ROWS`; the remainder avoids a bounds check.
            row += if self.first[(row + step) % ROWS] <= page { step } else { 0 };
            step /= 2;
        }
        (self.first[row] <= page && page <= self.last[row]).then_some(row)
    }
}

const _: () = assert!(ROWS.is_power_of_two());

/// Fill the map in one pass over the trace. `touched` has (page, region) of every touched page;
/// `name` returns the name of a region.
///
/// # Errors
/// If the trace cannot be read or has changed; errors of `on_progress`.
pub fn fill(
    reader: &Reader,
    threads: &TwoThreads,
    mut touched: Vec<(u64, u32)>,
    name: impl Fn(u32) -> String,
    on_progress: OnProgress<'_>,
) -> Result<HeatMap> {
    touched.sort_unstable();
    let address_bins = address_bins(&touched, name);
    drop(touched);
    let mut rows = Rows::new(
        address_bins
            .iter()
            .map(|bin| (bin.addr_low >> PAGE_SHIFT, ((bin.addr_high - 1) >> PAGE_SHIFT) as u64)),
    );

    let records = reader.info().records;
    let per_bin = records.div_ceil(BINS).max(1);
    let time_bins = records.div_ceil(per_bin) as usize;
    let mut columns = vec![[0u64; ROWS]; time_bins];
    let mut groups = reader.groups(Columns { kind: false, ..Columns::PAGING });
    let mut batch = Batch::default();
    let (mut done, mut next_progress) = (0u64, 0);
    let mut group = groups.next()?;
    while let Some(mut current) = group {
        // Decompress the next row group while counting this one.
        let (next, counted) = threads.join(
            || groups.next(),
            || {
                while current.next_into(Batches::MAX, &mut batch)? {
                    count(&mut rows, &batch, done, per_bin, &mut columns)
                        .ok_or_else(|| changed(reader))?;
                    done += batch.len() as u64;
                }
                Ok(())
            },
        );
        counted?;
        group = next?;
        if done >= next_progress {
            on_progress(done)?;
            next_progress = done + super::PROGRESS_STEP;
        }
    }
    let counts = (0..address_bins.len())
        .map(|row| columns.iter().map(|column| column[row]).collect())
        .collect();
    let edges = (0..=time_bins as u64).map(|bin| (bin * per_bin).min(records));
    let seconds =
        reader.info().clock.as_ref().map(|clock| edges.map(|at| clock.seconds(at)).collect());
    Ok(HeatMap { time_bins, address_bins, counts, records_per_bin: per_bin, seconds })
}

fn changed(reader: &Reader) -> Error {
    let place = reader.path().display().to_string();
    Error::input(place, "changed while it was read", "run again when the capture is finished")
}

/// Count the records of `batch`, whose first has number `from`. Returns `None` for a page or time
/// outside the map.
fn count(
    rows: &mut Rows,
    batch: &Batch,
    from: u64,
    per_bin: u64,
    columns: &mut [[u64; ROWS]],
) -> Option<()> {
    let mut at = 0;
    while at < batch.len() {
        let record = from + at as u64;
        let left = usize::try_from(per_bin - record % per_bin).unwrap_or(usize::MAX);
        let to = batch.len().min(at.saturating_add(left));
        let column = columns.get_mut((record / per_bin) as usize)?;
        for (&addr, &size) in batch.addr[at..to].iter().zip(&batch.size[at..to]) {
            let (first, last) = (addr >> PAGE_SHIFT, last_page(addr, size));
            let mut row = rows.find(first)?;
            column[row] += 1;
            for page in first + 1..=last {
                let next = rows.find(page)?;
                column[next] += u64::from(next != row);
                row = next;
            }
        }
        at = to;
    }
    Some(())
}

/// The rows of the map, from touched pages in ascending order.
fn address_bins(touched: &[(u64, u32)], name: impl Fn(u32) -> String) -> Vec<AddressBin> {
    let mut address_bins = Vec::new();
    let mut from = 0;
    for share in divide(touched) {
        let members = &touched[from..from + share];
        from += share;
        let mut regions: Vec<u32> = members.iter().map(|m| m.1).collect();
        regions.sort_unstable();
        let main = regions.chunk_by(|a, b| a == b).max_by_key(|run| run.len());
        let others = regions.chunk_by(|a, b| a == b).count().saturating_sub(1);
        let (Some(first), Some(last), Some(main)) = (members.first(), members.last(), main) else {
            continue;
        };
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
    address_bins
}
