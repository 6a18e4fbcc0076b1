//! Dinero IV, extended din (`-informat D`): `r|w|i address size`, hexadecimal.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::{Encoder, Exporter, buffered};
use crate::record::{Kind, Record};

pub struct Dinero;

impl Exporter for Dinero {
    fn name(&self) -> &'static str {
        "dinero"
    }
    fn summary(&self) -> &'static str {
        "Dinero IV extended text, `r 1fff 8`"
    }
    fn loses(&self) -> &'static str {
        "threads, instruction counts, and which references were the kernel's"
    }
    fn encoder(&self, file: File, _: u64) -> io::Result<Box<dyn Encoder>> {
        Ok(Box::new(Lines { out: buffered(file) }))
    }
}

struct Lines {
    out: BufWriter<File>,
}

impl Encoder for Lines {
    fn put(&mut self, record: Record) -> io::Result<()> {
        let letter = match record.kind {
            Kind::Load | Kind::KernelLoad => 'r',
            Kind::Store | Kind::KernelStore => 'w',
            Kind::Fetch | Kind::KernelFetch => 'i',
        };
        writeln!(self.out, "{letter} {:x} {:x}", record.addr, record.size)
    }
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.out.flush()
    }
}
