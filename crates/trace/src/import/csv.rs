//! CSV with named columns, comma-separated, one record per line.
//!
//! The first line names the columns, in any order: `addr` (required), `kind` (`load`, `store`,
//! `fetch`, `kernel-load`, `kernel-store`, `kernel-fetch`, or `r` `w` `i`; default load), `size`
//! (default 1), `thread` (an index below 2^20; default 0), `tid` (any number; numbered in order of
//! appearance; not with `thread`), `instr` (default 0). Other columns are errors. Numbers are decimal,
//! or hexadecimal with `0x`. Fields may be quoted, but not span lines.

use csv_core::{ReadRecordResult, Reader};

use super::text::{number, size};
use super::threads::{MAX_THREADS, Threads};
use super::{Bad, Framing, Importer, Options, Parser};
use crate::record::{Kind, Record};

pub struct Csv;

impl Importer for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }
    fn summary(&self) -> &'static str {
        "CSV with named columns: addr and any of kind, size, thread or tid, instr"
    }
    fn holds(&self) -> &'static str {
        "every kind of reference; sizes, threads and instructions if it has these columns"
    }
    fn framing(&self) -> Framing {
        Framing::Lines { final_newline: false }
    }
    fn parser(&self, _: &Options) -> Box<dyn Parser> {
        Box::new(Lines {
            reader: Reader::new(),
            text: vec![0; super::MAX_LINE + 1],
            ends: [0; 8],
            columns: None,
            threads: Threads::default(),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Addr,
    Kind,
    Size,
    Thread,
    Tid,
    Instr,
}

const COLUMNS: [(&str, Column); 6] = [
    ("addr", Column::Addr),
    ("kind", Column::Kind),
    ("size", Column::Size),
    ("thread", Column::Thread),
    ("tid", Column::Tid),
    ("instr", Column::Instr),
];

struct Lines {
    reader: Reader,
    /// Fields of the current line, unquoted and joined.
    text: Vec<u8>,
    /// End of each field in `text`.
    ends: [usize; 8],
    columns: Option<Vec<Column>>,
    threads: Threads,
}

impl Lines {
    /// Split `line` into `text` and `ends`. Returns the number of fields.
    fn split(&mut self, line: &[u8]) -> Result<usize, Bad> {
        self.reader.reset();
        let (mut input, mut written, mut fields) = (line, 0, 0);
        loop {
            // For csv-core, an empty input ends the record.
            let (result, read, wrote, ended) =
                self.reader.read_record(input, &mut self.text[written..], &mut self.ends[fields..]);
            input = &input[read..];
            written += wrote;
            fields += ended;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => break,
                ReadRecordResult::OutputFull => return Err("a field is too long".into()),
                ReadRecordResult::OutputEndsFull => return Err("more than 8 fields".into()),
                ReadRecordResult::End => return Err("no field".into()),
            }
        }
        Ok(fields)
    }

    fn field(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        self.text[start..self.ends[index]].trim_ascii()
    }

    fn heading(&self, fields: usize) -> Result<Vec<Column>, Bad> {
        let mut columns = Vec::new();
        for index in 0..fields {
            let mut name = self.field(index);
            if index == 0 {
                name = name.strip_prefix(b"\xef\xbb\xbf").unwrap_or(name);
            }
            let found = COLUMNS.iter().find(|(known, _)| name == known.as_bytes());
            let Some(&(known, column)) = found else {
                return Err(format!(
                    "column `{}` is not one of addr, kind, size, thread, tid, instr",
                    super::text::excerpt(name)
                )
                .into());
            };
            if columns.contains(&column) {
                return Err(format!("column `{known}` twice").into());
            }
            columns.push(column);
        }
        if !columns.contains(&Column::Addr) {
            return Err("no column `addr`".into());
        }
        if columns.contains(&Column::Thread) && columns.contains(&Column::Tid) {
            return Err("both `thread` and `tid`".into());
        }
        Ok(columns)
    }
}

fn kind(name: &[u8]) -> Result<Kind, Bad> {
    match name {
        b"r" | b"R" => return Ok(Kind::Load),
        b"w" | b"W" => return Ok(Kind::Store),
        b"i" | b"I" => return Ok(Kind::Fetch),
        _ => {}
    }
    std::str::from_utf8(name).ok().and_then(Kind::from_name).ok_or(
        "kind is not load, store, fetch, kernel-load, kernel-store, kernel-fetch, r, w or i".into(),
    )
}

impl Parser for Lines {
    fn parse(&mut self, line: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        let fields = self.split(line)?;
        let Some(columns) = self.columns.take() else {
            self.columns = Some(self.heading(fields)?);
            return Ok(());
        };
        let record = self.record(fields, &columns);
        self.columns = Some(columns);
        out.push(record?);
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.threads.processes().to_vec()
    }
}

impl Lines {
    fn record(&mut self, fields: usize, columns: &[Column]) -> Result<Record, Bad> {
        if fields != columns.len() {
            return Err(format!("{fields} fields where the heading has {}", columns.len()).into());
        }
        let mut record = Record { addr: 0, kind: Kind::Load, size: 1, thread: 0, instr: 0 };
        let mut tid = None;
        for (index, column) in columns.iter().enumerate() {
            let field = self.field(index);
            match column {
                Column::Addr => record.addr = number(field)?,
                Column::Kind => record.kind = kind(field)?,
                Column::Size => record.size = size(number(field)?)?,
                Column::Tid => tid = Some(number(field)?),
                Column::Thread => {
                    record.thread = u32::try_from(number(field)?)
                        .ok()
                        .filter(|&thread| (thread as usize) < MAX_THREADS)
                        .ok_or(Bad::from("thread index beyond 1048575 (name the column `tid`?)"))?;
                }
                Column::Instr => {
                    record.instr = u32::try_from(number(field)?)
                        .map_err(|_| Bad::from("an instruction count beyond 2^32"))?;
                }
            }
        }
        if let Some(tid) = tid {
            // 0: its process is unknown.
            record.thread = self.threads.index(tid, 0)?;
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_errors, reference, strict};
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let text =
            b"\xef\xbb\xbfsize, addr,kind,thread,instr\r\n8,0x10,store,3,7\r\n\"1\",20, r ,0,0";
        assert_eq!(
            strict("csv", text).unwrap(),
            [
                Record { addr: 0x10, kind: Kind::Store, size: 8, thread: 3, instr: 7 },
                reference(Kind::Load, 20, 1, 0),
            ]
        );
        let tids = strict("csv", b"addr,tid\n1,900\n2,70\n3,900\n").unwrap();
        assert_eq!(tids.iter().map(|r| r.thread).collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    fn bad_lines_are_reported() {
        let cases = [
            ("size,kind\n", "no column `addr`"),
            ("addr,addr\n", "column `addr` twice"),
            ("addr,adr\n", "column `adr` is not one of"),
            ("addr,tid,thread\n", "both `thread` and `tid`"),
            ("a,b,c,d,e,f,g,h,i\n", "more than 8 fields"),
            ("addr,size\n1\n", "1 fields where the heading has 2"),
            ("addr\nff\n", "not a decimal number"),
            ("addr\n-1\n", "not a decimal number"),
            ("addr\n18446744073709551616\n", "beyond 2^64"),
            ("addr,size\n1,NaN\n", "not a decimal number"),
            ("addr,size\n1,65536\n", "at most 65535"),
            ("addr,kind\n1,rw\n", "kind is not load"),
            ("addr,thread\n1,1048576\n", "name the column `tid`"),
            ("addr,instr\n1,4294967296\n", "beyond 2^32"),
        ];
        check_errors("csv", &cases);
    }
}
