//! Reads untrusted Parquet files. A file is opened once and read at offsets, one page at a time, of at
//! most [`MAX_PAGE`] bytes. Errors of the Parquet crate become one line.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Once};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::error::{Error, Result, remedy};
use crate::file;

/// Maximum bytes of an uncompressed page. Usual pages have 1 MiB, ours up to 8. A damaged or
/// hostile header may claim 2 GiB, and a few kilobytes can decompress to that.
const MAX_PAGE: u64 = 64 << 20;

/// An open, untrusted Parquet file.
pub(crate) struct Foreign {
    /// Its footer.
    pub(crate) metadata: ParquetMetaData,
    pages: Arc<Pages>,
}

impl Foreign {
    /// Open `path`. `fix` is the remedy if it is damaged.
    pub(crate) fn open(path: &Path, fix: &str) -> Result<Self> {
        let file = file::open(path)?;
        let length = file.metadata().map_err(|e| Error::io(path, "cannot read", &e))?.len();
        let shared = SharedFile { file: Arc::new(file), length };
        let metadata = guard(&path.display().to_string(), fix, || {
            ParquetMetaDataReader::new().parse_and_finish(&shared)
        })?;
        Ok(Self { metadata, pages: Arc::new(Pages(shared)) })
    }

    /// Rows that the row groups claim.
    pub(crate) fn rows(&self) -> u64 {
        let claimed = self.metadata.row_groups().iter().map(|group| group.num_rows());
        claimed.fold(0, |sum, rows| sum.saturating_add(u64::try_from(rows).unwrap_or(0)))
    }

    /// The pages of a column of a row group with `rows` rows.
    pub(crate) fn pages(
        &self,
        group: usize,
        column: usize,
        rows: usize,
    ) -> ParquetResult<SerializedPageReader<Pages>> {
        let metadata = self.metadata.row_group(group).column(column);
        SerializedPageReader::new(self.pages.clone(), metadata, rows, None)
    }
}

/// A file whose readers share the descriptor, but not its position.
struct SharedFile {
    file: Arc<File>,
    length: u64,
}

pub(crate) struct OffsetReader {
    file: Arc<File>,
    offset: u64,
}

impl Read for OffsetReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Length for SharedFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for SharedFile {
    type T = BufReader<OffsetReader>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(OffsetReader { file: self.file.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let short = || {
            let total = self.length;
            Err(ParquetError::EOF(format!("{length} bytes at {start} of a file of {total}")))
        };
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return short();
        }
        let mut bytes = Vec::with_capacity(length);
        let rest = OffsetReader { file: self.file.clone(), offset: start };
        match rest.take(length as u64).read_to_end(&mut bytes)? {
            read if read == length => Ok(bytes.into()),
            _ => short(),
        }
    }
}

/// A file whose reads begin at page headers. Checks the size of each page before it is decompressed.
pub(crate) struct Pages(SharedFile);

impl Length for Pages {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Pages {
    type T = BufReader<OffsetReader>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut read = self.0.get_read(start)?;
        match uncompressed_size(read.fill_buf()?) {
            Some(bytes) if bytes <= MAX_PAGE => Ok(read),
            Some(bytes) => {
                let max = MAX_PAGE >> 20;
                Err(ParquetError::General(format!("a page of {bytes} bytes, over {max} MiB")))
            }
            None => Err(ParquetError::General("no page header at the expected offset".to_owned())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// The uncompressed size of a page from its header, in Thrift's compact protocol. The header begins
/// with the required integers `type`, `uncompressed_page_size` and `compressed_page_size`.
fn uncompressed_size(header: &[u8]) -> Option<u64> {
    /// Field header: the next field number, type i32.
    const NEXT_I32: u8 = 0x15;
    let after_type = header.strip_prefix(&[NEXT_I32])?;
    let (_, length) = read_varint(after_type)?;
    let (size, _) = read_varint(after_type[length..].strip_prefix(&[NEXT_I32])?)?;
    // Zigzag encoding: the lowest bit is the sign.
    (size & 1 == 0).then_some(size >> 1)
}

/// Read a LEB128 number of at most nine bytes. Returns the number and its length in bytes.
pub(super) fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

thread_local! {
    /// Whether this thread is in [`guard`], which turns panics into errors.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}
static HOOK: Once = Once::new();

/// Run a call into the Parquet crate. If it fails or panics, the error is one line and says that
/// the file is damaged, unless the operating system returned an error.
pub(crate) fn guard<T>(
    place: &str,
    fix: &str,
    call: impl FnOnce() -> ParquetResult<T>,
) -> Result<T> {
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                previous(panic);
            }
        }));
    });
    let damaged = |why: String| {
        // The decoder's message may have several lines.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::input(place, format!("truncated or damaged: {why}"), fix)
    };
    let was_guarded = GUARDED.replace(true);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    GUARDED.set(was_guarded);
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(match system_error(&e) {
            Some(e) => Error::input(place, format!("cannot read: {e}"), remedy(e)),
            None => damaged(e.to_string()),
        }),
        Err(_) => Err(damaged("its pages are inconsistent".to_owned())),
    }
}

/// The error of the operating system in an error of the Parquet crate, if any.
pub(crate) fn system_error(error: &ParquetError) -> Option<&io::Error> {
    let ParquetError::External(error) = error else { return None };
    error.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some())
}
