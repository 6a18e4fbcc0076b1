//! The slots of the LRU stack below its top: which are live (hold a page or a hole), and the rank of a slot
//! among the live ones.
//!
//! Counts at fixed widths instead of a Fenwick tree: a rank is then a branch-free sum, while the
//! loops of a tree have a different length each time, which processors mispredict.

/// Slots per line: their bits fill one cache line.
pub const LINE: usize = 512;
/// Lines per group, and groups per top-level count.
const WIDTH: usize = 64;

/// The set of live slots.
#[derive(Clone, Debug)]
pub struct Live {
    /// Whether the processor has AVX2 and POPCNT.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    avx2: bool,
    /// One bit per slot.
    bits: Vec<[u64; LINE / 64]>,
    /// Live slots of each line.
    lines: Vec<[u16; WIDTH]>,
    /// Live slots of each group of [`WIDTH`] lines.
    groups: Vec<[u32; WIDTH]>,
    /// Live slots of each [`WIDTH`] groups.
    tops: Vec<u32>,
}

impl Live {
    pub fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt");
        #[cfg(not(target_arch = "x86_64"))]
        let avx2 = false;
        Self { avx2, bits: Vec::new(), lines: Vec::new(), groups: Vec::new(), tops: Vec::new() }
    }

    /// Resize to `slots` slots, none of them live.
    pub fn clear(&mut self, slots: usize) {
        let lines = slots.div_ceil(LINE);
        let (groups, tops) = (lines.div_ceil(WIDTH), lines.div_ceil(WIDTH * WIDTH));
        self.bits.clear();
        self.bits.resize(lines, [0; LINE / 64]);
        self.lines.clear();
        self.lines.resize(groups, [0; WIDTH]);
        self.groups.clear();
        self.groups.resize(tops, [0; WIDTH]);
        self.tops.clear();
        self.tops.resize(tops, 0);
    }

    /// Make the first `slots` slots of an empty set live.
    pub fn fill(&mut self, slots: usize) {
        for (line, bits) in self.bits[..slots.div_ceil(LINE)].iter_mut().enumerate() {
            let count = LINE.min(slots - line * LINE);
            for (word, bits) in bits.iter_mut().enumerate() {
                let left = count.saturating_sub(word * 64).min(64) as u32;
                *bits = u64::MAX.checked_shr(64 - left).unwrap_or(0);
            }
            let group = line / WIDTH;
            self.lines[group][line % WIDTH] = count as u16;
            self.groups[group / WIDTH][group % WIDTH] += count as u32;
            self.tops[group / WIDTH] += count as u32;
        }
    }

    pub fn has(&self, slot: usize) -> bool {
        self.bits[slot / LINE][slot % LINE / 64] >> (slot % 64) & 1 == 1
    }

    /// Visit the live slots in order.
    pub fn each(&self, mut visit: impl FnMut(usize)) {
        for (index, &word) in self.bits.as_flattened().iter().enumerate() {
            let mut word = word;
            while word != 0 {
                visit(index * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }

    /// Flip whether `slot` is live.
    pub fn toggle(&mut self, slot: usize) {
        let (line, bit) = (slot / LINE, 1 << (slot % 64));
        let bits = &mut self.bits[line][slot % LINE / 64];
        *bits ^= bit;
        // 1 or -1, modulo 2^32.
        let step = if *bits & bit != 0 { 1 } else { u32::MAX };
        let group = line / WIDTH;
        let count = &mut self.lines[group][line % WIDTH];
        *count = count.wrapping_add(step as u16);
        let count = &mut self.groups[group / WIDTH][group % WIDTH];
        *count = count.wrapping_add(step);
        let top = &mut self.tops[group / WIDTH];
        *top = top.wrapping_add(step);
    }

    /// Number of live slots up to and including `slot`.
    pub fn rank(&self, slot: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.avx2 {
            // SAFETY: the processor has the features.
            return unsafe { self.rank_avx2(slot) };
        }
        self.rank_scalar(slot)
    }

    /// [`Self::rank_scalar`] compiled for AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn rank_avx2(&self, slot: usize) -> usize {
        self.rank_scalar(slot)
    }

    #[inline(always)]
    fn rank_scalar(&self, slot: usize) -> usize {
        let line = slot / LINE;
        let group = line / WIDTH;
        let top = group / WIDTH;
        let (lines, groups) = (&self.lines[group], &self.groups[top]);
        let line_in_group = (line % WIDTH) as u16;
        // Masked sums of fixed length, without early exit.
        let before = |counts: &[u32], end: u32| {
            let counts = (0..).zip(counts);
            counts.map(|(number, &count)| if number < end { count } else { 0 }).sum::<u32>()
        };
        let of_tops = before(&self.tops, top as u32);
        let of_groups = before(groups, (group % WIDTH) as u32);
        let mut of_lines = 0;
        for (number, &count) in (0..).zip(lines) {
            of_lines += if number < line_in_group { count } else { 0 };
        }
        let last = slot % LINE / 64;
        let mut of_bits = 0;
        for (number, &bits) in self.bits[line].iter().enumerate() {
            let whole = if number < last { bits } else { 0 };
            let part = if number == last { bits << (63 - slot % 64) } else { 0 };
            of_bits += (whole | part).count_ones();
        }
        (of_tops + of_groups + u32::from(of_lines) + of_bits) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// Enough slots to use every width, filled and then toggled, with AVX2 (if the processor
        /// has it) and without.
        #[test]
        fn equals_a_vec_of_flags(
            filled in 0usize..5_000_000,
            changes in prop::collection::vec(0usize..5_000_000, 0..300),
            queries in prop::collection::vec(0usize..5_000_000, 1..30),
        ) {
            let mut live = Live::new();
            live.clear(5_000_000);
            live.fill(filled);
            let mut flags = vec![false; 5_000_000];
            flags[..filled].fill(true);
            for &slot in &changes {
                live.toggle(slot);
                flags[slot] = !flags[slot];
            }
            let mut all = Vec::new();
            live.each(|slot| all.push(slot));
            prop_assert!(all.into_iter().eq((0..flags.len()).filter(|slot| flags[*slot])));
            let ranks: Vec<usize> = flags
                .iter()
                .scan(0, |count, &live| {
                    *count += usize::from(live);
                    Some(*count)
                })
                .collect();
            let scalar = Live { avx2: false, ..live.clone() };
            for slot in queries.into_iter().chain(changes).chain([0, 4_999_999]) {
                prop_assert_eq!(live.rank(slot), ranks[slot], "slot {}", slot);
                prop_assert_eq!(scalar.rank(slot), ranks[slot], "slot {}", slot);
                prop_assert_eq!(live.has(slot), flags[slot]);
            }
        }
    }
}
