//! pinatrace: the output of the example tool of that name in Intel Pin.
//!
//! Lines `ip: R address` and `ip: W address`, hexadecimal, with or without `0x`. Lines that begin
//! with `#` (a heading, the closing `#eof`) are skipped, and nothing may follow `#eof`. There are
//! no sizes (each reference touches one byte), no fetches and no instruction counts.

use super::text::{hex, words};
use super::{Bad, Framing, Importer, Options, Parser};
use crate::record::{Kind, Record};

pub struct Pinatrace;

impl Importer for Pinatrace {
    fn name(&self) -> &'static str {
        "pinatrace"
    }
    fn summary(&self) -> &'static str {
        "text of Intel Pin's pinatrace, `ip: R address`"
    }
    fn holds(&self) -> &'static str {
        "loads and stores"
    }
    fn framing(&self) -> Framing {
        // A last line without a newline is an error: it may be half a line.
        Framing::Lines { final_newline: true }
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Lines { ended: false })
    }
}

struct Lines {
    ended: bool,
}

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        if self.ended {
            return Err("something after `#eof`".into());
        }
        if line.first() == Some(&b'#') {
            self.ended = line == b"#eof";
            return Ok(());
        }
        let mut words = words(line);
        let ip = words.next().and_then(|word| word.strip_suffix(b":"));
        hex(ip.ok_or(Bad::from("does not begin with `ip:`"))?)?;
        let kind = match words.next() {
            Some(b"R") => Kind::Load,
            Some(b"W") => Kind::Store,
            _ => return Err("neither R nor W after the instruction's address".into()),
        };
        let addr = hex(words.next().unwrap_or_default())?;
        if words.next().is_some() {
            return Err("more than `ip: R address`".into());
        }
        out.push(Record { addr, kind, size: 1, thread: 0, instr: 0 });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_errors, reference, strict};
    use super::*;

    #[test]
    fn lines_become_references() {
        assert_eq!(
            strict("pinatrace", b"#\n# heading\n0x401000: R 0x7ff0\n401003: W 8000\n#eof\n")
                .unwrap(),
            [reference(Kind::Load, 0x7ff0, 1, 0), reference(Kind::Store, 0x8000, 1, 0)]
        );
    }

    #[test]
    fn bad_lines_are_reported() {
        let cases = [
            ("0x40 R 0x1\n", "does not begin with `ip:`"),
            ("0x40: X 0x1\n", "neither R nor W"),
            ("0x40: R\n", "a hexadecimal number is missing"),
            ("0x40: R 0x1 8\n", "more than"),
            ("0x40: R 0x1\n#eof\n0x40: R 0x1\n", "something after `#eof`"),
        ];
        check_errors("pinatrace", &cases);
    }
}
