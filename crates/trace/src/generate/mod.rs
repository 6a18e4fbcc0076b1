//! Generators: synthetic references with known statistics. The same seed gives the same bytes.
//!
//! A generator is one file with a [`Generator`] and one line in [`GENERATORS`]. It declares its own
//! options and chooses the location of each reference within `pages` pages. Kinds, threads and the
//! base address are handled here. Every reference is a load or store of 8 aligned bytes and counts one
//! instruction. Threads take turns, one reference each; every thread has its own random stream and,
//! if the order of references is fixed, its own starting point. See `docs/generate.md`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use nearfar_schema::{
    Argument, Bytes, Choice, Count, Entry, Given, Options, Registry, Spec, Wrong, required,
};
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};
use crate::info::{Info, Source};
use crate::record::{Batch, Kind, Record};
use crate::writer::{Writer, WriterOptions};

pub mod mix;
pub mod permutation;
pub mod pointer_chase;
pub mod rng;
pub mod scrambled_zipf;
pub mod sequential;
pub mod strided;
pub mod uniform;
pub mod zipf;

use rng::Rng;

pub static GENERATORS: &[&dyn Generator] = &[
    &zipf::Zipf,
    &scrambled_zipf::ScrambledZipf,
    &uniform::Uniform,
    &sequential::Sequential,
    &strided::Strided,
    &pointer_chase::PointerChase,
    &mix::Mix,
];

/// Bytes of every reference.
pub const SIZE: u64 = 8;
/// Address of page 0, aligned to all usual page sizes.
pub const BASE: u64 = 1 << 40;
/// End of the user half of 48-bit addresses.
const LIMIT: u64 = 1 << 47;

/// The registry of generators, for options.
pub struct Generators;

impl Registry for Generators {
    const NAME: &'static str = "generator";
    const KIND: &'static str = "generator";
    const METAVAR: &'static str = "NAME";
    fn entries() -> Vec<Entry> {
        let entry = |generator: &&dyn Generator| Entry {
            name: generator.name(),
            what: generator.summary().into(),
        };
        GENERATORS.iter().map(entry).collect()
    }
}

nearfar_schema::options! {
    /// The options of all generators.
    struct Common {
        /// Generator, which determines the order of the references.
        name: Argument<Choice<Generators>> = required(),
        /// Total number of references.
        refs: Count<1> = required(),
        /// Number of pages.
        pages: Count<1> = required(),
        /// Bytes in a page, a power of two from 8 to 2^30.
        page_bytes: Bytes = 4096,
        /// Seed of the random numbers.
        seed: Count = 0,
        /// Share of stores, 0 to 1.
        write_ratio: f64 = 0.0,
        /// Threads that take turns, one reference each.
        threads: Count<1, 4096> = 1,
    }
}

/// The options of `nearfar generate`, as given: those of all generators, then each generator's own.
#[derive(Clone, Debug)]
pub struct Request {
    pub name: &'static str,
    pub params: Params,
}

impl Options for Request {
    fn specs() -> Vec<Spec> {
        [Common::specs(), own_specs()].concat()
    }

    fn read(given: &BTreeMap<String, Given>) -> std::result::Result<Self, Wrong> {
        nearfar_schema::option::check_names(&Self::specs(), given)?;
        let mut common = given.clone();
        let mut own = BTreeMap::new();
        for spec in own_specs() {
            match common.remove(spec.name) {
                None | Some(Given::Nothing) => {}
                Some(value) => {
                    let plain =
                        (spec.read)(&value).map_err(|what| Wrong { place: spec.flag(), what })?;
                    own.insert(spec.name.to_owned(), Given::from(&plain));
                }
            }
        }
        let common = Common::read(&common)?;
        let params = Params {
            refs: common.refs.0,
            pages: common.pages.0,
            page_bytes: common.page_bytes.0,
            seed: common.seed.0,
            write_ratio: common.write_ratio,
            threads: common.threads.0 as u32,
            own,
        };
        Ok(Self { name: common.name.0.name, params })
    }

    fn plain(&self) -> Map<String, Json> {
        let Params { refs, pages, page_bytes, seed, write_ratio, threads, ref own } = self.params;
        let mut plain = Common {
            name: Argument(Choice::of(self.name).expect("a generator's name")),
            refs: Count(refs),
            pages: Count(pages),
            page_bytes: Bytes(page_bytes),
            seed: Count(seed),
            write_ratio,
            threads: Count(threads.into()),
        }
        .plain();
        plain.extend(own.iter().map(|(name, value)| (name.clone(), Json::from(value))));
        plain
    }
}

/// The options of single generators, without duplicates, each with the generators that take it.
fn own_specs() -> Vec<Spec> {
    let mut specs: Vec<Spec> = Vec::new();
    for spec in GENERATORS.iter().flat_map(|generator| generator.options()) {
        if specs.iter().any(|known| known.name == spec.name) {
            continue;
        }
        let declares = |generator: &&&dyn Generator| {
            generator.options().iter().any(|own| own.name == spec.name)
        };
        let takers: Vec<_> = GENERATORS.iter().filter(declares).map(|g| g.name()).collect();
        let what = format!("{} ({}).", spec.what.trim_end_matches('.'), takers.join(", "));
        specs.push(Spec { what, ..spec.optional() });
    }
    specs
}

#[derive(Clone, Debug)]
pub struct Params {
    pub refs: u64,
    /// Number of pages that references may touch.
    pub pages: u64,
    /// Bytes in a page: a power of two from 8 to 2^30.
    pub page_bytes: u64,
    pub seed: u64,
    /// Share of stores, 0 to 1.
    pub write_ratio: f64,
    /// Threads that take turns.
    pub threads: u32,
    /// The generator's own options that were given, by name.
    pub own: BTreeMap<String, Given>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            refs: 0,
            pages: 0,
            page_bytes: 4096,
            seed: 0,
            write_ratio: 0.0,
            threads: 1,
            own: BTreeMap::new(),
        }
    }
}

impl Params {
    /// Size of the range that references may touch.
    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// The generator's own options, as declared by `O`.
    pub(crate) fn own<O: Options>(&self) -> Result<O> {
        let names: Vec<_> = O::specs().iter().map(|spec| spec.name).collect();
        let mut own = self.own.clone();
        own.retain(|name, _| names.contains(&name.as_str()));
        O::read(&own).map_err(Error::refused)
    }

    /// The starting point of `thread`, if `whole` is divided equally among all threads.
    pub(crate) fn share(&self, thread: u32, whole: u64) -> u64 {
        (u128::from(whole) * u128::from(thread) / u128::from(self.threads)) as u64
    }

    fn check(&self, generator: &dyn Generator) -> Result<()> {
        let refuse = |flag: &str, what: String, fix: &str| Err(Error::input(flag, what, fix));
        if self.refs == 0 {
            return refuse("--refs", "0 references".into(), "give at least 1");
        }
        if self.pages == 0 {
            return refuse("--pages", "0 pages".into(), "give at least 1");
        }
        if !self.page_bytes.is_power_of_two() || !(SIZE..=1 << 30).contains(&self.page_bytes) {
            let what = format!("{} is not a power of two from 8 to 2^30", self.page_bytes);
            return refuse("--page-bytes", what, "give for instance 4096");
        }
        if self.pages.checked_mul(self.page_bytes).is_none_or(|bytes| bytes > LIMIT - BASE) {
            let what = format!("{} pages of {} bytes", self.pages, self.page_bytes);
            return refuse(
                "--pages",
                format!("{what} reach addresses beyond 2^47"),
                "give fewer or smaller pages",
            );
        }
        if !(0.0..=1.0).contains(&self.write_ratio) {
            let what = format!("{} is not a share from 0 to 1", self.write_ratio);
            return refuse("--write-ratio", what, "give for instance 0.3");
        }
        if !(1..=4096).contains(&self.threads) {
            let what = format!("{} threads", self.threads);
            return refuse("--threads", what, "give 1 to 4096");
        }
        if let Some(option) = self.own.keys().find(|option| !generator.takes(option)) {
            let takers: Vec<_> = GENERATORS
                .iter()
                .filter(|other| other.takes(option))
                .map(|generator| generator.name())
                .collect();
            return refuse(
                &format!("--{option}"),
                format!(
                    "{} takes no such option; it belongs to {}",
                    generator.name(),
                    takers.join(", ")
                ),
                "leave it out",
            );
        }
        Ok(())
    }
}

pub trait Generator: Sync {
    /// Name on the command line.
    fn name(&self) -> &'static str;
    /// The distribution of references, for help and docs.
    fn summary(&self) -> &'static str;
    /// Its own options, which [`Params::own`] reads.
    fn options(&self) -> Vec<Spec> {
        Vec::new()
    }
    /// Whether it takes this option.
    fn takes(&self, option: &str) -> bool {
        self.options().iter().any(|own| own.name == option)
    }
    /// The walk of thread `thread`. The caller has checked the common options.
    ///
    /// # Errors
    /// Its own options are invalid.
    fn walk(&self, params: &Params, thread: u32) -> Result<Box<dyn Walk>>;
}

/// The sequence of locations of a thread's references.
pub trait Walk {
    /// Byte offset of the next reference: a multiple of 8 below `pages * page_bytes`.
    fn next(&mut self, rng: &mut Rng) -> u64;
}

/// Draw an aligned offset in `page`, uniformly.
pub(crate) fn draw_within(page: u64, page_bytes: u64, rng: &mut Rng) -> u64 {
    page * page_bytes + rng.below(page_bytes / SIZE) * SIZE
}

pub fn by_name(name: &str) -> Result<&'static dyn Generator> {
    GENERATORS.iter().copied().find(|generator| generator.name() == name).ok_or_else(|| {
        let names: Vec<_> = GENERATORS.iter().map(|generator| generator.name()).collect();
        Error::input(
            "generate",
            format!("no generator is called `{name}`"),
            format!("choose one of {}", names.join(", ")),
        )
    })
}

/// An endless stream of generated references.
pub struct Stream {
    threads: Vec<(Rng, Box<dyn Walk>)>,
    /// A reference is a store if a 64-bit draw is below this, or if `only_stores` is set.
    store_limit: u64,
    only_stores: bool,
    turn: usize,
}

impl Stream {
    /// Check `params` and set up the generator called `name`.
    pub fn new(name: &str, params: &Params) -> Result<Self> {
        let generator = by_name(name)?;
        params.check(generator)?;
        let mut threads = Vec::new();
        for thread in 0..params.threads {
            let rng = Rng::stream(params.seed, u64::from(thread));
            threads.push((rng, generator.walk(params, thread)?));
        }
        let store_limit = (params.write_ratio * 2f64.powi(64)) as u64;
        Ok(Self { threads, store_limit, only_stores: params.write_ratio == 1.0, turn: 0 })
    }
}

impl Iterator for Stream {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let thread = self.turn as u32;
        let next = if self.turn + 1 == self.threads.len() { 0 } else { self.turn + 1 };
        let (rng, walk) = self.threads.get_mut(self.turn)?;
        self.turn = next;
        let addr = BASE + walk.next(rng);
        let store = self.only_stores || rng.next_u64() < self.store_limit;
        let kind = if store { Kind::Store } else { Kind::Load };
        Some(Record { addr, kind, size: SIZE as u16, thread, instr: 1 })
    }
}

/// Generate `params.refs` references with the generator `name` into a new trace folder `to`.
///
/// `on_progress` is called about every million references with the number so far; an error stops
/// the run. If the run fails, nothing is left at `to`.
pub fn generate(
    name: &str,
    params: &Params,
    to: &Path,
    overwrite: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Info> {
    let mut stream = Stream::new(name, params)?;
    let source = Source {
        kind: "generate".to_owned(),
        detail: name.to_owned(),
        command: command(name, params),
        ..Source::default()
    };
    let mut writer =
        Writer::create(to, source, WriterOptions { overwrite, ..WriterOptions::default() })?;
    let mut batch = Batch::default();
    let mut left = params.refs;
    while left > 0 {
        batch.clear();
        let count = left.min(1 << 16);
        for record in stream.by_ref().take(count as usize) {
            batch.push(record);
        }
        writer.push_batch(&batch)?;
        left -= count;
        let done = params.refs - left;
        if done.is_multiple_of(1 << 20) {
            on_progress(done)?;
        }
    }
    writer.finish(None)
}

/// The command line of `params`.
fn command(name: &str, params: &Params) -> Vec<String> {
    let mut words = vec!["nearfar".to_owned(), "generate".to_owned(), name.to_owned()];
    let mut option =
        |flag: &str, value: &dyn Display| words.extend([flag.into(), value.to_string()]);
    option("--refs", &params.refs);
    option("--pages", &params.pages);
    option("--page-bytes", &params.page_bytes);
    option("--seed", &params.seed);
    option("--write-ratio", &params.write_ratio);
    option("--threads", &params.threads);
    for spec in own_specs() {
        if let Some(value) = params.own.get(spec.name) {
            option(&spec.flag(), value);
        }
    }
    words
}

#[cfg(test)]
mod tests;
