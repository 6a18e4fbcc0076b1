//! `strided`: every `stride` bytes through all pages, repeatedly.
//!
//! Every round begins at the start of the range, and so touches the same words. Threads start at
//! equal distances.

use nearfar_schema::{Bytes, Options as _, Spec, none};

use super::rng::Rng;
use super::{Generator, Params, SIZE, Walk};
use crate::error::{Error, Result};

nearfar_schema::options! {
    /// The generator's own options.
    struct StridedOptions {
        /// Bytes from one reference to the next.
        stride: Option<Bytes> = none("a page"),
    }
}

pub struct Strided;

impl Generator for Strided {
    fn name(&self) -> &'static str {
        "strided"
    }
    fn summary(&self) -> &'static str {
        "every --stride bytes of all pages in order, repeatedly"
    }
    fn options(&self) -> Vec<Spec> {
        StridedOptions::specs()
    }
    fn walk(&self, params: &Params, thread: u32) -> Result<Box<dyn Walk>> {
        let own: StridedOptions = params.own()?;
        let stride = own.stride.map_or(params.page_bytes, |bytes| bytes.0);
        if stride == 0 || !stride.is_multiple_of(SIZE) || stride > params.bytes() {
            return Err(Error::input(
                "--stride",
                format!(
                    "{stride} is not a multiple of 8 from 8 to all {} bytes of the pages",
                    params.bytes()
                ),
                "give for instance 64",
            ));
        }
        Ok(Box::new(Steps::new(params, thread, stride)))
    }
}

/// Steps of equal length through the range, repeatedly.
pub(super) struct Steps {
    at: u64,
    stride: u64,
    bytes: u64,
}

impl Steps {
    pub fn new(params: &Params, thread: u32, stride: u64) -> Self {
        let steps = params.bytes().div_ceil(stride);
        Self { at: params.share(thread, steps) * stride, stride, bytes: params.bytes() }
    }
}

impl Walk for Steps {
    fn next(&mut self, _: &mut Rng) -> u64 {
        let at = self.at;
        self.at += self.stride;
        if self.at >= self.bytes {
            self.at = 0;
        }
        at
    }
}
