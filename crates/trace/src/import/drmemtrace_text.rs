//! drmemtrace as text: the output of DynamoRIO's `view` tool.
//!
//! `record# instr#: tid ifetch|read|write N byte(s) @ 0xADDR ...`, where tid may include a workload
//! (`W0.T42`). Fields after the address (encoding, disassembly, `by PC`) are ignored. Markers
//! (`<marker: ...>`, `<thread N exited>`), headings, rules, prefetches, flushes, second lines of a
//! long encoding, instructions that were not fetched again and the lines of `invariant_checker` are
//! skipped. A reference of 0 bytes, whose size is not known, touches one. Between `<marker: trace
//! start for ...>` and its end, the kernel is at work: see [`super::drmemtrace`]. An ifetch is a fetch and
//! counts one instruction. Threads are numbered in order of appearance.

use rustc_hash::FxHashSet;

use super::drmemtrace::in_kernel;
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
    fn holds(&self) -> &'static str {
        "fetches, loads and stores with sizes and threads, the kernel's apart, 1 instruction a fetch"
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
    /// Threads that are in the trace of a system call or context switch.
    in_kernel: FxHashSet<u64>,
    /// The closing summary has begun.
    ended: bool,
}

/// Parse a thread such as `342625` or `W0.T342625`. Threads of different workloads differ.
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

/// A byte of an encoding that did not fit its line.
fn encoding_byte(word: &[u8]) -> bool {
    word.len() == 2 && word.iter().all(u8::is_ascii_hexdigit)
}

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        const HEADINGS: [&[u8]; 9] = [
            b"Output format:",
            b"<--record#->",
            b"-----",
            b"<marker: ",
            // Between tools, and what `invariant_checker` prints.
            b"=====",
            b"Trace invariant ",
            b"Found ",
            b"WARNING: invariant_checker ",
            b"Some invariant checks ",
        ];
        if HEADINGS.iter().any(|heading| line.starts_with(heading)) {
            return Ok(());
        }
        // After the last record, the tool prints a summary: `View tool results:` and a count.
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
        if words(line).all(encoding_byte) {
            return Ok(());
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
            b"<marker:" if words.next() == Some(b"trace") => {
                match words.next() {
                    Some(b"start") => self.in_kernel.insert(name),
                    _ => self.in_kernel.remove(&name),
                };
                return Ok(());
            }
            _ if encoding_byte(what) => return Ok(()),
            _ if what.starts_with(b"<") || what.starts_with(b"pref") => return Ok(()),
            _ => return Err("no ifetch, read, write or <marker>".into()),
        };
        // A size that DynamoRIO does not know is 0 (`xsave`).
        let size = size(decimal(words.next().unwrap_or_default())?)?.max(1);
        if words.next() != Some(b"byte(s)") || words.next() != Some(b"@") {
            return Err("no `byte(s) @` after the size".into());
        }
        let addr = hex(words.next().unwrap_or_default())?;
        let instr = u32::from(kind == Kind::Fetch);
        // Further iterations of a string instruction execute without a fetch.
        if kind == Kind::Fetch && words.next() == Some(b"non-fetched") {
            return Ok(());
        }
        let kind = if self.in_kernel.contains(&name) { in_kernel(kind) } else { kind };
        let thread = self.threads.index(name, 0)?;
        out.push(Record { addr, kind, size, thread, instr });
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.threads.processes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::full;
    use super::super::tests::{error, reference};
    use super::*;

    const TEXT: &str = "\
Output format:
<--record#-> <--instr#->: <---tid---> <record details>
------------------------------------------------------------
           1           0:        4242 <marker: version 7>
           2           1:        4242 ifetch       3 byte(s) @ 0x0000000000404a7e 48 8b 5c  mov x
           3           1:        4242 read         8 byte(s) @ 0x00007fdf64e2adc8 by PC 0x0000000000404a7e
           4           2:        4242 ifetch       9 byte(s) @ 0x0000000000404a81 48 c7 c0 0f 00 00 00 mov y
           4           2:        4242                                             00 00
           5           2:        4242 ifetch       2 byte(s) @ 0x0000000000404a8a non-fetched instruction
           6           2:        4242 pref-r-L1    1 byte(s) @ 0x0000000000404a8a by PC 0x0000000000404a81
------------------------------------------------------------
           7           2:     W1.T4243 <marker: tid 4243 on core 7>
           8           2:     W1.T4243 write        4 byte(s) @ 0x00007ffd90c1394c by PC 0x0000000000402581
           9           2:     W1.T4243 <thread 4243 exited>
          10           2:     W1.T4243 <marker: trace start for system call number 1>
          11           3:     W1.T4243 ifetch       2 byte(s) @ 0xffffffff81000000 0f 05  syscall
          12           3:     W1.T4243 write        0 byte(s) @ 0xffff888000000000 by PC 0x1
          13           3:     W1.T4243 <marker: trace end for system call number 1>
Trace invariant failure in T4243 at ref # 4 at instruction # 2 (1 instrs since timestamp 1): x
View tool results:
              2 : total instructions
===========================================================================
WARNING: invariant_checker is being run on an OFFLINE_FILE_TYPE_ARCH_REGDEPS trace.
Some invariant checks have been disabled.
Found 1 invariant errors
Trace invariant checks passed
";

    #[test]
    fn lines_become_references() {
        let (records, summary) =
            full("drmemtrace-text", TEXT.as_bytes(), &Options::default()).unwrap();
        let mut write = reference(Kind::Store, 0x7ffd_90c1_394c, 4, 0);
        write.thread = 1;
        let mut system_call = [
            reference(Kind::KernelLoad, 0xffff_ffff_8100_0000, 2, 1),
            reference(Kind::KernelStore, 0xffff_8880_0000_0000, 1, 0),
        ];
        system_call.iter_mut().for_each(|record| record.thread = 1);
        let [syscall, stored] = system_call;
        assert_eq!(
            records,
            [
                reference(Kind::Fetch, 0x40_4a7e, 3, 1),
                reference(Kind::Load, 0x7fdf_64e2_adc8, 8, 0),
                reference(Kind::Fetch, 0x40_4a81, 9, 1),
                write,
                syscall,
                stored,
            ]
        );
        assert_eq!(summary.processes, [0, 0]);
    }

    #[test]
    fn bad_lines_are_reported() {
        for (text, what) in [
            ("x 1: 2 read 8 byte(s) @ 0x1\n", "record number"),
            ("1 1 2 read 8 byte(s) @ 0x1\n", "instruction number"),
            ("1 1: x read 8 byte(s) @ 0x1\n", "no thread number"),
            ("1 1: W1 read 8 byte(s) @ 0x1\n", "no thread number"),
            ("1 1: 2 reads 8 byte(s) @ 0x1\n", "no ifetch, read, write"),
            ("1 1: 2 read 8 bytes @ 0x1\n", "no `byte(s) @`"),
            ("1 1: 2 read 8 byte(s) @ \n", "a hexadecimal number is missing"),
            ("View tool results:\nmore\n", "after the view tool's results"),
        ] {
            let error = error("drmemtrace-text", text.as_bytes());
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
