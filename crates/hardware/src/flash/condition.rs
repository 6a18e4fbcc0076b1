//! A used drive: filled and overwritten before a study, in a bounded number of writes.

use nearfar_trace::generate::permutation::Permutation;
use nearfar_trace::generate::rng::Rng;
use serde::Serialize;

use super::{Ftl, Wear};

nearfar_schema::choices! {
    /// Which pages single writes at random go to.
    pub enum Overwrite: "way to overwrite" {
        /// each page once, in random order, as fio does without `norandommap`
        Once = "once",
        /// a random page each time: some are written several times, 1/e of them never
        Drawn = "drawn",
    }
}

/// What to do to a fresh drive. Shares are of the user's pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precondition {
    /// This share is written once, in order from page 0.
    pub sequential: f64,
    /// Then as many single writes as this share has pages, to pages of that share.
    pub random: f64,
    /// Which of them.
    pub overwrite: Overwrite,
    /// Seed of those.
    pub seed: u64,
}

/// The state a drive was left in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Conditioned {
    /// Pages written in order.
    pub sequential_writes: u64,
    /// Pages written at random, as asked for.
    pub random_writes: u64,
    /// Random writes added until every plane was down to the threshold of collection.
    pub further_writes: u64,
    /// Whether every plane is: the next block it opens is a collected one.
    pub collecting: bool,
    /// Blocks collected meanwhile.
    pub collections: u64,
    /// Programs for each page written.
    pub write_amplification: f64,
    /// Logical pages that hold something.
    pub mapped_pages: u32,
    /// Free blocks of the plane that has fewest.
    pub least_free_blocks: u32,
    /// Mean erases of a block.
    pub mean_erases: f64,
}

impl Precondition {
    /// Write to `ftl`; then random writes go on until collection is due in every plane, as paper
    /// 002 asks ("initialised so that collection happens from the start"), but no more than the
    /// drive has pages. The tally starts again.
    pub fn apply(&self, ftl: &mut Ftl) -> Conditioned {
        let pages = u64::from(ftl.geometry().user_pages);
        let of = |share: f64| (share.clamp(0.0, 1.0) * pages as f64).round() as u64;
        let (sequential_writes, random_writes) = (of(self.sequential), of(self.random));
        for page in 0..sequential_writes {
            ftl.write(page as u32, |_| ());
        }
        let mut rng = Rng::new(self.seed);
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
