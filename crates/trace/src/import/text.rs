//! Parsers shared by text formats.

use super::Bad;

/// Parse a hexadecimal number, with or without `0x`.
pub(super) fn hex(bytes: &[u8]) -> Result<u64, Bad> {
    let digits = match bytes {
        [b'0', b'x' | b'X', rest @ ..] => rest,
        _ => bytes,
    };
    if digits.is_empty() {
        return Err("a hexadecimal number is missing".into());
    }
    let mut value = 0u64;
    for &digit in digits {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return Err("not a hexadecimal number".into()),
        };
        if value >> 60 != 0 {
            return Err("an address beyond 2^64".into());
        }
        value = value << 4 | u64::from(digit);
    }
    Ok(value)
}

pub(super) fn decimal(bytes: &[u8]) -> Result<u64, Bad> {
    if bytes.is_empty() {
        return Err("a number is missing".into());
    }
    let mut value = 0u64;
    for &digit in bytes {
        if !digit.is_ascii_digit() {
            return Err("not a decimal number".into());
        }
        value = value
            .checked_mul(10)
            .and_then(|v| v.checked_add(u64::from(digit - b'0')))
            .ok_or(Bad::from("a number beyond 2^64"))?;
    }
    Ok(value)
}

/// Parse a hexadecimal number with `0x`, or a decimal one.
pub(super) fn number(bytes: &[u8]) -> Result<u64, Bad> {
    if matches!(bytes, [b'0', b'x' | b'X', ..]) { hex(bytes) } else { decimal(bytes) }
}

/// Check that a size fits a record.
pub(super) fn size(value: u64) -> Result<u16, Bad> {
    u16::try_from(value).map_err(|_| Bad::from(format!("a size of {value} (at most 65535)")))
}

pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The first 40 bytes of a line, escaped.
pub(super) fn excerpt(line: &[u8]) -> String {
    let end = line.len().min(40);
    let dots = if line.len() > 40 { "..." } else { "" };
    format!("{}{dots}", line[..end].escape_ascii())
}
