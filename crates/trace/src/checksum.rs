//! Checksums of files: 128-bit XXH3, computed while a file is written.
//!
//! They detect accidental changes, but are not signatures. `xxh128sum` computes the same checksums.

use std::fmt;
use std::io::{self, BufReader, Write};
use std::path::Path;

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use twox_hash::xxhash3_128::Hasher;

use crate::error::{Error, Result};
use crate::file;

/// Names the algorithm in `trace.json`.
const PREFIX: &str = "xxh3-128:";

/// The checksum of a file. As text: `xxh3-128:` and 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u128);

impl Checksum {
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let hexadecimal = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
        let valid = digits.len() == 32 && digits.bytes().all(hexadecimal);
        valid.then(|| u128::from_str_radix(digits, 16).ok()).flatten().map(Self)
    }

    /// The checksum of the file `path`, and its size in bytes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(path: &Path) -> Result<(Self, u64)> {
        let mut file = BufReader::with_capacity(1 << 18, file::open(path)?);
        let mut sum = ChecksumWriter::new(io::sink());
        io::copy(&mut file, &mut sum).map_err(|e| Error::io(path, "cannot read", &e))?;
        Ok(sum.sum())
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:032x}", self.0)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = "a checksum, xxh3-128: and 32 hexadecimal digits";
        Self::parse(&text).ok_or_else(|| {
            let start: String = text.chars().take(60).collect();
            D::Error::invalid_value(Unexpected::Str(&start), &expected)
        })
    }
}

/// A writer that computes the checksum of what is written.
pub struct ChecksumWriter<W> {
    inner: W,
    hasher: Hasher,
    bytes: u64,
}

impl<W> ChecksumWriter<W> {
    pub fn new(inner: W) -> Self {
        Self { inner, hasher: Hasher::new(), bytes: 0 }
    }

    /// Checksum and number of the bytes written so far.
    pub fn sum(&self) -> (Checksum, u64) {
        (Checksum(self.hasher.finish_128()), self.bytes)
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.write(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Accepts at most seven bytes per write: a file, too, may accept only a part.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(7);
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn the_checksum_of_a_writer_is_that_of_the_file(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..700), 0..9),
        ) {
            let mut writer = ChecksumWriter::new(Slow(Vec::new()));
            chunks.iter().for_each(|chunk| writer.write_all(chunk).unwrap());
            let whole = chunks.concat();
            prop_assert_eq!(&writer.inner.0, &whole);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &whole).unwrap();
            prop_assert_eq!(writer.sum(), Checksum::of_file(file.path()).unwrap());
            let text = writer.sum().0.to_string();
            prop_assert_eq!(Checksum::parse(&text), Some(writer.sum().0));
        }
    }

    /// The output of `xxh128sum` (xxHash 0.8).
    #[test]
    fn checksums_equal_those_of_xxh128sum() {
        for (bytes, digits) in
            [("", "99aa06d3014798d86001c324468d497f"), ("abc", "06b05ab6733a618578af5f94892f3950")]
        {
            let mut writer = ChecksumWriter::new(Vec::new());
            writer.write_all(bytes.as_bytes()).unwrap();
            assert_eq!(writer.sum().0.to_string(), format!("xxh3-128:{digits}"));
        }
    }

    #[test]
    fn malformed_checksums_are_rejected() {
        let good = format!("xxh3-128:{}", "0f".repeat(16));
        assert!(Checksum::parse(&good).is_some());
        for bad in ["", "xxh3-128:", "crc:0f", &good[1..], &good[..40], &good.to_uppercase()] {
            assert_eq!(Checksum::parse(bad), None, "{bad:?}");
        }
        assert_eq!(Checksum::parse(&format!("xxh3-128:+{}", "0".repeat(31))), None);
    }
}
