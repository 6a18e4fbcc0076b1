//! `scrambled-zipf`: the frequencies of `zipf`, with hot pages scattered over the whole range.
//!
//! Ranks map to pages by a bijection chosen by the seed (`permutation`), so that every page has
//! exactly one rank. YCSB's generator of this name hashes ranks instead, so that some pages have
//! several and others none.

use nearfar_schema::{Options as _, Spec};

use super::permutation::Permutation;
use super::zipf::{Draw, ZipfOptions};
use super::{Generator, Params, Walk};
use crate::error::Result;

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
        // One scattering for all threads: they share their hot pages.
        Draw::boxed(params, Some(Permutation::new(params.pages, params.seed)))
    }
}
