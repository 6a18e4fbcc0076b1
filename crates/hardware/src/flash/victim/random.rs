//! Any closed block, all alike: the baseline whose write amplification theory knows exactly.

use nearfar_trace::generate::rng::Rng;

use super::Victims;

/// Closed blocks in a bag. A draw may give a block whose pages are all valid: it is moved for
/// nothing and another is drawn, as in the theory. After as many such draws in a row as there are
/// blocks, one with an invalid page is taken, so that collection ends.
#[derive(Debug)]
pub struct Random {
    bag: Vec<u32>,
    valid: Vec<u32>,
    /// Blocks in the bag with an invalid page: whether a draw can end.
    useful: u32,
    pages: u32,
    /// Draws in a row that freed nothing.
    vain: usize,
    rng: Rng,
}

impl Random {
    /// No closed block yet, of `blocks` with `pages` each; `seed` sets the stream of draws.
    pub fn new(blocks: u32, pages: u32, seed: u64) -> Self {
        Self {
            bag: Vec::with_capacity(blocks as usize),
            valid: vec![0; blocks as usize],
            useful: 0,
            pages,
            vain: 0,
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
        let at = match self.vain < self.bag.len() {
            true => self.rng.below(self.bag.len() as u64) as usize,
            false => self.bag.iter().position(|block| useful(*block))?,
        };
        let frees = useful(self.bag[at]);
        self.vain = if frees { 0 } else { self.vain + 1 };
        self.useful -= u32::from(frees);
        Some(self.bag.swap_remove(at))
    }
}
