//! oracleGeneral: the binary format of libCacheSim for requests to objects.
//!
//! Packed little-endian records of 24 bytes: time u32 (seconds), object id u64, object size u32,
//! next i64 (number of the next request for the object; -1 or 2^63-1 if none). A request becomes a
//! load at address `id * object_bytes` (default 4096: ids are page numbers). Its size is that of
//! the object, but at most `object_bytes` and 65535, so that it touches one object. With
//! `object_bytes` 1, ids are byte addresses. Time and next are dropped: neither is a count of
//! instructions.

use super::{Bad, Framing, Head, Importer, Options, Parser};
use crate::record::{Kind, Record};

const SIZE: usize = 24;
/// Default bytes per object id: a page of 4 KiB.
pub const OBJECT_BYTES: u64 = 4096;

pub struct OracleGeneral;

impl Importer for OracleGeneral {
    fn name(&self) -> &'static str {
        "oracle-general"
    }
    fn summary(&self) -> &'static str {
        "libCacheSim's oracleGeneral, 24-byte binary requests to objects"
    }
    fn holds(&self) -> &'static str {
        "loads of whole objects"
    }
    fn framing(&self) -> Framing {
        Framing::Fixed(SIZE)
    }
    fn has_object_ids(&self) -> bool {
        true
    }
    fn parser(&self, options: &Options) -> Box<dyn Parser> {
        let object_bytes = options.object_bytes.unwrap_or(OBJECT_BYTES);
        Box::new(Requests { object_bytes })
    }
    // Times do not decrease, sizes are not 0, and `next` points forward. Four such requests in a
    // row are no coincidence.
    fn recognizes(&self, head: &Head<'_>) -> bool {
        let mut time = 0;
        let mut count = 0;
        for (index, record) in head.records(SIZE).enumerate() {
            let Some(request) = Request::from_bytes(record) else { return false };
            let next_ok = matches!(request.next, -1 | i64::MAX) || request.next > index as i64;
            if request.time < time || request.size == 0 || !next_ok {
                return false;
            }
            time = request.time;
            count += 1;
        }
        count >= 4
    }
}

struct Request {
    time: u32,
    id: u64,
    size: u32,
    next: i64,
}

impl Request {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            time: u32::from_le_bytes(bytes.get(0..4)?.try_into().ok()?),
            id: u64::from_le_bytes(bytes.get(4..12)?.try_into().ok()?),
            size: u32::from_le_bytes(bytes.get(12..16)?.try_into().ok()?),
            next: i64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?),
        })
    }
}

struct Requests {
    object_bytes: u64,
}

impl Parser for Requests {
    fn parse(&mut self, frame: &[u8], out: &mut Vec<Record>) -> Result<(), Bad> {
        let request = Request::from_bytes(frame).ok_or(Bad::from("not 24 bytes"))?;
        if request.next < -1 {
            return Err(format!("next request {} is below -1", request.next).into());
        }
        let addr = request.id.checked_mul(self.object_bytes).ok_or_else(|| {
            Bad::from(format!(
                "object {} times {} bytes is beyond 2^64 (ids that are hashes need \
                 --object-bytes 1)",
                request.id, self.object_bytes
            ))
        })?;
        let size = u64::from(request.size).min(self.object_bytes).min(u64::from(u16::MAX)) as u16;
        out.push(Record { addr, kind: Kind::Load, size, thread: 0, instr: 0 });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{error, reference, run, strict};
    use super::*;

    fn request(time: u32, id: u64, size: u32, next: i64) -> Vec<u8> {
        let mut bytes = time.to_le_bytes().to_vec();
        bytes.extend(id.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        bytes
    }

    #[test]
    fn requests_become_loads_of_their_objects() {
        let bytes = [request(0, 3, 100, 1), request(9, 3, 9_000_000, -1)].concat();
        assert_eq!(
            strict("oracle-general", &bytes).unwrap(),
            [reference(Kind::Load, 0x3000, 100, 0), reference(Kind::Load, 0x3000, 4096, 0)]
        );
        let options = Options { object_bytes: Some(1), ..Options::default() };
        assert_eq!(
            run("oracle-general", &request(0, u64::MAX, 7, i64::MAX), &options).unwrap(),
            [reference(Kind::Load, u64::MAX, 1, 0)]
        );
        let large = Options { object_bytes: Some(1 << 21), ..Options::default() };
        assert_eq!(
            run("oracle-general", &request(0, 1, 1 << 20, -1), &large).unwrap()[0].size,
            65535
        );
    }

    #[test]
    fn bad_requests_are_reported() {
        let beyond = error("oracle-general", &request(0, 1 << 52, 1, -1));
        assert!(
            beyond.contains("record 1, byte 0") && beyond.contains("--object-bytes 1"),
            "{beyond}"
        );
        let next = error("oracle-general", &[request(0, 1, 1, -1), request(0, 1, 1, -2)].concat());
        assert!(next.contains("record 2, byte 24") && next.contains("-2 is below -1"), "{next}");
        assert!(error("oracle-general", &request(0, 1, 0, -1)).contains("a size of 0"));
        let cut = error("oracle-general", &[request(0, 1, 1, -1), vec![0; 5]].concat());
        assert!(
            cut.contains("record 2, byte 24") && cut.contains("cut short: 5 of its 24"),
            "{cut}"
        );
    }
}
