//! perf: the output of `perf script -F pid,tid,time,event,ip,addr` (and more fields).
//!
//! A line is `pid/tid time: event: addr`. A command name may precede it, and `ip`, `phys_addr`,
//! `data_page_size` or `data_src` may follow; all are ignored, except that `OP LOAD` or `OP STORE` in
//! `data_src` determines the kind. Otherwise, an event with `store` in its name is a store, and any
//! other a load. Lines beginning with `#` are skipped; a sample without an address (0) is an error.
//! References touch one byte, and there are no instruction counts. The records are a **sample** of
//! the program's references: the trace is marked so, and its reuse distances are not those of the
//! program.

use super::text::{decimal, hex};
use super::threads::Threads;
use super::{Bad, Framing, Importer, Options, Parser, text};
use crate::record::{Kind, Record};

pub struct PerfScript;

impl Importer for PerfScript {
    fn name(&self) -> &'static str {
        "perf-script"
    }
    fn summary(&self) -> &'static str {
        "text of perf script -F pid,tid,time,event,ip,addr (sampled)"
    }
    fn holds(&self) -> &'static str {
        "loads and stores with threads"
    }
    fn framing(&self) -> Framing {
        // A last line without a newline is an error: it may be half a line.
        Framing::Lines { final_newline: true }
    }
    fn sampled(&self) -> bool {
        true
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Lines::default())
    }
}

#[derive(Default)]
struct Lines {
    threads: Threads,
}

/// Parse `pid/tid`; perf prints -1 for unknown ids.
fn ids(word: &[u8]) -> Option<(u32, u32)> {
    let slash = memchr::memchr(b'/', word)?;
    let id = |bytes: &[u8]| match bytes {
        b"-1" => Some(0),
        _ => decimal(bytes).ok().and_then(|id| u32::try_from(id).ok()),
    };
    Some((id(&word[..slash])?, id(&word[slash + 1..])?))
}

/// Whether `word` is `seconds.fraction:`.
fn is_time(word: &[u8]) -> bool {
    let Some(word) = word.strip_suffix(b":") else { return false };
    let Some(dot) = memchr::memchr(b'.', word) else { return false };
    decimal(&word[..dot]).is_ok() && decimal(&word[dot + 1..]).is_ok()
}

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        if line.first() == Some(&b'#') {
            return Ok(());
        }
        // A command name may contain blanks: find the first word that is `pid/tid`.
        let mut words = text::words(line);
        let (pid, tid) = words.find_map(ids).ok_or(Bad::from("no pid/tid"))?;
        let mut word = words.next().unwrap_or_default();
        // The processor, if selected, precedes the time.
        if matches!(word, [b'[', digits @ .., b']'] if decimal(digits).is_ok()) {
            word = words.next().unwrap_or_default();
        }
        if !is_time(word) {
            return Err("no time after pid/tid (use -F pid,tid,time,event,ip,addr)".into());
        }
        let mut event = words.next().unwrap_or_default();
        // The period, if selected, precedes the event.
        if decimal(event).is_ok() {
            event = words.next().unwrap_or_default();
        }
        let event = event.strip_suffix(b":").ok_or(Bad::from("no event after the time"))?;
        let addr = hex(words.next().unwrap_or_default())
            .map_err(|_| Bad::from("no address after the event (was perf record run with -d?)"))?;
        if addr == 0 {
            return Err("the sample has no address (0)".into());
        }
        let store = memchr::memmem::find(line, b"OP STORE").is_some()
            || (memchr::memmem::find(event, b"store").is_some()
                && memchr::memmem::find(line, b"OP LOAD").is_none());
        let kind = if store { Kind::Store } else { Kind::Load };
        let thread = self.threads.index(u64::from(pid) << 32 | u64::from(tid), pid)?;
        out.push(Record { addr, kind, size: 1, thread, instr: 0 });
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.threads.processes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_errors, full, reference, strict};
    use super::*;

    #[test]
    fn samples_become_references() {
        let text = b"# cmdline\n 17/18  2.5: cpu/mem-loads,ldlat=30/P:  7fff10  401000\n\
            my prog 2  17/17  [001] 2.6: 1 cpu/mem-stores/P:  7fff20  401000 0 4K\n\
            -1/18 2.7: ibs_op//: 30 1a2 |OP STORE|LVL L1 hit\n";
        let (records, summary) = full("perf-script", text, &Options::default()).unwrap();
        let seen: Vec<_> = records.iter().map(|r| (r.kind, r.addr, r.size, r.thread)).collect();
        assert_eq!(
            seen,
            [
                (Kind::Load, 0x7f_ff10, 1, 0),
                (Kind::Store, 0x7f_ff20, 1, 1),
                (Kind::Store, 0x30, 1, 2),
            ]
        );
        assert_eq!(summary.processes, [17, 17, 0]);
    }

    #[test]
    fn a_file_of_perf_is_imported_completely() {
        let text = include_bytes!("../../../../tests/data/small.perf-script");
        let records = strict("perf-script", text).unwrap();
        assert_eq!(records.len(), text.iter().filter(|&&byte| byte == b'\n').count());
        assert_eq!(records[0], reference(Kind::Load, 0x40_1000, 1, 0));
    }

    #[test]
    fn bad_lines_are_reported() {
        let cases = [
            ("perf 12 2.5: e: 10\n", "no pid/tid"),
            ("12/12 e: 10\n", "no time"),
            ("12/12 2.5: e 10\n", "no event"),
            ("12/12 2.5: e: (x)\n", "was perf record run with -d"),
            ("12/12 2.5: e: 0\n", "no address (0)"),
        ];
        check_errors("perf-script", &cases);
    }
}
