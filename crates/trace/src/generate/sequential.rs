//! `sequential`: word after word through all pages, repeatedly. Threads start at equal distances.

use super::strided::Steps;
use super::{Generator, Params, SIZE, Walk};
use crate::error::Result;

pub struct Sequential;

impl Generator for Sequential {
    fn name(&self) -> &'static str {
        "sequential"
    }
    fn summary(&self) -> &'static str {
        "every 8-byte word of all pages in order, repeatedly"
    }
    fn walk(&self, params: &Params, thread: u32) -> Result<Box<dyn Walk>> {
        Ok(Box::new(Steps::new(params, thread, SIZE)))
    }
}
