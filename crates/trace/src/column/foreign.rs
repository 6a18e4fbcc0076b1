//! Parquet files that anybody may have written: opened once, read at offsets, a page at a time and
//! none of more than [`MAX_PAGE`] bytes; and what their reader says, in one line.

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

/// Most bytes of a page, unpacked. Writers make pages of some 1 MiB, and here of 8; a damaged or
/// hostile header may claim 2 GiB, and a few kilobytes unpack to that.
const MAX_PAGE: u64 = 64 << 20;

/// A Parquet file whose footer was read.
pub(crate) struct Foreign {
    /// What the footer says.
    pub(crate) metadata: ParquetMetaData,
    pages: Arc<Pages>,
}

impl Foreign {
    /// Open `path`; `fix` is what to do about it where it is damaged.
    pub(crate) fn open(path: &Path, fix: &str) -> Result<Self> {
        let file = file::open(path)?;
        let length = file.metadata().map_err(|e| Error::io(path, "cannot read", &e))?.len();
        let whole = Whole { file: Arc::new(file), length };
        let metadata = guard(&path.display().to_string(), fix, || {
            ParquetMetaDataReader::new().parse_and_finish(&whole)
        })?;
        Ok(Self { metadata, pages: Arc::new(Pages(whole)) })
    }

    /// Rows that the row groups claim.
    pub(crate) fn rows(&self) -> u64 {
        let claimed = self.metadata.row_groups().iter().map(|group| group.num_rows());
        claimed.fold(0, |sum, rows| sum.saturating_add(u64::try_from(rows).unwrap_or(0)))
    }

    /// The pages of a column of a row group of `rows`.
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

/// A file that is read at offsets: its readers share one descriptor, and no position.
struct Whole {
    file: Arc<File>,
    length: u64,
}

/// The bytes of a file from an offset on.
pub(crate) struct Rest {
    file: Arc<File>,
    offset: u64,
}

impl Read for Rest {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Length for Whole {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Whole {
    type T = BufReader<Rest>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(Rest { file: self.file.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let short = || {
            let of = self.length;
            Err(ParquetError::EOF(format!("{length} bytes at {start} of a file of {of}")))
        };
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return short();
        }
        let mut bytes = Vec::with_capacity(length);
        let rest = Rest { file: self.file.clone(), offset: start };
        match rest.take(length as u64).read_to_end(&mut bytes)? {
            read if read == length => Ok(bytes.into()),
            _ => short(),
        }
    }
}

/// The same where pages begin: each is looked at before anything is unpacked.
pub(crate) struct Pages(Whole);

impl Length for Pages {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Pages {
    type T = BufReader<Rest>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut read = self.0.get_read(start)?;
        let unpacked = unpacked_bytes(read.fill_buf()?);
        match unpacked {
            Some(bytes) if bytes <= MAX_PAGE => Ok(read),
            Some(bytes) => {
                let most = MAX_PAGE >> 20;
                Err(ParquetError::General(format!("a page of {bytes} bytes, over {most} MiB")))
            }
            None => Err(ParquetError::General("no page header where one should be".to_owned())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// The size of an unpacked page, by its header: Thrift's compact protocol, whose first fields are
/// the required integers `type`, `uncompressed_page_size` and `compressed_page_size`.
fn unpacked_bytes(header: &[u8]) -> Option<u64> {
    /// An i32, in the field after the last.
    const NEXT_I32: u8 = 0x15;
    let after_type = header.strip_prefix(&[NEXT_I32])?;
    let (_, length) = read_varint(after_type)?;
    let (size, _) = read_varint(after_type[length..].strip_prefix(&[NEXT_I32])?)?;
    // Signs are in the lowest bit; a negative size is none.
    (size & 1 == 0).then_some(size >> 1)
}

/// A number of at most nine bytes of seven bits, the lowest first, and how many there were.
pub(super) fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (place, byte) in bytes.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7F) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, place + 1));
        }
    }
    None
}

thread_local! {
    /// This thread is in [`guard`]: a panic is an answer.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}
static QUIET: Once = Once::new();

/// Run a Parquet call; a damaged file must end in one line whatever the decoder does. What the system
/// refuses (too many open files, a failing disk) is no damage.
pub(crate) fn guard<T>(
    place: &str,
    fix: &str,
    call: impl FnOnce() -> ParquetResult<T>,
) -> Result<T> {
    QUIET.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                previous(panic);
            }
        }));
    });
    let damaged = |why: String| {
        // What the decoder says may go over several lines.
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::input(place, format!("truncated or damaged: {why}"), fix)
    };
    let outer = GUARDED.replace(true);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    GUARDED.set(outer);
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(match system_error(&e) {
            Some(e) => Error::input(place, format!("cannot read: {e}"), remedy(e)),
            None => damaged(e.to_string()),
        }),
        Err(_) => Err(damaged("its pages contradict each other".to_owned())),
    }
}

/// The error of the operating system in what the Parquet crate says, if there is one.
pub(crate) fn system_error(error: &ParquetError) -> Option<&io::Error> {
    let ParquetError::External(error) = error else { return None };
    error.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some())
}
