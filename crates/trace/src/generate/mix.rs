//! `mix`: several generators over the same pages, blended by weight or in phases.
//!
//! `--mix zipf:0.7,sequential:0.3` draws each reference from one of them in proportion to the
//! weights. With `--phase N`, they take turns, in the order given: in every N references, each makes
//! its share in one run. Each thread has its own walks (sequences of references).

use nearfar_schema::{Count, Options as _, Spec, none, required};

use super::rng::Rng;
use super::{GENERATORS, Generator, Params, Walk, by_name};
use crate::error::{Error, Result};

nearfar_schema::options! {
    /// The generator's own options.
    struct MixOptions {
        /// Generators and weights, such as zipf:0.7,sequential:0.3; the options of these generators apply.
        mix: String = required(),
        /// References per cycle in which the generators take turns.
        phase: Option<Count<1>> = none("each reference is drawn by weight"),
    }
}

pub struct Mix;

impl Generator for Mix {
    fn name(&self) -> &'static str {
        "mix"
    }
    fn summary(&self) -> &'static str {
        "several generators by weight (--mix) or in phases (--phase)"
    }
    fn options(&self) -> Vec<Spec> {
        MixOptions::specs()
    }
    // Accepts any generator's option. `parts` refuses those that no generator of the mix takes.
    fn takes(&self, option: &str) -> bool {
        let declares = |part: &&dyn Generator| part.options().iter().any(|own| own.name == option);
        GENERATORS.iter().any(declares)
    }
    fn walk(&self, params: &Params, thread: u32) -> Result<Box<dyn Walk>> {
        let own: MixOptions = params.own()?;
        let parts = parts(&own.mix, params)?;
        let total: f64 = parts.iter().map(|(_, weight)| weight).sum();
        let mut walks = Vec::new();
        let mut shares = Vec::new();
        let mut sum = 0.0;
        for (generator, weight) in &parts {
            sum += weight;
            walks.push(generator.walk(params, thread)?);
            shares.push(sum / total);
        }
        // Regardless of rounding, the last share ends at 1.
        if let Some(last) = shares.last_mut() {
            *last = 1.0;
        }
        Ok(match own.phase.map(|phase| phase.0) {
            None => Box::new(Blend { walks, shares }),
            Some(phase) => {
                let ends: Vec<u64> =
                    shares.iter().map(|share| (share * phase as f64).round() as u64).collect();
                let starts = std::iter::once(0).chain(ends.iter().copied());
                if starts.zip(&ends).any(|(start, &end)| end <= start) {
                    return Err(Error::input(
                        "--phase",
                        format!("{phase} references are too few to give every generator one"),
                        "give more",
                    ));
                }
                Box::new(Phases { walks, ends, at: 0, current: 0 })
            }
        })
    }
}

/// The generators and weights of `--mix`.
fn parts(text: &str, params: &Params) -> Result<Vec<(&'static dyn Generator, f64)>> {
    let refuse = |what: String| {
        Err(Error::input("--mix", what, "give for instance zipf:0.7,sequential:0.3"))
    };
    let mut parts = Vec::new();
    for part in text.split(',') {
        let Some((name, weight)) = part.split_once(':') else {
            return refuse(format!("`{part}` is not name:weight"));
        };
        let weight = match weight.trim().parse::<f64>() {
            Ok(weight) if weight > 0.0 && weight.is_finite() => weight,
            _ => return refuse(format!("the weight `{weight}` is not a number above 0")),
        };
        let generator = by_name(name.trim())?;
        if generator.name() == Mix.name() {
            return refuse("a mix cannot contain a mix".into());
        }
        parts.push((generator, weight));
    }
    if !parts.iter().map(|(_, weight)| weight).sum::<f64>().is_finite() {
        return refuse("the weights have no finite sum".into());
    }
    let taken = |option: &str| parts.iter().any(|(part, _)| part.takes(option));
    for option in params.own.keys() {
        let is_own = MixOptions::specs().iter().any(|own| own.name == option);
        if !is_own && !taken(option) {
            let place = format!("--{option}");
            return Err(Error::input(
                place,
                "no generator of the mix takes this option",
                "leave it out",
            ));
        }
    }
    Ok(parts)
}

struct Blend {
    walks: Vec<Box<dyn Walk>>,
    /// Running sums of the weights, the last 1.
    shares: Vec<f64>,
}

impl Walk for Blend {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        let draw = rng.unit();
        let part = self.shares.partition_point(|&share| share <= draw);
        self.walks[part].next(rng)
    }
}

struct Phases {
    walks: Vec<Box<dyn Walk>>,
    /// End of each part's run within a cycle.
    ends: Vec<u64>,
    /// References so far in the cycle.
    at: u64,
    current: usize,
}

impl Walk for Phases {
    fn next(&mut self, rng: &mut Rng) -> u64 {
        if self.at == self.ends[self.current] {
            self.current += 1;
            if self.current == self.ends.len() {
                (self.current, self.at) = (0, 0);
            }
        }
        self.at += 1;
        self.walks[self.current].next(rng)
    }
}
