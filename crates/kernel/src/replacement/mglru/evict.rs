//! Eviction from the oldest generations.

use super::{
    ANON, AccessBits, FILE, FILES, GENERATION, Generations, ISOLATED, LAZY, MAX_SWAPPINESS,
    MIN_GENERATIONS, PRIORITY, PageTables, REFERENCED, REWRITTEN, SCANS_PER_PAGE, kind, slot,
};

impl Generations {
    /// `try_to_inc_min_seq`. Returns whether a generation was dropped.
    fn drop_empty(&mut self, swappiness: u64) -> bool {
        // With swappiness 0, only files.
        let first = usize::from(swappiness == 0);
        let mut seqs = self.min_seq;
        for (kind, seq) in seqs.iter_mut().enumerate().skip(first) {
            while *seq + MIN_GENERATIONS <= self.max_seq && self.lists[slot(*seq)][kind].is_empty()
            {
                *seq += 1;
            }
        }
        if swappiness > 0 {
            // Drop only generations that are empty for both types.
            seqs[ANON] = seqs[ANON].min(seqs[FILES]);
            seqs[FILES] = seqs[ANON].max(self.min_seq[FILES]);
        }
        let mut dropped = false;
        for (kind, &seq) in seqs.iter().enumerate() {
            if seq != self.min_seq[kind] {
                self.set_min_seq(kind, seq);
                dropped = true;
            }
        }
        dropped
    }

    /// `should_run_aging`, and how many pages can be scanned.
    fn should_age(&self, swappiness: u64) -> (bool, u64) {
        // With swappiness 0, only files.
        let first = usize::from(swappiness == 0);
        let oldest = self.min_seq[first];
        if oldest + MIN_GENERATIONS > self.max_seq {
            return (true, 0);
        }
        let (mut old, mut young, mut total) = (0, 0, 0);
        for kind in first..2 {
            let size = |seq: u64| self.sizes[slot(seq)][kind];
            total += (self.min_seq[kind]..=self.max_seq).map(size).sum::<u64>();
            young += size(self.max_seq);
            if self.min_seq[kind] + MIN_GENERATIONS <= self.max_seq {
                old += size(self.max_seq - MIN_GENERATIONS);
            }
        }
        let uneven = young * MIN_GENERATIONS > total || old * (MIN_GENERATIONS + 2) < total;
        (oldest + MIN_GENERATIONS == self.max_seq && uneven, total)
    }

    /// `scan_folios`: isolate up to a batch of the oldest pages. Returns how many were scanned;
    /// 0 if the list ended before the limit without a page to isolate.
    fn isolate(&mut self, kind: usize, bits: &impl AccessBits) -> u64 {
        if self.generations(kind) == MIN_GENERATIONS {
            return 0;
        }
        let (oldest, limit) = (slot(self.min_seq[kind]), self.batch * SCANS_PER_PAGE);
        let mut scanned = 0;
        while let Some(page) = self.pages.pop(&mut self.lists[oldest][kind], bits) {
            scanned += 1;
            let generation = (self.pages[page] & GENERATION) as usize;
            self.sizes[generation][kind] -= 1;
            if generation == oldest {
                self.pages[page] |= ISOLATED;
                self.isolated.push(page);
            } else {
                self.push(page, generation);
            }
            if scanned == limit || self.isolated.len() as u64 == self.batch {
                break;
            }
        }
        if self.isolated.is_empty() && scanned < limit { 0 } else { scanned }
    }

    /// `get_type_to_scan`, with the constants that `positive_ctrl_err` adds. All counts are of tier 0.
    fn type_to_scan(&self, swappiness: u64) -> usize {
        let [anon, files] = &self.feedback;
        let refaulted =
            u128::from(files.refaults() * swappiness) * u128::from(anon.evictions() + self.batch);
        let allowed = u128::from((anon.refaults() + 1) * (MAX_SWAPPINESS - swappiness))
            * u128::from(files.evictions());
        usize::from(files.refaults() < self.batch || refaulted <= allowed)
    }

    /// `evict_folios`. Returns how many pages were scanned, 0 without progress.
    fn evict(&mut self, swappiness: u64, tables: &PageTables, bits: &mut impl AccessBits) -> u64 {
        let kind = match swappiness {
            0 => FILES,
            _ if self.min_seq[ANON] < self.min_seq[FILES] => ANON,
            1 => FILES,
            MAX_SWAPPINESS => ANON,
            _ => self.type_to_scan(swappiness),
        };
        let mut scanned = self.isolate(kind, bits);
        if scanned == 0 && swappiness > 0 {
            scanned = self.isolate(1 - kind, bits);
        }
        scanned += u64::from(self.drop_empty(swappiness));
        if self.generations(usize::from(swappiness == 0)) == MIN_GENERATIONS {
            // No generation is old: aging must come first.
            scanned = 0;
        }
        let mut isolated = std::mem::take(&mut self.isolated);
        isolated.retain(|&page| !self.shrink(page, tables, bits));
        for &page in &isolated {
            self.pages[page] &= !(ISOLATED | REFERENCED);
            self.push(page, slot(self.max_seq));
        }
        isolated.clear();
        self.isolated = isolated;
        scanned
    }

    /// `shrink_folio_list` for one page. Returns whether it is evicted.
    fn shrink(&mut self, page: u32, tables: &PageTables, bits: &mut impl AccessBits) -> bool {
        let flags = self.pages[page];
        if flags & REFERENCED != 0 {
            return false;
        }
        if bits.test(page) {
            self.look_around(page, tables, bits);
            return false;
        }
        if flags & REWRITTEN != 0 {
            self.pages[page] &= !(FILE | LAZY | REWRITTEN);
            return false;
        }
        if flags & LAZY != 0 {
            self.pages.forget(page);
        } else {
            self.pages[page] &= FILE;
            let kind = kind(flags);
            self.feedback[kind].evicted += 1;
            self.pages.set_time(page, self.min_seq[kind] + 1);
        }
        self.evicted.push(page);
        true
    }

    /// Evict at least one page, and half a batch if possible.
    pub(super) fn reclaim(&mut self, tables: &PageTables, bits: &mut impl AccessBits) {
        let files: u64 = self.sizes.iter().map(|sizes| sizes[FILES]).sum();
        let mut swappiness = self.setup.swappiness.max(u64::from(files == 0));
        // Terminates: no accessed bit is set during reclaim, and each round ages until pages are
        // old.
        loop {
            let mut priority = PRIORITY;
            loop {
                let highest = self.shrink_all(priority, swappiness, tables, bits);
                if self.evicted.len() as u64 >= self.goal || priority == 0 {
                    break;
                }
                priority = highest.min(priority - 1);
            }
            if !self.evicted.is_empty() {
                return;
            }
            swappiness = swappiness.max(1);
        }
    }

    /// `try_to_shrink_lruvec` at one priority. Returns a priority above which the next call would
    /// neither scan nor age.
    fn shrink_all(
        &mut self,
        priority: u32,
        swappiness: u64,
        tables: &PageTables,
        bits: &mut impl AccessBits,
    ) -> u32 {
        let mut scanned = 0;
        loop {
            let (should_age, total) = self.should_age(swappiness);
            if should_age && priority < PRIORITY {
                self.age(swappiness, tables, bits);
                return PRIORITY;
            }
            let goal = total >> priority;
            if goal == 0 {
                return if should_age { PRIORITY } else { total.max(1).ilog2() };
            }
            let progress = self.evict(swappiness, tables, bits);
            scanned += progress;
            if progress == 0 || scanned >= goal {
                return PRIORITY;
            }
        }
    }
}
