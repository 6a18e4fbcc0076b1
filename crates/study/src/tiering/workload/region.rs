//! Arrays of a generated workload in memory, and how their rows are chosen.

use std::sync::Arc;

use nearfar_trace::generate::permutation::Permutation;

use super::super::zipf::{Draws, arrange, popularity};
use super::Shape;
use super::file::{Array, Distribution, Phases, RANKS};

/// Key of permutations: they do not depend on `--seed`.
const KEY: u64 = 0;

/// How rows of an array are chosen.
#[derive(Clone, Debug)]
pub(super) enum Choice {
    Draws(Arc<Draws>),
    Uniform,
    Sequential,
    Chase(Arc<[u32]>),
    Ranked(Ranks),
}

/// Parts of an array, ranked from 0: a cycle of draws yields each row of part `r` exactly `r` times, in one
/// random order that repeats.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    /// Rows of a part.
    rows: u64,
    /// Draws in a cycle.
    draws: u64,
    order: Permutation,
}

impl Ranks {
    /// `parts` is at least 2, and `rows` at least `parts`.
    fn new(rows: u32, parts: u32) -> Self {
        let (rows, parts) = (u64::from(rows / parts), u64::from(parts));
        let draws = rows * parts * (parts - 1) / 2;
        Self { rows, draws, order: Permutation::new(draws, KEY) }
    }

    /// The row of the draw at this position in a cycle.
    fn row(&self, position: u64) -> u32 {
        let draw = self.order.apply(position);
        // The draws of part r begin at r (r - 1) / 2 times its rows.
        let part = (1 + 8 * (draw / self.rows)).isqrt().div_ceil(2);
        (part * self.rows + draw % self.rows) as u32
    }
}

/// An [`Array`] at its place in memory.
#[derive(Debug)]
pub(super) struct Region {
    /// First page.
    pub first: u32,
    pub rows: u32,
    pub phase: Phases,
    pub weight: f64,
    pub choice: Choice,
    /// As [`Array::draws`], scaled.
    pub draws: u64,
    pub shift: f64,
}

impl Region {
    /// Whether it is accessed in this round; `None`: in the warm-up.
    pub fn is_of(&self, round: Option<u32>) -> bool {
        match self.phase {
            Phases::Both => true,
            Phases::Never => false,
            Phases::Rounds => round.is_some(),
            Phases::WarmUp => round.is_none(),
        }
    }

    /// The row of operation `at` of one of `threads` threads, which begin at different points of a cycle.
    #[inline]
    pub fn row(&self, random: u64, at: u64, thread: u32, threads: u64) -> u32 {
        let position = |cycle: u64| (cycle * u64::from(thread) / threads + at) % cycle;
        let rows = u64::from(self.rows);
        match &self.choice {
            Choice::Draws(draws) => draws.draw(random),
            Choice::Uniform => ((random >> 32) * rows >> 32) as u32,
            Choice::Sequential => position(rows) as u32,
            Choice::Chase(order) => order.get(position(rows) as usize).copied().unwrap_or_default(),
            Choice::Ranked(ranks) => ranks.row(position(ranks.draws)),
        }
    }
}

/// Density of a normal distribution at each row, above 0 at least at the mean.
fn normal(rows: u32, mean: f64, deviation: f64) -> Vec<f64> {
    let density = |row: u32| {
        let z = (f64::from(row) / f64::from(rows) - mean) / deviation;
        libm::exp(-0.5 * z * z)
    };
    let mut weights: Vec<f64> = (0..rows).map(density).collect();
    let nearest = ((mean * f64::from(rows)) as usize).min(weights.len().saturating_sub(1));
    if let Some(weight) = weights.get_mut(nearest) {
        *weight = weight.max(f64::MIN_POSITIVE);
    }
    weights
}

impl Array {
    /// How its rows are chosen.
    pub(super) fn choice(&self, rows: u32, shape: &Shape) -> Choice {
        if self.phase == Phases::Never || rows == 0 {
            return Choice::Sequential;
        }
        let draws = |weights: &[f64]| Choice::Draws(Arc::new(Draws::new(weights)));
        match self.distribution {
            Distribution::Zipf => {
                draws(&arrange(popularity(rows, shape.scrambled), shape.hottest_first))
            }
            Distribution::Normal => {
                draws(&normal(rows, self.mean.unwrap_or(0.5), self.deviation.unwrap_or(0.1)))
            }
            Distribution::Uniform => Choice::Uniform,
            Distribution::Ranked if rows > 1 => {
                Choice::Ranked(Ranks::new(rows, self.ranks.unwrap_or(RANKS).min(rows)))
            }
            Distribution::Sequential | Distribution::Ranked => Choice::Sequential,
            Distribution::Chase => {
                let order = Permutation::new(u64::from(rows), KEY);
                Choice::Chase((0..rows).map(|i| order.apply(u64::from(i)) as u32).collect())
            }
        }
    }
}
