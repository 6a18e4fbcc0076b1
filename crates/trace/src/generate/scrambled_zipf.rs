//! `scrambled-zipf`: the frequencies of `zipf`, with hot pages scattered over the whole range.
//!
//! Ranks map to pages by a bijection chosen by the seed (`permutation`), so that every page has
//! exactly one rank. YCSB's generator of this name hashes ranks instead, so that some pages have
//! several and others none.

use nearfar_schema::{Options as _, Spec};

use super::permutation::Permutation;
use super::rng::Rng;
use super::zipf::{Ranks, ZipfOptions};
use super::{Generator, Params, Walk, draw_within};
use crate::error::Result;

/// The `scrambled-zipf` generator.
pub struct ScrambledZipf;

impl Generator for ScrambledZipf {
    fn name(&self) -> &'static str {
        "scrambled-zipf"
    }
    fn summary(&self) -> &'static str {
        "zipf with the hot pages scattered"
    }
    fn options(&self) -> Vec<Spec> {
        ZipfOptions::specs()
    }
    fn walk(&self, params: &Params, _: u32) -> Result<Box<dyn Walk>> {
        Ok(Box::new(Draw {
            ranks: Ranks::new(params)?,
            // One scattering for all threads: they share their hot pages.
            pages: Permutation::new(params.pages, params.seed),
            page_bytes: params.page_bytes,
        }))
    }
}

struct Draw {
    ranks: Ranks,
    pages: Permutation,
    page_bytes: u64,
}

impl Walk for Draw {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        let page = self.pages.apply(self.ranks.draw(rng));
        draw_within(page, self.page_bytes, rng)
    }
}
