//! `pointer-chase`: one node per page, linked in one random cycle.
//!
//! The order of nodes is a bijection chosen by the seed (`permutation`): every round visits each
//! page exactly once, in the same order, which is the worst case for LRU and for any prefetcher.
//! The seed also chooses a node's offset in its page. Threads start at equal distances in the
//! cycle.

use super::permutation::Permutation;
use super::rng::{Rng, mix64};
use super::{Generator, Params, SIZE, Walk};
use crate::error::Result;

pub struct PointerChase;

impl Generator for PointerChase {
    fn name(&self) -> &'static str {
        "pointer-chase"
    }
    fn summary(&self) -> &'static str {
        "one node per page, linked in one random cycle"
    }
    fn walk(&self, params: &Params, thread: u32) -> Result<Box<dyn Walk>> {
        Ok(Box::new(Chase {
            order: Permutation::new(params.pages, params.seed),
            step: params.share(thread, params.pages),
            pages: params.pages,
            page_bytes: params.page_bytes,
            // ASCII "node": offsets do not depend on the order.
            seed: mix64(params.seed ^ 0x6e6f_6465),
        }))
    }
}

struct Chase {
    order: Permutation,
    step: u64,
    pages: u64,
    page_bytes: u64,
    seed: u64,
}

impl Walk for Chase {
    fn next(&mut self, _: &mut Rng) -> u64 {
        let page = self.order.apply(self.step);
        self.step = if self.step + 1 == self.pages { 0 } else { self.step + 1 };
        // The number of words in a page is a power of two, so that the remainder is uniform.
        let word = mix64(page ^ self.seed) % (self.page_bytes / SIZE);
        page * self.page_bytes + word * SIZE
    }
}
