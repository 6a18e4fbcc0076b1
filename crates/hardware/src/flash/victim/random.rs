//! Selects a full block uniformly at random. Its write amplification is known: (1 + OP) / OP for
//! spare space of OP times the user capacity.

use nearfar_trace::generate::rng::Rng;

use super::Victims;

/// Full blocks, unordered. A draw may return a block whose pages are all valid, which frees nothing.
/// After as many such draws in a row as there are blocks, the first block with an invalid page is
/// selected, so that collection ends.
#[derive(Debug)]
pub struct Random {
    bag: Vec<u32>,
    valid: Vec<u32>,
    /// Number of blocks with an invalid page.
    useful: u32,
    pages: u32,
    /// Consecutive draws that freed nothing.
    fruitless: usize,
    rng: Rng,
}

impl Random {
    /// Empty, for `blocks` blocks with `pages` pages each; `seed` determines the draws.
    pub fn new(blocks: u32, pages: u32, seed: u64) -> Self {
        Self {
            bag: Vec::with_capacity(blocks as usize),
            valid: vec![0; blocks as usize],
            useful: 0,
            pages,
            fruitless: 0,
            rng: Rng::new(seed),
        }
    }
}

impl Victims for Random {
    fn insert(&mut self, block: u32, valid: u32) {
        self.bag.push(block);
        self.valid[block as usize] = valid;
        self.useful += u32::from(valid < self.pages);
    }

    fn invalidated(&mut self, block: u32, valid: u32) {
        self.useful += u32::from(valid + 1 == self.pages);
        self.valid[block as usize] = valid;
    }

    fn take(&mut self) -> Option<u32> {
        if self.useful == 0 {
            return None;
        }
        let useful = |block: u32| self.valid[block as usize] < self.pages;
        let at = match self.fruitless < self.bag.len() {
            true => self.rng.below(self.bag.len() as u64) as usize,
            false => self.bag.iter().position(|block| useful(*block))?,
        };
        let frees = useful(self.bag[at]);
        self.fruitless = if frees { 0 } else { self.fruitless + 1 };
        self.useful -= u32::from(frees);
        Some(self.bag.swap_remove(at))
    }
}
