//! CSV: `addr,kind,size,thread,instr`, addresses hexadecimal.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use super::{Encoder, Exporter, buffered};
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
    fn encoder(&self, file: File, _: u64) -> io::Result<Box<dyn Encoder>> {
        let mut out = buffered(file);
        writeln!(out, "addr,kind,size,thread,instr")?;
        Ok(Box::new(Lines { out }))
    }
}

struct Lines {
    out: BufWriter<File>,
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
