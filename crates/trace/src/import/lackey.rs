//! Valgrind Lackey: the text of `valgrind --tool=lackey --trace-mem=yes`.
//!
//! Lines `I  addr,size` (instruction), ` L addr,size`, ` S addr,size` and ` M addr,size` (load,
//! then store, of the same bytes); addresses hexadecimal, sizes decimal. Valgrind's own lines
//! (`==pid== ...`, `--pid-- ...`, `**pid** ...`) are passed over. Each `I` is one instruction and
//! one fetch of its bytes. Lackey serialises threads and does not name them: all are thread 0.

use super::text::{decimal, hex, size};
use super::{Bad, Framing, Importer, Options, Parser};
use crate::record::{Kind, Record};

/// The `lackey` format.
pub struct Lackey;

impl Importer for Lackey {
    fn name(&self) -> &'static str {
        "lackey"
    }
    fn summary(&self) -> &'static str {
        "text of valgrind --tool=lackey --trace-mem=yes"
    }
    fn framing(&self) -> Framing {
        Framing::Lines { final_newline: true }
    }
    fn parser(&self, _: &Options) -> Result<Box<dyn Parser>, Bad> {
        Ok(Box::new(Lines))
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
