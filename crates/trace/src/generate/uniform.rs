//! `uniform`: every aligned word of every page is equally likely.

use super::rng::Rng;
use super::{Generator, Params, SIZE, Walk};
use crate::error::Result;

pub struct Uniform;

impl Generator for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }
    fn summary(&self) -> &'static str {
        "8-byte words of all pages at random, equally likely"
    }
    fn walk(&self, params: &Params, _: u32) -> Result<Box<dyn Walk>> {
        Ok(Box::new(Draw { words: params.bytes() / SIZE }))
    }
}

struct Draw {
    words: u64,
}

impl Walk for Draw {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        rng.below(self.words) * SIZE
    }
}
