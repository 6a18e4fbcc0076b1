//! The top of the LRU stack: a ring, so that a push moves no other page.

/// Pages in the ring.
pub const FRONT: usize = 32;
/// Entry of a place (position from the top) whose page was freed.
pub const HOLE: u32 = u32::MAX;
/// Entry that was never used. Like [`HOLE`], not a page id.
const EMPTY: u32 = u32::MAX - 1;

/// The pages on top; place 0 is the topmost.
#[derive(Clone, Debug)]
pub struct Front {
    ring: [u32; FRONT],
    /// Index of the topmost place.
    head: usize,
    len: usize,
}

impl Front {
    pub fn new() -> Self {
        Self { ring: [EMPTY; FRONT], head: 0, len: 0 }
    }

    /// Number of pages and holes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first place of `page`, which may be [`HOLE`].
    pub fn place(&self, page: u32) -> Option<usize> {
        // From the top, where most pages are found.
        let (wrapped, top) = self.ring.split_at(self.head);
        top.iter().chain(wrapped).position(|&other| other == page)
    }

    /// Push `page` on top. Returns the page that no longer fits.
    pub fn push(&mut self, page: u32) -> Option<u32> {
        self.head = self.at(FRONT - 1);
        let last = std::mem::replace(&mut self.ring[self.head], page);
        let is_full = self.len == FRONT;
        self.len += usize::from(!is_full);
        is_full.then_some(last)
    }

    /// Remove the entry at `place` and push `page` on top.
    pub fn raise(&mut self, place: usize, page: u32) {
        let mut above = page;
        for place in 0..=place {
            let at = self.at(place);
            above = std::mem::replace(&mut self.ring[at], above);
        }
    }

    /// Turn `place` into a hole.
    pub fn free(&mut self, place: usize) {
        let at = self.at(place);
        self.ring[at] = HOLE;
    }

    /// All pages and holes, from the top.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..self.len).map(|place| self.ring[self.at(place)])
    }

    fn at(&self, place: usize) -> usize {
        (self.head + place) % FRONT
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_list(steps in prop::collection::vec((0u32..50, 0usize..FRONT), 0..300)) {
            let (mut front, mut list) = (Front::new(), Vec::new());
            for (page, place) in steps {
                let expected = list.iter().position(|other| *other == page);
                prop_assert_eq!(front.place(page), expected);
                let hole = list.iter().position(|other| *other == HOLE);
                prop_assert_eq!(front.place(HOLE), hole);
                if let Some(place) = expected.or(hole.filter(|_| page % 2 == 0)) {
                    front.raise(place, page);
                    list.remove(place);
                    list.insert(0, page);
                } else if place < list.len() && page % 5 == 0 {
                    front.free(place);
                    list[place] = HOLE;
                } else {
                    list.insert(0, page);
                    let last = (list.len() > FRONT).then(|| list.pop()).flatten();
                    prop_assert_eq!(front.push(page), last);
                }
                prop_assert!(front.iter().eq(list.iter().copied()));
                prop_assert_eq!(front.len(), list.len());
            }
        }
    }
}
