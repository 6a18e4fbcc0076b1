//! Which huge pages Memtis splits: the most skewed ones, in proportion to the expected gain in hits.
//!
//! Follows `check_transhuge_cooling`, `set_memcg_nr_split` and `update_pginfo` of Memtis's kernel. Base pages
//! are counted as well. A sample of a base page that was already hot would be a hit if all pages were
//! base pages. The gain is the share of such samples, less the share of samples in the fast node.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::super::{Memory, Page};
use super::counts::{COUNTED, Counts, Histogram, WEIGHT, bin};
use super::{MemtisKnobs, base_pages};

/// Flag of a base page that was hot at its last sample or halving: Memtis's `may_hot`.
const WAS_HOT: u8 = COUNTED << 1;
/// Huge pages in this bin or above are hot throughout, and are not split.
const VERY_HOT: usize = 13;
/// Maximum splits in a step of a migration thread: `deferred_split_scan_for_htmm`.
const MAX_SPLITS: usize = 50;

/// Samples since counts were last halved (`now`), and a sum of earlier ones, which each halving halves.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    now: u64,
    before: u64,
}

impl Samples {
    fn halve(&mut self) {
        self.before = self.before / 2 + self.now;
        self.now = 0;
    }
}

/// Counts of base pages, and huge pages to split.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// By base page; empty until there is a huge page.
    counts: Counts,
    /// The lowest bin of hot base pages.
    threshold: usize,
    /// Samples in the fast node.
    fast: Samples,
    /// Samples of base pages with [`WAS_HOT`].
    hot_base: Samples,
    /// `fast.before` before the last halving.
    previous_fast: u64,
    since_split: u64,
    halvings: u32,
    /// Huge pages with hot base pages, and the skews of those that are not hot throughout.
    in_use: u64,
    skews: Vec<(u32, Page)>,
    must_choose: bool,
    has_split: bool,
    stopped: bool,
    queue: VecDeque<Page>,
    cooling_samples: u64,
    period: u64,
    gain: f64,
}

impl Splitter {
    pub(super) fn new(knobs: &MemtisKnobs, threshold: usize) -> Self {
        Self {
            threshold,
            stopped: !knobs.split,
            cooling_samples: knobs.cooling_samples,
            period: knobs.split_period.min(63),
            gain: knobs.split_gain,
            ..Self::default()
        }
    }

    pub(super) fn bins(&self) -> &Histogram {
        &self.counts.bins
    }

    /// The count of a base page.
    pub(super) fn count_of(&self, page: Page) -> u32 {
        self.counts.of.get(page.index()).copied().unwrap_or_default()
    }

    /// Whether pages were split since the last decision to split.
    pub(super) fn has_split(&self) -> bool {
        self.has_split
    }

    pub(super) fn allocated(&mut self, mem: &dyn Memory, page: Page, span: u32, count: u32) {
        if span > 1 && self.is_off() {
            self.counts = Counts::new(mem.page_limit());
        }
        if !self.is_off() {
            self.counts.of[base_pages(page, span)].fill(count);
            self.counts.flags[base_pages(page, span)].fill(0);
        }
    }

    pub(super) fn released(&mut self, page: Page, span: u32) {
        self.forget(page, span);
        if !self.is_off() {
            self.counts.of[base_pages(page, span)].fill(0);
        }
    }

    /// Remove the counts of a mapping from the histogram.
    pub(super) fn forget(&mut self, page: Page, span: u32) {
        if self.is_off() {
            return;
        }
        for at in base_pages(page, span) {
            self.counts.uncount(at, 1);
            self.counts.flags[at] = 0;
        }
    }

    /// Whether base pages are not counted, because there was no huge page yet.
    fn is_off(&self) -> bool {
        self.counts.of.is_empty()
    }

    /// Set the count of a base page, and [`WAS_HOT`] if the count `unhalved` reaches the threshold.
    fn count(&mut self, at: usize, count: u32, unhalved: u32) {
        self.counts.set(at, 1, count);
        let was_hot = if bin(unhalved) >= self.threshold { WAS_HOT } else { 0 };
        self.counts.flags[at] = COUNTED | was_hot;
    }

    /// A sample of a base page, in the fast node or not.
    pub(super) fn sample(&mut self, page: Page, fast: bool) {
        self.fast.now += u64::from(fast);
        self.since_split += 1;
        if self.is_off() {
            return;
        }
        let at = page.index();
        self.hot_base.now += u64::from(self.counts.flags[at] & WAS_HOT != 0);
        let count = self.counts.of[at].saturating_add(WEIGHT);
        self.count(at, count, count);
    }

    /// Counts are about to be halved.
    pub(super) fn begin_cooling(&mut self) {
        self.threshold = self.threshold.saturating_sub(1);
        self.halvings = self.halvings.saturating_add(1);
        self.previous_fast = self.fast.before;
        self.fast.halve();
        self.hot_base.halve();
        self.in_use = 0;
        self.skews.clear();
    }

    /// Halve the counts of a mapping's base pages. The mapping's own count, halved, is in bin `own_bin`.
    pub(super) fn cool(&mut self, page: Page, span: u32, own_bin: usize, threshold: usize) {
        if self.is_off() {
            return;
        }
        let (mut hot, mut squares) = (0u64, 0u64);
        for at in base_pages(page, span) {
            let count = self.counts.of[at];
            hot += u64::from(bin(count) >= self.threshold.min(threshold));
            squares = squares.saturating_add(u64::from(count).pow(2));
            self.count(at, count / 2, count);
        }
        if span > 1 && hot > 0 {
            self.in_use += 1;
            if own_bin < VERY_HOT {
                // Memtis's kernel divides by 11, to "scale down".
                self.skews.push((skew_bin(squares / 11 / hot / hot), page));
            }
        }
    }

    /// Counts were halved: decide whether to split, with `used` frames of memory and a fast node of
    /// `capacity`.
    pub(super) fn end_cooling(&mut self, used: u64, capacity: u64) {
        if self.must_choose || self.stopped || self.is_off() {
            return;
        }
        if self.since_split <= capacity.max(used >> self.period) {
            // Too early for more splits: choose as many as are still queued, by the new skews.
            return self.choose(self.queue.len());
        }
        // The last splits did not raise the hit ratio by 3 %.
        if self.has_split && self.fast.before * 100 < self.previous_fast * 103 {
            self.stopped = true;
            return;
        }
        self.has_split = false;
        self.must_choose = true;
    }

    /// Adapt the threshold of base pages to `lowest`, at which those that are hot fit the fast node. After a
    /// halving (`cooled`), only lower it, and choose huge pages to split if that is due.
    pub(super) fn adapt(&mut self, lowest: usize, cooled: bool) {
        if !cooled {
            self.threshold = lowest;
            return;
        }
        self.threshold = self.threshold.min(lowest);
        if std::mem::take(&mut self.must_choose) {
            self.since_split = 0;
            // `set_memcg_nr_split` takes 95 % of the expected hits.
            let gain = (self.hot_base.before * 95 / 100).saturating_sub(self.fast.before);
            // All samples, halved as often as the sums: `cooling_samples` x (1 + 1/2 + 1/4 + ...).
            let halved =
                self.cooling_samples.checked_shr(self.halvings.saturating_sub(1)).unwrap_or(0);
            let samples = (2 * self.cooling_samples - halved).max(1);
            let pages = gain as f64 / samples as f64 * self.in_use as f64 * self.gain;
            self.choose(pages.ceil() as usize);
        }
    }

    /// Queue the most skewed huge pages for splitting.
    fn choose(&mut self, pages: usize) {
        self.skews.sort_by_key(|(skew, page)| (Reverse(*skew), *page));
        let skewed = self.skews.iter().filter(|(skew, _)| *skew > 0);
        self.queue = skewed.take(pages).map(|(_, page)| *page).collect();
    }

    /// The next huge pages to split.
    pub(super) fn take(&mut self) -> Vec<Page> {
        let some = self.queue.len().min(MAX_SPLITS);
        self.has_split |= some > 0;
        self.queue.drain(..some).collect()
    }
}

/// `get_skew_idx`, at most 20.
fn skew_bin(skew: u64) -> u32 {
    match skew {
        0..1024 => u64::BITS - skew.leading_zeros(),
        _ => 11 + ((skew - 1) / 1024).min(9) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::skew_bin;

    #[test]
    fn skew_bins_are_those_of_get_skew_idx() {
        let bins = [0, 1, 2, 3, 4, 1023, 1024, 1025, 2048, 2049, u64::MAX].map(skew_bin);
        assert_eq!(bins, [0, 1, 2, 2, 3, 10, 11, 12, 12, 13, 20]);
    }
}
