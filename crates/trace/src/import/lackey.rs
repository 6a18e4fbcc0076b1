//! Valgrind Lackey: the output of `valgrind --tool=lackey --trace-mem=yes`.
//!
//! Lines `I  addr,size` (instruction), ` L addr,size`, ` S addr,size` and ` M addr,size` (load,
//! then store, of the same bytes). Addresses are hexadecimal, sizes decimal. Valgrind's own lines
//! (`==pid== ...`, `--pid-- ...`, `**pid** ...`) are skipped. Each `I` is one instruction and one
//! fetch. Lackey serialises threads and does not identify them: all are thread 0.

use super::text::{decimal, hex, size};
use super::{Bad, Framing, Importer, Options, Parser};
use crate::record::{Kind, Record};

pub struct Lackey;

impl Importer for Lackey {
    fn name(&self) -> &'static str {
        "lackey"
    }
    fn summary(&self) -> &'static str {
        "text of valgrind --tool=lackey --trace-mem=yes"
    }
    fn holds(&self) -> &'static str {
        "fetches, loads and stores with sizes, 1 instruction per fetch"
    }
    fn framing(&self) -> Framing {
        Framing::Lines { final_newline: true }
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Lines)
    }
}

struct Lines;

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        let (kinds, rest): (&[Kind], _) = match line {
            [b'I', b' ', b' ', rest @ ..] => (&[Kind::Fetch], rest),
            [b' ', b'L', b' ', rest @ ..] => (&[Kind::Load], rest),
            [b' ', b'S', b' ', rest @ ..] => (&[Kind::Store], rest),
            [b' ', b'M', b' ', rest @ ..] => (&[Kind::Load, Kind::Store], rest),
            [b'=', b'=', rest @ ..] | [b'-', b'-', rest @ ..] | [b'*', b'*', rest @ ..]
                if rest.first().is_some_and(u8::is_ascii_digit) =>
            {
                return Ok(());
            }
            _ => return Err("neither a reference nor a line of Valgrind's".into()),
        };
        let comma = memchr::memchr(b',', rest).ok_or(Bad::from("no `address,size`"))?;
        let addr = hex(&rest[..comma])?;
        let size = size(decimal(&rest[comma + 1..])?)?;
        for &kind in kinds {
            let instr = u32::from(kind == Kind::Fetch);
            out.push(Record { addr, kind, size, thread: 0, instr });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{error, reference, strict};
    use super::*;

    #[test]
    fn lines_become_references() {
        let text =
            b"==12== Lackey\nI  04001000,3\n L 1ffe,8\n S 1fff000748,16\n M 10,4\n--12-- x\n";
        assert_eq!(
            strict("lackey", text).unwrap(),
            [
                reference(Kind::Fetch, 0x400_1000, 3, 1),
                reference(Kind::Load, 0x1ffe, 8, 0),
                reference(Kind::Store, 0x1f_ff00_0748, 16, 0),
                reference(Kind::Load, 0x10, 4, 0),
                reference(Kind::Store, 0x10, 4, 0),
            ]
        );
    }

    #[test]
    fn bad_lines_are_reported() {
        for (line, what) in [
            ("I 1000,3", "neither a reference"),
            (" X 1000,3", "neither a reference"),
            ("==x== y", "neither a reference"),
            (" L 1000", "no `address,size`"),
            (" L ,4", "a hexadecimal number is missing"),
            (" L 1000,", "a number is missing"),
            (" L 1000,4x", "not a decimal number"),
            (" L 1000,65536", "at most 65535"),
        ] {
            let error = error("lackey", format!("{line}\n").as_bytes());
            assert!(error.contains(what), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_of_valgrind_is_imported_completely() {
        let text = include_bytes!("../../../../tests/data/small.lackey");
        let records = strict("lackey", text).unwrap();
        let count = |kind| records.iter().filter(|record| record.kind == kind).count();
        let lines = |tag: &str| {
            let text = std::str::from_utf8(text).unwrap();
            text.lines().filter(|line| line.starts_with(tag)).count()
        };
        assert_eq!(count(Kind::Fetch), lines("I "));
        assert_eq!(count(Kind::Load), lines(" L") + lines(" M"));
        assert_eq!(count(Kind::Store), lines(" S") + lines(" M"));
        assert!(count(Kind::Fetch) > 100 && count(Kind::Store) > 10);
    }
}
