//! Sizes, times and shares on the command line, and lists of them.

use super::{Fault, MAX_SIZE, SHORT_SIZE, SIZE, TIME, scaled, shown, split};

/// Maximum sizes that one `...` of a list of memory sizes may expand to.
const MAX_STEPS: u64 = 4096;

/// 100 % in millionths of a percent, the resolution of relative memory sizes.
const HUNDRED_PERCENT: u64 = 100_000_000;

/// A memory size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemorySize {
    /// A share of a program's footprint in 4 KiB pages, above 0.
    Fraction(f64),
    /// Bytes, above 0.
    Bytes(u64),
}

/// Bytes of `4096`, `4K`, `2MiB` or `50MB`: a whole number from 1 to 2^60.
///
/// # Errors
/// Anything else; the text says what would be right.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let named = SIZE.iter().chain(SHORT_SIZE).find(|known| known.0.eq_ignore_ascii_case(unit));
    let scale = named.map(|known| known.1).or(unit.is_empty().then_some(1));
    match scale.map(|scale| scaled(number, scale)) {
        Some(Ok(bytes @ 1..=MAX_SIZE)) => Ok(bytes),
        _ => Err(format!(
            "'{}' is not a size; write a size above 0 such as 4096, 4K, 2M or 50MB",
            shown(text)
        )),
    }
}

/// Nanoseconds of `50us`, `0ns` or `1.5ms`: a whole number up to 1000 s.
///
/// # Errors
/// Anything else; the text says what would be right.
pub fn parse_nanoseconds(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale = TIME.iter().find(|known| known.0 == unit).map(|known| known.1);
    match scale.map(|scale| scaled(number, scale)) {
        Some(Ok(ps @ 0..=1_000_000_000_000_000)) if ps.is_multiple_of(1000) => Ok(ps / 1000),
        _ => Err(format!(
            "'{}' is not a time in whole nanoseconds; write for example 50us",
            shown(text)
        )),
    }
}

/// A share of a whole from 0 to 1, of `60%`, `0.6` or `6e-1`; `None` for anything else.
pub fn parse_share(text: &str) -> Option<f64> {
    let text = text.trim();
    let share = match text.strip_suffix('%').map(str::trim_end) {
        // `60%` is parsed as `60e-2`, because a division would round twice. `1e-3%` must be divided.
        Some(number) => format!("{number}e-2")
            .parse()
            .or_else(|_| number.parse().map(|number: f64| number / 100.0)),
        None => text.parse(),
    };
    share.ok().filter(|share| (0.0..=1.0).contains(share))
}

/// `count` shares of a whole, each as in [`parse_share`], separated by commas.
///
/// # Errors
/// More or fewer of them, or one that is not from 0 to 1.
pub fn parse_shares(text: &str, count: usize) -> Result<Vec<f64>, String> {
    let example = vec!["50%"; count].join(",");
    let shares: Vec<f64> = text
        .split(',')
        .map(|item| {
            parse_share(item).ok_or_else(|| {
                let item = shown(item);
                format!("'{item}' is not a share from 0 to 100 %; write for example {example}")
            })
        })
        .collect::<Result<_, _>>()?;
    match shares.len() == count {
        true => Ok(shares),
        false => Err(format!("{} shares, not {count}; write for example {example}", shares.len())),
    }
}

/// Page sizes in bytes, separated by commas; `...` expands to the doublings between its neighbours.
///
/// # Errors
/// An item that is no size, or a `...` without a size on both sides.
pub fn parse_page_sizes(text: &str) -> Result<Vec<u64>, String> {
    let mut sizes: Vec<u64> = Vec::new();
    for (item, fill) in items(text)? {
        let size = parse_bytes(item)?;
        if let (true, Some(last)) = (fill, sizes.last()) {
            let doublings = std::iter::successors(last.checked_mul(2), |size| size.checked_mul(2));
            sizes.extend(doublings.take_while(|between| *between < size).collect::<Vec<_>>());
        }
        sizes.push(size);
    }
    Ok(sizes)
}

/// Memory sizes, separated by commas, each `10%` of the footprint or bytes; `...` continues in
/// equal steps: the difference of the two sizes before it, or the one size before it.
///
/// # Errors
/// An item that is neither, or a `...` that mixes both, falls, or takes more than 4096 steps.
pub fn parse_memory(text: &str) -> Result<Vec<MemorySize>, String> {
    let mut sizes: Vec<Amount> = Vec::new();
    for (item, fill) in items(text)? {
        let size = Amount::parse(item)?;
        if fill {
            sizes.extend(steps(&sizes, size)?);
        }
        sizes.push(size);
    }
    Ok(sizes.into_iter().map(Amount::size).collect())
}

/// Items of a list, each with whether a `...` precedes it.
fn items(text: &str) -> Result<Vec<(&str, bool)>, String> {
    let items: Vec<&str> = text.split(',').map(str::trim).collect();
    if items.contains(&"") {
        let text: String = text.chars().take(60).collect();
        return Err(format!("'{text}' has an empty item; separate sizes by one comma"));
    }
    let is_fill = |item: &&str| *item == "...";
    let ends = [items.first(), items.last()];
    if ends.into_iter().flatten().any(is_fill)
        || items.windows(2).any(|pair| pair.iter().all(is_fill))
    {
        return Err("`...` needs a size on both sides, such as 4K,...,2M".into());
    }
    let before = std::iter::once(&"").chain(&items);
    Ok(items
        .iter()
        .zip(before)
        .filter(|(item, _)| !is_fill(item))
        .map(|(item, before)| (*item, is_fill(before)))
        .collect())
}

/// A memory size in whole numbers, in which steps are exact.
#[derive(Clone, Copy)]
struct Amount {
    /// Millionths of a percent, or bytes.
    value: u64,
    is_percent: bool,
}

impl Amount {
    fn parse(item: &str) -> Result<Self, String> {
        let (number, unit) = split(item);
        if unit != "%" {
            return Ok(Self { value: parse_bytes(item)?, is_percent: false });
        }
        let item = shown(item);
        match scaled(number, HUNDRED_PERCENT / 100) {
            // At most a million times the footprint.
            Ok(value) if (1..=HUNDRED_PERCENT * 1_000_000).contains(&value) => {
                Ok(Self { value, is_percent: true })
            }
            Err(Fault::TooFine | Fault::TooManyDecimals) => {
                Err(format!("'{item}' has more than 6 decimals; round it"))
            }
            _ => Err(format!(
                "'{item}' is not above 0 % and at most 100000000 %; write for example 10%"
            )),
        }
    }

    fn size(self) -> MemorySize {
        match self.is_percent {
            true => MemorySize::Fraction(self.value as f64 / HUNDRED_PERCENT as f64),
            false => MemorySize::Bytes(self.value),
        }
    }
}

/// The sizes that a `...` between `before` and `last` expands to.
fn steps(before: &[Amount], last: Amount) -> Result<Vec<Amount>, String> {
    let like_last = |size: &&Amount| size.is_percent == last.is_percent;
    let Some(first) = before.last().filter(like_last) else {
        return Err("`...` goes from bytes to bytes or from % to %".into());
    };
    let earlier = before.iter().nth_back(1).filter(like_last).map_or(0, |size| size.value);
    let step = first.value.saturating_sub(earlier);
    let rise = last.value.saturating_sub(first.value);
    if step == 0 || rise == 0 || rise.div_ceil(step) > MAX_STEPS {
        return Err(format!("`...` must rise in at most {MAX_STEPS} steps, as in 10%,...,100%"));
    }
    let between = (first.value..last.value).step_by(step as usize).skip(1);
    Ok(between.map(|value| Amount { value, ..last }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn si_and_iec_units_differ() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("4KiB", 4096),
            ("4KB", 4000),
            ("50MB", 50_000_000),
            ("50M", 50 << 20),
            ("50 MiB", 50 << 20),
            ("12G", 12 << 30),
            ("1.5T", 3 << 39),
            ("1048576T", 1 << 60),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "-4K",
            "80X",
            "4Ki",
            "0.3K",
            "1e3",
            "K",
            "1.",
            "1048577T",
            "99999999999999999999",
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.starts_with(&format!("'{text}' is not a size; write ")), "{error}");
        }
    }

    #[test]
    fn times_are_whole_nanoseconds() {
        assert_eq!(parse_nanoseconds("1.5ms"), Ok(1_500_000));
        assert_eq!(parse_nanoseconds("0ns"), Ok(0));
        assert_eq!(parse_nanoseconds("1000s"), Ok(1_000_000_000_000));
        for text in ["50", "0.5ns", "1001s", "5S", "-1ns", "ns"] {
            assert!(parse_nanoseconds(text).unwrap_err().contains("whole nanoseconds"), "{text}");
        }
    }

    #[test]
    fn lists_of_page_sizes_double() {
        let doubled: Vec<u64> = (9..=21).map(|power| 1 << power).collect();
        assert_eq!(parse_page_sizes("512,1K,...,2M"), Ok(doubled));
        assert_eq!(parse_page_sizes(" 4K , 3K"), Ok(vec![4096, 3072]));
        assert_eq!(
            parse_page_sizes("4K,...,9K,...,20K"),
            Ok([4, 8, 9, 18, 20].map(|k| k << 10).to_vec())
        );
        for (text, part) in [
            ("...,4K", "size on both sides"),
            ("4K,...", "size on both sides"),
            ("4K,...,...,8K", "size on both sides"),
            ("4K,,8K", "empty item"),
            ("4K,eight", "'eight' is not a size"),
        ] {
            assert!(parse_page_sizes(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn lists_of_memory_sizes_continue_in_equal_steps() {
        let tenths = (1..=10).map(|n| MemorySize::Fraction(f64::from(n) / 10.0)).collect();
        assert_eq!(parse_memory("10%,...,100%"), Ok(tenths));
        let odd = [1, 3, 5, 7].map(|m| MemorySize::Bytes(m << 20)).to_vec();
        assert_eq!(parse_memory("1M,3M,...,7M"), Ok(odd));
        let mixed = vec![MemorySize::Bytes(50_000_000), MemorySize::Fraction(0.333)];
        assert_eq!(parse_memory("50MB, 33.3 %"), Ok(mixed));
        for (text, part) in [
            ("10%,...,5%", "must rise"),
            ("20%,10%,...,50%", "must rise"),
            ("1%,...,1G", "from bytes to bytes"),
            ("1M,...,99999G", "at most 4096 steps"),
            ("0%", "is not above 0 %"),
            ("1e9%", "is not a size"),
            ("0.0000001%", "more than 6 decimals"),
            ("half", "is not a size"),
        ] {
            assert!(parse_memory(text).unwrap_err().contains(part), "{text}");
        }
    }

    #[test]
    fn shares_are_percent_or_parts_of_one() {
        assert_eq!(parse_shares("60%,0.5", 2), Ok(vec![0.6, 0.5]));
        // As Python writes 0.00001.
        assert_eq!(parse_shares("1e-05, 1e-3 % ,33.3%", 3), Ok(vec![1e-5, 1e-5, 0.333]));
        assert!(parse_shares("60%", 2).unwrap_err().starts_with("1 shares, not 2; write"));
        for text in ["lots", "101%", "1.1", "-1%", "%", "", "nan", "1e3", "1%%"] {
            assert!(parse_shares(text, 1).unwrap_err().contains("is not a share"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9.,%KMGiBns ]{0,20}|\\PC*") {
            let _ = parse_bytes(&text);
            let _ = parse_nanoseconds(&text);
            let _ = parse_page_sizes(&text);
            let _ = parse_memory(&text);
            let _ = parse_shares(&text, 2);
        }

        #[test]
        fn bytes_are_read_exactly(bytes in 1u64..=1 << 60) {
            prop_assert_eq!(parse_bytes(&bytes.to_string()), Ok(bytes));
        }
    }
}
