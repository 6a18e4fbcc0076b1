//! The grammar of sizes, times, rates and shares, for files and the command line.
//!
//! A value is a decimal number and a unit, and is stored as a whole number of a small base unit:
//! `7.6GB/s` is 7,600,000,000 bytes per second. The arithmetic is exact: values that do not fit the
//! base unit or 64 bits are errors, never rounded. SI and IEC units differ:
//!
//! | text | is | where |
//! |---|---|---|
//! | `50B`, `50KB`, `50MB`, `50GB`, `50TB` | 50 x 1, 10^3, 10^6, 10^9, 10^12 bytes | everywhere |
//! | `50KiB`, `50MiB`, `50GiB`, `50TiB` | 50 x 2^10, 2^20, 2^30, 2^40 bytes | everywhere |
//! | `50K`, `50M`, `50G`, `50T` | like `KiB` to `TiB`; page sizes are usually written so | command line |
//! | `50` | 50 bytes | command line |
//! | `50ps`, `50ns`, `50us`, `50ms`, `50s` | a time | everywhere |
//! | `50B/s`, `50KB/s`, ... `50TB/s`, `50KiB/s`, ... `50GiB/s` | a bandwidth | files |
//! | `50Hz`, `50kHz`, `50MHz`, `50GHz`; `50rpm` | a frequency; a rotational speed | files |
//! | `50%` | half of a whole | command line |
//! | `4K,...,64K`; `10%,...,50%` | page sizes, doubled; memory sizes, in equal steps | command line |
//!
//! Files use full, case-sensitive units ([`Size::parse`] and others). The command line also accepts
//! short forms, and ignores the case of units of sizes ([`parse_bytes`] and others).
//!
//! Error messages say what would be correct. Callers prefix them with the place: a file and a key,
//! or a flag.

mod list;
mod quantity;

pub use list::{
    MemorySize, parse_bytes, parse_memory, parse_nanoseconds, parse_page_sizes, parse_share,
    parse_shares,
};
pub use quantity::{Bandwidth, Frequency, Rotation, Size, Time, Value};

/// Units of a quantity: name and number of base units, smallest first.
type Units = &'static [(&'static str, u64)];

/// Units of [`Time`], in picoseconds.
const TIME: Units =
    &[("ps", 1), ("ns", 1_000), ("us", 1_000_000), ("ms", 1_000_000_000), ("s", 1_000_000_000_000)];

/// Units of [`Size`], in bytes.
const SIZE: Units = &[
    ("B", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

/// Short units of sizes on the command line, in bytes.
const SHORT_SIZE: Units = &[("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];

/// Largest size, bytes.
const MAX_SIZE: u64 = 1 << 60;

/// Why a number is not a whole number of base units.
enum Fault {
    NotANumber,
    TooManyDecimals,
    /// Finer than one base unit.
    TooFine,
    TooLarge,
}

/// Split a text into number and unit, trimmed.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// `number` times `scale`, exactly. A decimal point needs digits on both sides.
fn scaled(number: &str, scale: u64) -> Result<u64, Fault> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits_only = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !digits_only || whole.is_empty() || fraction.contains('.') || number.ends_with('.') {
        return Err(Fault::NotANumber);
    }
    // 20 digits hold any u64, and with 18 decimals the sum stays below 2^127.
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    if whole.len() > 20 {
        return Err(Fault::TooLarge);
    }
    if fraction.len() > 18 {
        return Err(Fault::TooManyDecimals);
    }
    let digits = |text: &str| text.bytes().fold(0u128, |n, b| n * 10 + u128::from(b - b'0'));
    let power = 10u128.pow(fraction.len() as u32);
    let amount = digits(whole) * power + digits(fraction);
    let amount = amount.checked_mul(u128::from(scale)).ok_or(Fault::TooLarge)?;
    if !amount.is_multiple_of(power) {
        return Err(Fault::TooFine);
    }
    u64::try_from(amount / power).map_err(|_| Fault::TooLarge)
}

/// The first 40 characters of an untrusted text, for a message.
fn shown(text: &str) -> String {
    text.trim().chars().take(40).collect()
}
