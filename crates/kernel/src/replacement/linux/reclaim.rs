//! Reclaim: which pages leave the lists.

use super::{
    ACTIVE, ACTIVE_FILE, ANON, AccessBits, BATCH, EXECUTABLE, FILE, INACTIVE_ANON, INACTIVE_FILE,
    LAZY, Lists, MARKED, MAX_SWAPPINESS, PRIORITY, REWRITTEN, TYPES, WORKINGSET,
};

impl Lists {
    #[inline(always)]
    pub(super) fn inactive_is_low(&self, kind: usize) -> bool {
        let lengths = self.seen_lengths();
        let [inactive, active] = [lengths[2 * kind], lengths[2 * kind + 1]];
        let ratio = match (inactive + active).saturating_mul(self.bytes_per_page) >> 30 {
            0 => 1,
            gib => (10 * gib).isqrt(),
        };
        inactive * ratio < active
    }

    /// `lru_note_cost`: `io` pages are written or read again, `rotated` pages stay.
    pub(super) fn note_cost(&mut self, kind: usize, io: u64, rotated: u64) {
        let cost = io * BATCH + rotated;
        if cost > 0 {
            self.cost[kind] += cost;
            let pages: u64 = self.seen_lengths().iter().sum();
            if self.cost[0] + self.cost[1] > pages / 4 {
                self.cost = self.cost.map(|cost| cost / 2);
            }
        }
    }

    /// Move up to `count` pages from the active tail to the inactive head.
    fn shrink_active(&mut self, kind: usize, count: u64, bits: &mut impl AccessBits) {
        self.drain();
        let list = 2 * kind + 1;
        let mut rotated = 0;
        for _ in 0..count.min(self.lists[list].len()) {
            let Some(page) = self.pages.pop(&mut self.lists[list], bits) else { break };
            let referenced = bits.test(page);
            bits.clear(page);
            let flags = &mut self.pages[page];
            if referenced && *flags & EXECUTABLE != 0 {
                rotated += 1;
            } else {
                *flags = *flags & !ACTIVE | WORKINGSET;
            }
            self.push_head(page);
        }
        // The clock `age` also ticks for each page that stays active (`move_folios_to_lru`).
        self.age += rotated;
        self.note_cost(kind, 0, rotated);
    }

    /// Scan up to `count` pages of the inactive tail.
    fn shrink_inactive(&mut self, kind: usize, count: u64, bits: &mut impl AccessBits) {
        self.drain();
        let list = 2 * kind;
        let mut written = 0;
        for _ in 0..count.min(self.lists[list].len()) {
            let Some(page) = self.pages.pop(&mut self.lists[list], bits) else { break };
            let flags = &mut self.pages[page];
            if bits.test(page) {
                bits.clear(page);
                if *flags & (MARKED | EXECUTABLE) != 0 {
                    *flags |= ACTIVE;
                }
                *flags |= MARKED;
                self.survivors.push(page);
                continue;
            }
            if *flags & REWRITTEN != 0 {
                *flags = *flags & WORKINGSET | ACTIVE;
                self.survivors.push(page);
                continue;
            }
            if *flags & LAZY != 0 {
                self.pages.forget(page);
            } else {
                *flags &= FILE | EXECUTABLE | WORKINGSET;
                self.age += 1;
                self.pages.set_time(page, self.age);
                written += u64::from(kind == ANON);
            }
            self.evicted.push(page);
        }
        let rotated = self.survivors.len() as u64;
        for index in 0..self.survivors.len() {
            let page = self.survivors[index];
            self.age += u64::from(self.pages[page] & ACTIVE);
            self.push_head(page);
        }
        self.survivors.clear();
        self.note_cost(kind, written, rotated);
    }

    /// `get_scan_count`: how many pages of each list to scan.
    fn scan_counts(&self, priority: u32, deactivate: [bool; 2]) -> [u64; 4] {
        let counts = self.lengths().map(|length| length >> priority);
        let swappiness = self.setup.swappiness;
        let files = self.lists[INACTIVE_FILE].len() + self.lists[ACTIVE_FILE].len();
        let trim = self.seen_lengths()[INACTIVE_FILE] >> priority > 0 && !deactivate[1];
        let only_files = match swappiness {
            0 => files > 0,
            _ => priority > 0 && trim,
        };
        if only_files {
            return [0, 0, counts[2], counts[3]];
        }
        if swappiness == 0 || priority == 0 {
            return counts;
        }
        let weights = [swappiness, MAX_SWAPPINESS - swappiness];
        let costs = self.cost.map(|cost| cost + self.cost.iter().sum::<u64>());
        // Shares are below 600, so that products fit: the sum of `costs` is at most three times each cost.
        let shares =
            TYPES.map(|kind| weights[kind] * (costs[0] + costs[1] + 1) / (costs[kind] + 1));
        let scaled = |count: u64, share: u64| match count * share {
            // The usual case, without a slow division.
            product if product < shares[0] + shares[1] => 0,
            product => product / (shares[0] + shares[1]),
        };
        [0, 1, 2, 3].map(|list| scaled(counts[list], shares[list / 2]))
    }

    /// Evict at least one page, and a whole batch if possible.
    pub(super) fn reclaim(&mut self, bits: &mut impl AccessBits) {
        // Terminates: no accessed bit is set during reclaim. Once the statistics are up to date,
        // `inactive_is_low` holds for an empty inactive list, so repeated scans make every page
        // inactive and unreferenced.
        loop {
            let skipped = self.free_pages(false, bits);
            if self.evicted.is_empty() && skipped {
                self.free_pages(true, bits);
            }
            if !self.evicted.is_empty() {
                return;
            }
            if self.lists[INACTIVE_ANON].len() + self.lists[INACTIVE_FILE].len() == 0 {
                self.drain();
                self.update_statistics();
            }
        }
    }

    /// `do_try_to_free_pages`; `force` is `force_deactivate`. Returns whether an active list was
    /// skipped.
    fn free_pages(&mut self, force: bool, bits: &mut impl AccessBits) -> bool {
        let (mut skipped, mut priority) = (false, PRIORITY);
        loop {
            // Above this priority no list has a page to scan.
            let highest = self.lengths().into_iter().fold(1, u64::max).ilog2();
            if !self.inactive_is_low(ANON) {
                priority = priority.min(highest);
            }
            if priority <= highest {
                skipped |= self.shrink(priority, force, bits);
            } else {
                self.shrink_active(ANON, self.batch, bits);
            }
            if self.evicted.len() as u64 >= self.batch || priority == 0 {
                break;
            }
            priority -= 1;
        }
        self.activated_before = self.seen_activated();
        skipped
    }

    /// `shrink_lruvec`: scan the lists at one priority. Returns whether an active list was skipped.
    fn shrink(&mut self, priority: u32, force: bool, bits: &mut impl AccessBits) -> bool {
        let skipped = self.may_scan(priority) && self.shrink_lists(priority, force, bits);
        if self.inactive_is_low(ANON) {
            self.shrink_active(ANON, self.batch, bits);
        }
        skipped
    }

    /// Whether [`Lists::scan_counts`] may be non-zero. If a list has one page to scan, its share rounds to 0.
    #[inline]
    fn may_scan(&self, priority: u32) -> bool {
        priority == 0
            || self.lengths().iter().any(|length| length >> priority > 1)
            || self.seen_lengths()[INACTIVE_FILE] >> priority > 0
            || !(1..MAX_SWAPPINESS).contains(&self.setup.swappiness)
    }

    /// The scan of [`Lists::shrink`], without the final deactivation.
    fn shrink_lists(&mut self, priority: u32, force: bool, bits: &mut impl AccessBits) -> bool {
        let activated = self.seen_activated();
        let refaulted = TYPES.map(|kind| match self.recent_faults {
            0 => activated[kind] != self.activated_before[kind],
            faults => activated[kind] > 0 && self.faults - self.activated_at[kind] <= faults,
        });
        let deactivate = TYPES.map(|kind| force || refaulted[kind] || self.inactive_is_low(kind));
        let mut skipped = false;
        let targets = self.scan_counts(priority, deactivate);
        let mut left = targets;
        let before = self.evicted.len() as u64;
        // As in the kernel, the active anonymous list alone does not prolong the scan.
        while left[INACTIVE_ANON] + left[INACTIVE_FILE] + left[ACTIVE_FILE] > 0 {
            for (list, left) in left.iter_mut().enumerate() {
                let (kind, count) = (list / 2, self.batch.min(*left));
                *left -= count;
                if count == 0 {
                    continue;
                }
                if list % 2 == 0 {
                    self.shrink_inactive(kind, count, bits);
                } else if deactivate[kind] {
                    self.shrink_active(kind, count, bits);
                } else {
                    skipped = true;
                }
            }
            if (self.evicted.len() as u64) - before < self.batch {
                continue;
            }
            let sum = |lists: &[u64; 4], kind: usize| lists[2 * kind] + lists[2 * kind + 1];
            let rest = TYPES.map(|kind| sum(&left, kind));
            if rest.contains(&0) {
                break;
            }
            let fewer = usize::from(rest[1] <= rest[0]);
            let percent = rest[fewer] * 100 / (sum(&targets, fewer) + 1);
            for list in 0..4 {
                let goal = targets[list] * (100 - percent) / 100;
                let scanned = targets[list] - left[list];
                left[list] = if list / 2 == fewer { 0 } else { goal.saturating_sub(scanned) };
            }
        }
        skipped
    }
}
