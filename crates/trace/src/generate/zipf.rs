//! `zipf`: page r (from 1) is drawn in proportion to r^-alpha; hot pages are adjacent.
//!
//! Rejection-inversion of a monotone discrete distribution: W. Hoermann and G. Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS
//! 6(3), 1996. Exact up to rounding for every alpha of 0 or more, without a table, at a cost
//! independent of the number of pages. Logarithms and exponentials come from the `libm` crate, so
//! that the trace does not depend on the system's mathematics library.

use libm::{exp, expm1, log, log1p};
use nearfar_schema::{Options as _, Spec};

use super::permutation::Permutation;
use super::rng::Rng;
use super::{Generator, Params, Walk, draw_within};
use crate::error::{Error, Result};

nearfar_schema::options! {
    /// The generator's own options.
    pub(super) struct ZipfOptions {
        /// Skew, 0 (even) to 100.
        alpha: f64 = 1.0,
    }
}

pub struct Zipf;

impl Generator for Zipf {
    fn name(&self) -> &'static str {
        "zipf"
    }
    fn summary(&self) -> &'static str {
        "page r (from 1) with probability proportional to r^-alpha; hot pages are adjacent"
    }
    fn options(&self) -> Vec<Spec> {
        ZipfOptions::specs()
    }
    fn walk(&self, params: &Params, _: u32) -> Result<Box<dyn Walk>> {
        Draw::boxed(params, None)
    }
}

/// Draws pages by rank.
pub(super) struct Draw {
    ranks: Ranks,
    /// Maps ranks to pages; if `None`, a rank is a page.
    scattering: Option<Permutation>,
    page_bytes: u64,
}

impl Draw {
    pub fn boxed(params: &Params, scattering: Option<Permutation>) -> Result<Box<dyn Walk>> {
        let (ranks, page_bytes) = (Ranks::new(params)?, params.page_bytes);
        Ok(Box::new(Self { ranks, scattering, page_bytes }))
    }
}

impl Walk for Draw {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        let rank = self.ranks.draw(rng);
        let page = self.scattering.as_ref().map_or(rank, |scattering| scattering.apply(rank));
        draw_within(page, self.page_bytes, rng)
    }
}

/// Draws ranks from 0..n, rank r in proportion to (r + 1)^-alpha.
struct Ranks {
    n: u64,
    alpha: f64,
    /// Bounds of the area to draw from: H(1.5) - 1 and H(n + 0.5), where H is [`Self::area`].
    area_min: f64,
    area_max: f64,
    /// A draw at most this far below its rank is accepted without a further test.
    sure_distance: f64,
}

/// (e^x - 1) / x, accurate near 0.
fn growth(x: f64) -> f64 {
    if x.abs() > 1e-8 { expm1(x) / x } else { 1.0 + x / 2.0 }
}

/// log(1 + x) / x, accurate near 0.
fn decay(x: f64) -> f64 {
    if x.abs() > 1e-8 { log1p(x) / x } else { 1.0 - x / 2.0 }
}

impl Ranks {
    fn new(params: &Params) -> Result<Self> {
        let ZipfOptions { alpha } = params.own()?;
        if !(0.0..=100.0).contains(&alpha) {
            return Err(Error::input(
                "--alpha",
                format!("{alpha} is not a skew from 0 to 100"),
                "give for instance 0.99",
            ));
        }
        let n = params.pages;
        let mut ranks = Self { n, alpha, area_min: 0.0, area_max: 0.0, sure_distance: 0.0 };
        ranks.area_min = ranks.area(1.5) - 1.0;
        ranks.area_max = ranks.area(n as f64 + 0.5);
        ranks.sure_distance = 2.0 - ranks.area_inverse(ranks.area(2.5) - ranks.height(2.0));
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
        // Rounding may push the argument of log1p just beyond its limit.
        let t = (area * (1.0 - self.alpha)).max(-1.0);
        exp(decay(t) * area)
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let area = self.area_max + rng.unit() * (self.area_min - self.area_max);
            let x = self.area_inverse(area);
            let rank = ((x + 0.5) as u64).clamp(1, self.n);
            let k = rank as f64;
            if k - x <= self.sure_distance || area >= self.area(k + 0.5) - self.height(k) {
                return rank - 1;
            }
        }
    }
}
