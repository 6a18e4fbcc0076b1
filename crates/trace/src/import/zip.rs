//! Zip archives as one stream: the contents of their files, joined in order.
//!
//! DynamoRIO writes a trace as an archive of chunks. The archive is read from front to back, so that
//! standard input works; sizes may follow the contents (APPNOTE.TXT 4.3.9).

use std::io::{self, BufRead, BufReader, Read};

use flate2::{Decompress, FlushDecompress, Status};

const FILE: [u8; 4] = *b"PK\x03\x04";
const DESCRIPTOR: [u8; 4] = *b"PK\x07\x08";
/// An entry of the list of files at the end (the central directory).
const LISTED: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
/// Maximum bytes of the list of files.
const MAX_LIST: u64 = 64 << 20;

pub(super) struct Zip<R> {
    raw: BufReader<R>,
    inflate: Decompress,
    file: Option<File>,
    /// The signature of the next part of the archive, if it was read already.
    next: Option<[u8; 4]>,
    ended: bool,
}

/// The file that is being read.
struct File {
    deflated: bool,
    /// Remaining bytes of a file that is stored uncompressed.
    left: u64,
    /// Checksum and sizes follow the contents.
    described_later: bool,
    checksum: u32,
    hasher: crc32fast::Hasher,
    /// Its compressed data has ended.
    ended: bool,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<R: Read> Zip<R> {
    pub fn new(raw: R) -> Self {
        // `false`: deflate data in a zip archive have no zlib header.
        let (raw, inflate) = (BufReader::with_capacity(64 << 10, raw), Decompress::new(false));
        Self { raw, inflate, file: None, next: None, ended: false }
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.raw.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Begin the next file. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        let signature = match self.next.take() {
            Some(signature) => signature,
            None => self.take()?,
        };
        match signature {
            FILE => {}
            LISTED | END => return self.end(signature).map(|()| false),
            _ => return Err(damaged("no file follows where one should begin")),
        }
        // Version, flags, method, time (4 bytes), checksum, compressed and uncompressed size (4 bytes
        // each), lengths of the name and the extra field.
        let head: [u8; 26] = self.take()?;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 2)) << 16;
        let (flags, method) = (half(2), half(4));
        let described_later = flags & 8 != 0;
        let left = word(14);
        if flags & 1 != 0 {
            return Err(damaged("it is encrypted"));
        }
        let deflated = match method {
            8 => true,
            // Stored: only the size here says where it ends. 2^32 - 1 stands for a longer field (zip64).
            0 if !described_later && left < u64::from(u32::MAX) => false,
            _ => return Err(damaged("it is not compressed with deflate")),
        };
        let skip = u64::from(half(22)) + u64::from(half(24));
        if io::copy(&mut self.raw.by_ref().take(skip), &mut io::sink())? < skip {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.inflate.reset(false);
        let (checksum, hasher) = (word(10) as u32, crc32fast::Hasher::new());
        let file = File { deflated, left, described_later, checksum, hasher, ended: false };
        self.file = Some(file);
        Ok(true)
    }

    /// Read the list of files to its end, so that an archive that was cut off is noticed.
    fn end(&mut self, signature: [u8; 4]) -> io::Result<()> {
        let mut list = signature.to_vec();
        self.raw.by_ref().take(MAX_LIST).read_to_end(&mut list)?;
        // The end record has 22 bytes; the last two are the length of the comment that follows it.
        let end = memchr::memmem::rfind(&list, &END).map(|at| &list[at..]);
        let comment = end.and_then(|end| end.get(20..22)).map(|b| u16::from_le_bytes([b[0], b[1]]));
        let whole = comment
            .is_some_and(|bytes| end.is_some_and(|end| end.len() >= 22 + usize::from(bytes)));
        self.ended = whole;
        if whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Check a file that has ended.
    fn finish(&mut self, file: File) -> io::Result<()> {
        let mut checksum = file.checksum;
        if file.described_later {
            let mut first = self.take()?;
            if first == DESCRIPTOR {
                first = self.take()?;
            }
            checksum = u32::from_le_bytes(first);
            // Two sizes of 4 bytes, or of 8.
            let _sizes: [u8; 8] = self.take()?;
            let mut signature: [u8; 4] = self.take()?;
            if ![FILE, LISTED].contains(&signature) {
                let _rest: [u8; 4] = self.take()?;
                signature = self.take()?;
            }
            self.next = Some(signature);
        }
        let matches = file.hasher.finalize() == checksum;
        matches.then_some(()).ok_or_else(|| damaged("the checksum of a file in it is wrong"))
    }
}

impl<R: Read> Read for Zip<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while !self.ended && !to.is_empty() {
            let Some(file) = &mut self.file else {
                self.begin()?;
                continue;
            };
            let read = if file.ended || (!file.deflated && file.left == 0) {
                0
            } else if file.deflated {
                let from = self.raw.fill_buf()?;
                if from.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let (before, after) = (self.inflate.total_in(), self.inflate.total_out());
                let status = self.inflate.decompress(from, to, FlushDecompress::None);
                file.ended = status.map_err(|e| damaged(&e.to_string()))? == Status::StreamEnd;
                self.raw.consume((self.inflate.total_in() - before) as usize);
                let read = (self.inflate.total_out() - after) as usize;
                if read == 0 && !file.ended {
                    continue;
                }
                read
            } else {
                let read = self.raw.by_ref().take(file.left).read(to)?;
                if read == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                file.left -= read as u64;
                read
            };
            if read > 0 {
                file.hasher.update(&to[..read]);
                return Ok(read);
            }
            if let Some(file) = self.file.take() {
                self.finish(file)?;
            }
        }
        Ok(0)
    }
}
