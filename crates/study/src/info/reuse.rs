//! The histogram of stack distances.

use nearfar_kernel::replacement::stack::StackDistance;

use super::ReuseBin;

/// The stack's entry of a page is prefetched into the CPU cache this many touches in advance.
const AHEAD: usize = 16;

pub struct Reuse {
    stack: StackDistance,
    bins: [u64; 64],
    first_touches: u64,
}

impl Reuse {
    pub fn new() -> Self {
        Self { stack: StackDistance::new(), bins: [0; 64], first_touches: 0 }
    }

    /// Touch these pages, which are without consecutive repeats.
    pub fn touch(&mut self, ids: &[u32]) {
        for (index, &id) in ids.iter().enumerate() {
            if let Some(&ahead) = ids.get(index + AHEAD) {
                self.stack.prefetch(ahead);
            }
            // Writes make no difference to distances.
            let write = false;
            match self.stack.access(id, write) {
                // The histogram's distances include the page itself.
                Some(others) => self.bins[(others + 1).ilog2() as usize] += 1,
                None => self.first_touches += 1,
            }
        }
    }

    /// The histogram, with `repeats` further touches at distance 1.
    pub fn bins(mut self, repeats: u64) -> Vec<ReuseBin> {
        self.bins[0] += repeats;
        let used = self.bins.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        let bins = self.bins[..used].iter().enumerate();
        bins.map(|(k, &count)| ReuseBin { distance_log2: Some(k as u32), count })
            .chain([ReuseBin { distance_log2: None, count: self.first_touches }])
            .collect()
    }
}
