//! A folder of drmemtrace files, one for each thread or core, as one stream.
//!
//! The files are merged by their timestamps: the file that is at the earliest timestamp is read
//! until it is at a later one than another file. Between timestamps, the order of threads is not
//! known. After a switch to a file, the records that name its thread are repeated.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Framing;
use super::drmemtrace::{self, RECORD, record};
use super::input::{Frame, Input};
use crate::error::{Error, Result};

/// Bytes that are produced at a time.
const BATCH: usize = 64 << 10;

struct Stream {
    input: Input<'static>,
    /// The last records of the file that name a thread and a process.
    names: [Vec<u8>; 2],
}

pub(super) struct Merged {
    streams: Vec<Stream>,
    /// Time and index of the stream that is being read.
    current: Option<(u64, usize)>,
    /// Time and index of the other streams that have not ended, the earliest first.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    ready: Vec<u8>,
    taken: usize,
}

/// The trace files of threads or cores in `folder`, or in its folder `trace` if there is one.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let inner = folder.join("trace");
    let folder = if inner.is_dir() { &inner } else { folder };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let packed = ["zip", "gz", "sz", "xz", "zst"];
        let plain = name.rsplit_once('.').filter(|(_, last)| packed.contains(last));
        let plain = plain.map_or(&*name, |(name, _)| name);
        if (plain.ends_with(".trace") || plain.ends_with(".memtrace")) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

impl Merged {
    /// Open the files of `folder`.
    ///
    /// # Errors
    /// There are none, or one cannot be opened.
    pub fn open(folder: &Path) -> Result<Self> {
        let files = files(folder).map_err(|e| Error::io(folder, "cannot be listed", &e))?;
        if files.is_empty() {
            let raw = folder.join("raw").is_dir() || folder.ends_with("raw");
            let fix = if raw {
                "convert it with DynamoRIO: `drrun -t drmemtrace -indir FOLDER`"
            } else {
                "give the file that the other tool wrote (a nearfar trace needs no import)"
            };
            let what = "is a folder without trace files of drmemtrace";
            return Err(Error::input(folder.display().to_string(), what, fix));
        }
        let open = |path: &PathBuf| {
            let input = Input::open(path)?.with_buffer(BATCH);
            Ok(Stream { input, names: [Vec::new(), Vec::new()] })
        };
        let streams: Vec<_> = files.iter().map(open).collect::<Result<_>>()?;
        let waiting = (0..streams.len()).map(|index| Reverse((0, index))).collect();
        Ok(Self { streams, current: None, waiting, ready: Vec::new(), taken: 0 })
    }

    /// Read the next records into `ready`. Returns false at the end.
    fn fill(&mut self) -> Result<bool> {
        self.taken = 0;
        self.ready.clear();
        while self.ready.len() < BATCH {
            let Some((time, index)) = self.current else {
                let Some(Reverse(next)) = self.waiting.pop() else { break };
                self.current = Some(next);
                for name in &self.streams[next.1].names {
                    self.ready.extend_from_slice(name);
                }
                continue;
            };
            let Stream { input, names } = &mut self.streams[index];
            let bytes = match input.frame(Framing::Fixed(RECORD))? {
                (_, Frame::Whole(bytes)) => bytes,
                (_, Frame::End) => {
                    self.current = None;
                    continue;
                }
                _ => {
                    let what = "cut short: it ends within a record";
                    let fix = "get the file again, or keep its beginning with --max-refs N";
                    return Err(Error::input(input.place(), what, fix));
                }
            };
            self.ready.extend_from_slice(bytes);
            let (kind, size, value) = record(bytes);
            match kind {
                drmemtrace::THREAD => {
                    names[0] = bytes.to_vec();
                    names[1].clear();
                }
                drmemtrace::PROCESS => names[1] = bytes.to_vec(),
                // A marker's size field holds its type.
                drmemtrace::MARKER if size == drmemtrace::TIMESTAMP && value > time => {
                    let now = (value, index);
                    if self.waiting.peek().is_some_and(|Reverse(next)| *next < now) {
                        self.waiting.push(Reverse(now));
                        self.current = None;
                    } else {
                        self.current = Some(now);
                    }
                }
                _ => {}
            }
        }
        Ok(!self.ready.is_empty())
    }
}

impl Read for Merged {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.ready.len() && !self.fill().map_err(io::Error::other)? {
            return Ok(0);
        }
        let count = to.len().min(self.ready.len() - self.taken);
        to[..count].copy_from_slice(&self.ready[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}
