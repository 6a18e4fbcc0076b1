//! Dinero IV: both text formats.
//!
//! `d` (classic din): `label address`, where the label is a hexadecimal digit: 0 read, 1 write, 2
//! instruction fetch, 3 other reference (imported as a load), 4 cache flush (skipped). There are no
//! sizes: each reference touches one byte. `D` (extended din): `kind address size`, with the kinds
//! `r`, `w`, `i`, `m` (other, imported as a load), `c` and `v` (copy back and invalidate, skipped).
//! Addresses and sizes are hexadecimal.
//!
//! The first word of a record, a digit or a letter, determines the format; a file that mixes them
//! is bad. A fetch counts one instruction.

use super::text::{hex, size, words};
use super::{Bad, Framing, Importer, Options, Parser};
use crate::record::{Kind, Record};

pub struct Dinero;

impl Importer for Dinero {
    fn name(&self) -> &'static str {
        "dinero"
    }
    fn summary(&self) -> &'static str {
        "Dinero IV text, classic `0 1fff` or extended `r 1fff 8`"
    }
    fn holds(&self) -> &'static str {
        "fetches, loads and stores, sizes if extended, 1 instruction per fetch"
    }
    fn framing(&self) -> Framing {
        Framing::Lines { final_newline: true }
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Lines { extended: None })
    }
}

struct Lines {
    extended: Option<bool>,
}

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        let mut words = words(line);
        let (kind, extended) = match words.next() {
            Some(b"0") => (Some(Kind::Load), false),
            Some(b"1") => (Some(Kind::Store), false),
            Some(b"2") => (Some(Kind::Fetch), false),
            Some(b"3") => (Some(Kind::Load), false),
            Some(b"4") => (None, false),
            Some(b"r" | b"m") => (Some(Kind::Load), true),
            Some(b"w") => (Some(Kind::Store), true),
            Some(b"i") => (Some(Kind::Fetch), true),
            Some(b"c" | b"v") => (None, true),
            _ => {
                return Err(
                    "the first word is neither a label (0-4) nor a kind (r w i m c v)".into()
                );
            }
        };
        let addr = hex(words.next().unwrap_or_default())?;
        let size = match (extended, words.next()) {
            (true, Some(word)) => size(hex(word)?)?,
            (true, None) => return Err("no size after the address".into()),
            (false, None) => 1,
            (false, Some(_)) => return Err("more than `label address`".into()),
        };
        if words.next().is_some() {
            return Err("more than `kind address size`".into());
        }
        if *self.extended.get_or_insert(extended) != extended {
            return Err("classic and extended records in one file".into());
        }
        if let Some(kind) = kind {
            let instr = u32::from(kind == Kind::Fetch);
            out.push(Record { addr, kind, size, thread: 0, instr });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_errors, reference, strict};
    use super::*;

    #[test]
    fn lines_of_both_formats_become_references() {
        assert_eq!(
            strict("dinero", b"0 10\n1 0x20\n 2\t30\n3 40\n4 0\n").unwrap(),
            [
                reference(Kind::Load, 0x10, 1, 0),
                reference(Kind::Store, 0x20, 1, 0),
                reference(Kind::Fetch, 0x30, 1, 1),
                reference(Kind::Load, 0x40, 1, 0),
            ]
        );
        assert_eq!(
            strict("dinero", b"r 10 8\nw 20 10\ni 30 3\nm 40 1\nc 0 0\nv 0 0\n").unwrap(),
            [
                reference(Kind::Load, 0x10, 8, 0),
                reference(Kind::Store, 0x20, 16, 0),
                reference(Kind::Fetch, 0x30, 3, 1),
                reference(Kind::Load, 0x40, 1, 0),
            ]
        );
    }

    #[test]
    fn bad_lines_are_reported() {
        let cases = [
            ("5 10\n", "neither a label"),
            ("0 10 4\n", "more than `label address`"),
            ("r 10\n", "no size"),
            ("r 10 4 4\n", "more than `kind address size`"),
            ("0 10\nr 10 4\n", "classic and extended"),
            ("0\n", "a hexadecimal number is missing"),
        ];
        check_errors("dinero", &cases);
    }
}
