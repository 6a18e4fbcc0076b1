//! Preconditioning: fills and overwrites a drive before a study, in a bounded number of writes.

use nearfar_trace::generate::permutation::Permutation;
use nearfar_trace::generate::rng::Rng;
use serde::Serialize;

use super::{Ftl, Wear};

nearfar_schema::choices! {
    /// How the page of each random write is chosen.
    pub enum Overwrite: "way to overwrite" {
        /// each page once, in random order, as fio does without `norandommap`
        Once = "once",
        /// a random page each time: some pages are written several times, a share of 1/e never
        Drawn = "drawn",
    }
}

/// How to precondition a new drive. Shares are fractions of the user's pages, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precondition {
    /// Share written once, in order from page 0.
    pub sequential: f64,
    /// Random writes that follow, as a share: n writes to the first n pages.
    pub random: f64,
    pub overwrite: Overwrite,
    pub seed: u64,
}

/// The resulting state of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Conditioned {
    /// Pages written in order.
    pub sequential_writes: u64,
    /// Random writes, as requested.
    pub random_writes: u64,
    /// Additional random writes, until garbage collection is due in every plane.
    pub further_writes: u64,
    /// Whether every plane must collect garbage as soon as its open block is full.
    pub collecting: bool,
    /// Blocks collected during preconditioning.
    pub collections: u64,
    /// Page programs for each page that the host wrote.
    pub write_amplification: f64,
    /// Mapped logical pages.
    pub mapped_pages: u32,
    /// Minimum number of free blocks in a plane.
    pub least_free_blocks: u32,
    /// Mean erases of a block.
    pub mean_erases: f64,
}

impl Precondition {
    /// Precondition `ftl`, and reset its tally. If there are random writes, further ones follow until
    /// collection is due in every plane, as in paper 002 ("initialised so that collection happens from
    /// the start"), but at most as many as the drive has physical pages.
    pub fn apply(&self, ftl: &mut Ftl) -> Conditioned {
        let pages = u64::from(ftl.geometry().user_pages);
        let of = |share: f64| (share.clamp(0.0, 1.0) * pages as f64).round() as u64;
        let (sequential_writes, random_writes) = (of(self.sequential), of(self.random));
        for page in 0..sequential_writes {
            ftl.write(page as u32, |_| ());
        }
        let mut rng = Rng::new(self.seed);
        // A permutation needs at least one page; without random writes, it is not used.
        let order = Permutation::new(random_writes.max(1), self.seed);
        for turn in 0..random_writes {
            let page = match self.overwrite {
                Overwrite::Once => order.apply(turn),
                Overwrite::Drawn => rng.below(random_writes),
            };
            ftl.write(page as u32, |_| ());
        }
        let bound = if random_writes == 0 { 0 } else { ftl.geometry().total_pages() };
        let mut further_writes = 0;
        while further_writes < bound && !ftl.collecting() {
            ftl.write(rng.below(random_writes) as u32, |_| ());
            further_writes += 1;
        }
        let tally = ftl.tally();
        let Wear { mean, .. } = ftl.wear();
        ftl.reset_tally();
        Conditioned {
            sequential_writes,
            random_writes,
            further_writes,
            collecting: ftl.collecting(),
            collections: tally.collections,
            write_amplification: tally.write_amplification(),
            mapped_pages: ftl.mapped(),
            least_free_blocks: ftl.least_free(),
            mean_erases: mean,
        }
    }
}
