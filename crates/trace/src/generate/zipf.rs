//! `zipf`: page r (from 1) is drawn in proportion to r^-alpha; hot pages lie side by side.
//!
//! Rejection-inversion of a monotone discrete distribution: W. Hoermann and G. Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS
//! 6(3), 1996. Exact up to rounding for every alpha of 0 or more, a draw costs the same for 10 pages and 10^10,
//! and there is no table. Logarithms and exponentials come from the `libm` crate, so that the same
//! seed gives the same bytes whatever the system's mathematics library.

use libm::{exp, expm1, log, log1p};
use nearfar_schema::{Options as _, Spec};

use super::rng::Rng;
use super::{Generator, Params, Walk, within};
use crate::error::{Error, Result};

nearfar_schema::options! {
    /// The generator's own options.
    pub(super) struct Own {
        /// Skew, 0 (even) to 100.
        alpha: f64 = 1.0,
    }
}

/// The `zipf` generator.
pub struct Zipf;

impl Generator for Zipf {
    fn name(&self) -> &'static str {
        "zipf"
    }
    fn summary(&self) -> &'static str {
        "page r with probability proportional to r^-alpha; hot pages are adjacent"
    }
    fn options(&self) -> Vec<Spec> {
        Own::specs()
    }
    fn walk(&self, params: &Params, _: u32) -> Result<Box<dyn Walk>> {
        Ok(Box::new(Draw { ranks: Ranks::new(params)?, page_bytes: params.page_bytes }))
    }
}

struct Draw {
    ranks: Ranks,
    page_bytes: u64,
}

impl Walk for Draw {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        let rank = self.ranks.draw(rng);
        within(rank, self.page_bytes, rng)
    }
}

/// Draws ranks 0..n, rank r in proportion to (r + 1)^-alpha.
pub(super) struct Ranks {
    n: u64,
    alpha: f64,
    /// H(1.5) - 1 and H(n + 0.5): the ends of the area drawn from.
    top: f64,
    bottom: f64,
    /// Closer than this to its rank from below, a draw is accepted unseen.
    sure: f64,
}

/// (e^x - 1) / x, also around 0.
fn growth(x: f64) -> f64 {
    if x.abs() > 1e-8 { expm1(x) / x } else { 1.0 + x / 2.0 }
}

/// log(1 + x) / x, also around 0.
fn decay(x: f64) -> f64 {
    if x.abs() > 1e-8 { log1p(x) / x } else { 1.0 - x / 2.0 }
}

impl Ranks {
    pub fn new(params: &Params) -> Result<Self> {
        let Own { alpha } = params.own()?;
        if !(0.0..=100.0).contains(&alpha) {
            return Err(Error::input(
                "--alpha",
                format!("{alpha} is not a skew from 0 to 100"),
                "give for instance 0.99",
            ));
        }
        let n = params.pages;
        let mut ranks = Self { n, alpha, top: 0.0, bottom: 0.0, sure: 0.0 };
        ranks.top = ranks.area(1.5) - 1.0;
        ranks.bottom = ranks.area(n as f64 + 0.5);
        ranks.sure = 2.0 - ranks.area_inverse(ranks.area(2.5) - ranks.height(2.0));
        Ok(ranks)
    }

    /// x^-alpha.
    fn height(&self, x: f64) -> f64 {
        exp(-self.alpha * log(x))
    }

    /// H(x), an antiderivative of the height: (x^(1 - alpha) - 1) / (1 - alpha), or log x.
    fn area(&self, x: f64) -> f64 {
        let log_x = log(x);
        growth((1.0 - self.alpha) * log_x) * log_x
    }

    fn area_inverse(&self, area: f64) -> f64 {
        // Rounding may push the argument of log1p just past its limit.
        let t = (area * (1.0 - self.alpha)).max(-1.0);
        exp(decay(t) * area)
    }

    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.bottom + rng.unit() * (self.top - self.bottom);
            let x = self.area_inverse(area);
            let rank = ((x + 0.5) as u64).clamp(1, self.n);
            let k = rank as f64;
            if k - x <= self.sure || area >= self.area(k + 0.5) - self.height(k) {
                return rank - 1;
            }
        }
    }
}
