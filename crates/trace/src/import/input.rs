//! Input streams of importers: opened, decompressed and split into frames.

use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result, remedy};
use crate::file;

use super::Framing;
use super::merged::Merged;
use super::zip::Zip;

/// Maximum length of a line. Real ones are under 1 KiB; without a limit, a damaged file of one
/// endless line would be read into memory.
pub const MAX_LINE: usize = 64 << 10;
/// Bytes from which a format is detected.
const HEAD: usize = 64 << 10;
const BUFFER: usize = 256 << 10;

/// The beginning of a (decompressed) stream.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its first bytes, at most 64 KiB.
    pub bytes: &'a [u8],
    /// Whether the stream has no further bytes.
    pub whole: bool,
}

impl<'a> Head<'a> {
    /// Its complete lines that are not blank.
    pub fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        let end = match memchr::memrchr(b'\n', self.bytes) {
            _ if self.whole => self.bytes.len(),
            Some(end) => end,
            None => 0,
        };
        self.bytes[..end].split(|&byte| byte == b'\n').map(trim_end).filter(|line| !blank(line))
    }

    /// Its complete records of `size` bytes; none if the stream ends within a record.
    pub fn records(&self, size: usize) -> impl Iterator<Item = &'a [u8]> {
        let usable = !self.whole || self.bytes.len().is_multiple_of(size);
        self.bytes[..if usable { self.bytes.len() } else { 0 }].chunks_exact(size)
    }
}

pub(super) enum Frame<'b> {
    /// A line without its newline, or a record.
    Whole(&'b [u8]),
    /// The stream ended within a frame, after this many bytes of it.
    CutShort(usize),
    /// A line longer than [`MAX_LINE`], for [`Input::skip_line`].
    TooLong,
    End,
}

pub struct Input<'a> {
    place: String,
    reader: Box<dyn Read + 'a>,
    compression: Option<&'static Compression>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `start` in the decompressed stream.
    offset: u64,
    ended: bool,
}

struct Compression {
    name: &'static str,
    magic: &'static [u8],
    #[allow(clippy::type_complexity)]
    wrap: for<'a> fn(Box<dyn Read + 'a>) -> io::Result<Box<dyn Read + 'a>>,
}

static COMPRESSIONS: &[Compression] = &[
    Compression {
        name: "gzip",
        magic: &[0x1f, 0x8b, 0x08],
        wrap: |raw| Ok(Box::new(flate2::read::MultiGzDecoder::new(raw))),
    },
    Compression {
        name: "xz",
        magic: &[0xfd, b'7', b'z', b'X', b'Z', 0],
        wrap: |raw| Ok(Box::new(liblzma::read::XzDecoder::new_multi_decoder(raw))),
    },
    Compression {
        name: "zstd",
        magic: &[0x28, 0xb5, 0x2f, 0xfd],
        wrap: |raw| Ok(Box::new(zstd::Decoder::new(raw)?)),
    },
    Compression { name: "zip", magic: b"PK\x03\x04", wrap: |raw| Ok(Box::new(Zip::new(raw))) },
    Compression {
        name: "snappy",
        magic: b"\xff\x06\0\0sNaP",
        wrap: |raw| Ok(Box::new(snap::read::FrameDecoder::new(raw))),
    },
];

/// A message if `head` is of a known kind of file that cannot be imported.
pub(super) fn unsupported(head: &[u8]) -> Option<&'static str> {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"BZh", "compressed by bzip2, which is not read"),
        (&[0x04, 0x22, 0x4d, 0x18], "compressed by lz4, which is not read"),
        (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive, not a trace"),
        (b"PAR1", "a Parquet file: give nearfar its whole trace folder instead"),
        (b"\x7fELF", "a program, not a trace"),
        (b"PERFILE2", "perf.data itself, not the text of `perf script`"),
        (b"gem5", "a gem5 packet trace, which is not read"),
    ];
    KNOWN.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what)
}

fn trim_end(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

pub(super) fn blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

impl Input<'static> {
    /// Open the file or the folder of drmemtrace files `path`, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Self::new("standard input", Box::new(io::stdin().lock()));
        }
        if path.is_dir() {
            let place = format!("{} (its files joined)", path.display());
            return Ok(Self::plain(place, Box::new(Merged::open(path)?), None));
        }
        Self::new(path.display().to_string(), Box::new(file::open_stream(path)?))
    }
}

impl<'a> Input<'a> {
    /// Wrap a stream, called `place` in errors. It is decompressed if it begins with the signature of
    /// a known compression.
    pub fn new(place: impl Into<String>, mut raw: Box<dyn Read + 'a>) -> Result<Self> {
        let place = place.into();
        let broken = |e: io::Error| Error::input(&place, format!("cannot read: {e}"), remedy(&e));
        let mut first = Vec::with_capacity(8);
        raw.by_ref().take(8).read_to_end(&mut first).map_err(broken)?;
        let compression = COMPRESSIONS.iter().find(|c| first.starts_with(c.magic));
        let joined: Box<dyn Read + 'a> = Box::new(io::Cursor::new(first).chain(raw));
        let reader = match compression {
            Some(c) => (c.wrap)(joined).map_err(broken)?,
            None => joined,
        };
        Ok(Self::plain(place, reader, compression))
    }

    fn plain(
        place: String,
        reader: Box<dyn Read + 'a>,
        compression: Option<&'static Compression>,
    ) -> Self {
        let buffer = vec![0; BUFFER];
        Self { place, reader, compression, buffer, start: 0, end: 0, offset: 0, ended: false }
    }

    /// Read this many bytes at a time. Call it before the first read.
    pub(super) fn with_buffer(mut self, bytes: usize) -> Self {
        self.buffer = vec![0; bytes];
        self
    }

    /// Name of the stream in errors.
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn is_compressed(&self) -> bool {
        self.compression.is_some()
    }

    /// The beginning of the unread part.
    pub fn head(&mut self) -> Result<Head<'_>> {
        while self.end - self.start < HEAD && !self.ended {
            self.fill()?;
        }
        let end = self.end.min(self.start + HEAD);
        Ok(Head { bytes: &self.buffer[self.start..end], whole: self.ended && end == self.end })
    }

    /// Read more bytes into the buffer.
    fn fill(&mut self) -> Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(count) => self.end += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // An error of `Merged`, which names the file.
                Err(e) if e.get_ref().is_some_and(|inner| inner.is::<Error>()) => {
                    return Err(e
                        .downcast::<Error>()
                        .unwrap_or_else(|e| Error::input(&self.place, e.to_string(), remedy(&e))));
                }
                Err(e) => {
                    let at = self.offset + self.end as u64;
                    // An error of the operating system is not damage.
                    let decoder = self.compression.filter(|_| e.raw_os_error().is_none());
                    let (what, fix) = match decoder {
                        Some(c) => (
                            format!(
                                "damaged or cut-off {} stream after {at} decompressed bytes: {e}",
                                c.name
                            ),
                            "get the file again, or keep its beginning with --max-refs N",
                        ),
                        None => (format!("cannot read beyond byte {at}: {e}"), remedy(&e)),
                    };
                    return Err(Error::input(&self.place, what, fix));
                }
            }
            return Ok(());
        }
    }

    /// Consume `consumed` bytes. Returns the first `length` of them.
    fn take(&mut self, length: usize, consumed: usize) -> &[u8] {
        let start = self.start;
        self.start += consumed;
        self.offset += consumed as u64;
        &self.buffer[start..start + length]
    }

    /// The next frame and its offset.
    pub(super) fn frame(&mut self, framing: Framing) -> Result<(u64, Frame<'_>)> {
        match framing {
            Framing::Fixed(size) => self.record(size),
            Framing::Lines { final_newline } => self.line(final_newline),
        }
    }

    fn record(&mut self, size: usize) -> Result<(u64, Frame<'_>)> {
        while self.end - self.start < size && !self.ended {
            self.fill()?;
        }
        let offset = self.offset;
        let have = self.end - self.start;
        Ok((
            offset,
            match have {
                0 => Frame::End,
                _ if have < size => Frame::CutShort(have),
                _ => Frame::Whole(self.take(size, size)),
            },
        ))
    }

    fn line(&mut self, final_newline: bool) -> Result<(u64, Frame<'_>)> {
        let mut searched = 0;
        loop {
            let offset = self.offset;
            let found = memchr::memchr(b'\n', &self.buffer[self.start + searched..self.end]);
            if let Some(found) = found {
                let length = searched + found;
                if length > MAX_LINE {
                    return Ok((offset, Frame::TooLong));
                }
                return Ok((offset, Frame::Whole(trim_end(self.take(length, length + 1)))));
            }
            searched = self.end - self.start;
            if searched > MAX_LINE {
                return Ok((offset, Frame::TooLong));
            }
            if self.ended {
                return Ok((
                    offset,
                    if searched == 0 {
                        Frame::End
                    } else if final_newline {
                        Frame::CutShort(searched)
                    } else {
                        Frame::Whole(trim_end(self.take(searched, searched)))
                    },
                ));
            }
            self.fill()?;
        }
    }

    /// Skip the rest of a line, however long, without buffering it.
    pub(super) fn skip_line(&mut self) -> Result<()> {
        loop {
            let found = memchr::memchr(b'\n', &self.buffer[self.start..self.end]);
            let count = found.map_or(self.end - self.start, |at| at + 1);
            self.start += count;
            self.offset += count as u64;
            if found.is_some() || self.ended {
                return Ok(());
            }
            self.fill()?;
        }
    }
}
