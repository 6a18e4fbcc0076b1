//! A plain reference implementation of exact LRU stack distances: a Fenwick tree over reference times
//! (Bennett and Kruskal, IBM J. Res. Dev. 19(4), 1975, with the tree of Fenwick 1994). The tree has a
//! mark at the time of each page's latest reference; a distance is the number of later marks.

/// Stack distances of at most a given number of references to pages, which are dense ids.
pub struct Fenwick {
    /// `tree[i]`: marks at the times (from 1) i - lowbit(i) + 1 ..= i.
    tree: Vec<u32>,
    /// Time (from 1) of the latest reference to each page; 0 before the first.
    latest: Vec<u32>,
    now: u32,
    /// Pages referenced so far, and marks in the tree.
    pages: u32,
    /// `distances[d]`: references at stack distance d.
    distances: Vec<u64>,
}

impl Fenwick {
    /// Allocate for up to `references` references to pages 0..`pages`.
    pub fn new(references: usize, pages: usize) -> Self {
        Self {
            tree: vec![0; references + 1],
            latest: vec![0; pages],
            now: 0,
            pages: 0,
            distances: vec![0; pages],
        }
    }

    /// Reference `page`; returns its stack distance, `None` the first time.
    pub fn access(&mut self, page: u32) -> Option<u64> {
        self.now += 1;
        let before = std::mem::replace(&mut self.latest[page as usize], self.now);
        let distance = if before == 0 {
            self.pages += 1;
            None
        } else {
            let distance = self.pages - self.marks_until(before);
            self.add(before, u32::MAX);
            self.distances[distance as usize] += 1;
            Some(u64::from(distance))
        };
        self.add(self.now, 1);
        distance
    }

    /// Marks at times 1..=`time`.
    fn marks_until(&self, time: u32) -> u32 {
        let (mut sum, mut node) = (0u32, time as usize);
        while node > 0 {
            sum = sum.wrapping_add(self.tree[node]);
            node &= node - 1;
        }
        sum
    }

    /// Add `change` (wrapping, so that `u32::MAX` subtracts one) to the marks at `time`.
    fn add(&mut self, time: u32, change: u32) {
        let mut node = time as usize;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(change);
            node += node & node.wrapping_neg();
        }
    }

    /// Faults of an LRU memory of `frames` frames so far.
    pub fn faults(&self, frames: usize) -> u64 {
        let least = frames.min(self.distances.len());
        u64::from(self.pages) + self.distances[least..].iter().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// a b c b a c: one other page was referenced since the first b, two since the first a and c.
    #[test]
    fn distances_and_faults_equal_those_counted_by_hand() {
        let mut fenwick = Fenwick::new(6, 3);
        let distances: Vec<_> = [0, 1, 2, 1, 0, 2].map(|page| fenwick.access(page)).into();
        assert_eq!(distances, [None, None, None, Some(1), Some(2), Some(2)]);
        assert_eq!([1, 2, 3].map(|frames| fenwick.faults(frames)), [6, 5, 3]);
    }
}
