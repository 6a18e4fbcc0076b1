//! `pointer-chase`: one node a page, linked in one random cycle that is followed round and round.
//!
//! Node after node, in the order of a bijection chosen by the seed (`permutation`): every page is
//! visited exactly once a cycle and in the same order every cycle, which is the worst case for LRU
//! and for any prefetcher. A node's place in its page is fixed, drawn by the seed. A thread starts
//! at its share of the cycle.

use super::permutation::Permutation;
use super::rng::{Rng, mix64};
use super::{Generator, Params, SIZE, Walk};
use crate::error::Result;

/// The `pointer-chase` generator.
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
        // Words in a page are a power of two, so the low bits of the hash are even.
        let word = mix64(page ^ self.seed) % (self.page_bytes / SIZE);
        page * self.page_bytes + word * SIZE
    }
}
