//! `scrambled-zipf`: the frequencies of `zipf`, the hot pages scattered over the whole range.
//!
//! The page of a rank is a bijection chosen by the seed (`permutation`), so that every page keeps
//! exactly one rank; hashing ranks, as YCSB's generator of that name does, would make some pages
//! share and leave others out.

use nearfar_schema::{Options as _, Spec};

use super::permutation::Permutation;
use super::rng::Rng;
use super::zipf::{Own, Ranks};
use super::{Generator, Params, Walk, within};
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
        Own::specs()
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
        within(page, self.page_bytes, rng)
    }
}
