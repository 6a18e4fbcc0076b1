//! CSV: `addr,kind,size,thread,instr`, addresses hexadecimal.

use std::io::{self, Write};

use super::{Encoder, Exporter, Options, Target};
use crate::record::Record;

pub struct Csv;

impl Exporter for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }
    fn summary(&self) -> &'static str {
        "CSV with columns addr, kind, size, thread, instr"
    }
    fn loses(&self) -> &'static str {
        "only the events of address spaces, such as mappings"
    }
    fn encoder(&self, target: Target, _: &Options) -> io::Result<Box<dyn Encoder>> {
        let mut out = target.into_stream();
        writeln!(out, "addr,kind,size,thread,instr")?;
        Ok(Box::new(Lines { out }))
    }
}

struct Lines {
    out: Box<dyn Write>,
}

impl Encoder for Lines {
    fn put(&mut self, record: Record) -> io::Result<()> {
        let Record { addr, kind, size, thread, instr } = record;
        writeln!(self.out, "{addr:#x},{},{size},{thread},{instr}", kind.name())
    }
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.out.flush()
    }
}
