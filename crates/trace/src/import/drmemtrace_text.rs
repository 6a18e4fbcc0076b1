//! drmemtrace as text: what DynamoRIO's `view` tool prints of a drmemtrace trace.
//!
//! `record# instr#: tid ifetch|read|write N byte(s) @ 0xADDR ...`, where tid may carry a workload
//! (`W0.T42`); what follows the address (encoding, disassembly, `by PC`) is not used. Markers
//! (`<marker: ...>`, `<thread N exited>`), headings, rules, prefetches, flushes and instructions
//! that were not fetched anew are passed over. An ifetch is a fetch of its bytes and counts one
//! instruction. Threads are numbered in order of appearance.

use super::text::{decimal, hex, size, words};
use super::threads::Threads;
use super::{Bad, Framing, Importer, Options, Parser};
use crate::record::{Kind, Record};

/// The `drmemtrace-text` format.
pub struct DrmemtraceText;

impl Importer for DrmemtraceText {
    fn name(&self) -> &'static str {
        "drmemtrace-text"
    }
    fn summary(&self) -> &'static str {
        "text of DynamoRIO's drmemtrace view tool"
    }
    fn framing(&self) -> Framing {
        Framing::Lines { final_newline: true }
    }
    fn parser(&self, _: &Options) -> Result<Box<dyn Parser>, Bad> {
        Ok(Box::new(Lines::default()))
    }
}

#[derive(Default)]
struct Lines {
    threads: Threads,
    /// The line before was the heading of the columns or may be followed by a summary.
    ended: bool,
}

/// The number of a thread such as `342625` or `W0.T342625`; workloads are kept apart.
fn thread_name(word: &[u8]) -> Result<u64, Bad> {
    if let Some(rest) = word.strip_prefix(b"W") {
        let dot = memchr::memmem::find(rest, b".T").ok_or(Bad::from("no thread number"))?;
        let workload = decimal(&rest[..dot])?;
        let thread = decimal(&rest[dot + 2..])?;
        if workload >= 1 << 24 || thread >= 1 << 40 {
            return Err("a thread number beyond 2^40".into());
        }
        return Ok(workload << 40 | thread);
    }
    decimal(word).map_err(|_| "no thread number".into())
}

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        const HEADINGS: [&[u8]; 3] = [b"Output format:", b"<--record#->", b"-----"];
        if HEADINGS.iter().any(|heading| line.starts_with(heading)) {
            return Ok(());
        }
        // After the last record the tool sums up: `View tool results:` and a count.
        if line.starts_with(b"View tool results:") {
            self.ended = true;
            return Ok(());
        }
        if self.ended {
            return match words(line).next().map(decimal) {
                Some(Ok(_)) => Ok(()),
                _ => Err("something after the view tool's results".into()),
            };
        }
        let mut words = words(line);
        let record = words.next().unwrap_or_default();
        decimal(record).map_err(|_| Bad::from("does not begin with a record number"))?;
        let instruction = words.next().and_then(|word| word.strip_suffix(b":"));
        decimal(instruction.unwrap_or_default())
            .map_err(|_| Bad::from("no `instruction number:` after the record number"))?;
        let name = thread_name(words.next().unwrap_or_default())?;
        let what = words.next().unwrap_or_default();
        let kind = match what {
            b"read" => Kind::Load,
            b"write" => Kind::Store,
            b"ifetch" => Kind::Fetch,
            b"iflush" | b"dflush" => return Ok(()),
            _ if what.starts_with(b"<") || what.starts_with(b"pref") => return Ok(()),
            _ => return Err("no ifetch, read, write or <marker>".into()),
        };
        let size = size(decimal(words.next().unwrap_or_default())?)?;
        if words.next() != Some(b"byte(s)") || words.next() != Some(b"@") {
            return Err("no `byte(s) @` after the size".into());
        }
        let addr = hex(words.next().unwrap_or_default())?;
        let instr = u32::from(kind == Kind::Fetch);
        // A further round of a string instruction executes again without a fetch.
        if kind == Kind::Fetch && words.next() == Some(b"non-fetched") {
            return Ok(());
        }
        let thread = self.threads.index(name, 0)?;
        out.push(Record { addr, kind, size, thread, instr });
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.threads.processes().to_vec()
    }
}
