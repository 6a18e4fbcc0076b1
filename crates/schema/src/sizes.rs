//! Option types for sizes, times and shares, in the grammar of [`units`](crate::units).

use serde_json::Value as Json;

use crate::units::{self, MemorySize};
use crate::value::refuse;
use crate::{Given, Value};

/// Types whose values are given as a number in the type's base unit, or as text with a unit.
macro_rules! amounts {
    ($($(#[$attribute:meta])* $name:ident, $metavar:literal, $parse:path, $unit:literal, $expected:literal,
       $fix:literal, $plain:expr;)*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name(pub u64);

            impl Value for $name {
                const METAVAR: &'static str = $metavar;
                fn python() -> String {
                    "str | int".into()
                }
                fn read(given: &Given) -> Result<Self, String> {
                    match given {
                        Given::Text(text) => $parse(text).map(Self),
                        Given::Whole(number) => $parse(&format!("{number}{}", $unit))
                            .map(Self)
                            .map_err(|_| refuse(given, $expected, $fix)),
                        other => Err(refuse(other, $expected, $fix)),
                    }
                }
                fn plain(&self) -> Json {
                    $plain(self.0)
                }
            }
        )*
    };
}
amounts! {
    /// Bytes, above 0.
    Bytes, "SIZE", units::parse_bytes, "", "a size", "write a size above 0 such as 4096, 4K or 2M",
        Json::from;
    /// Nanoseconds.
    Nanoseconds, "TIME", units::parse_nanoseconds, "ns", "a time", "write for example 50us",
        |ns| Json::from(shortest_time(ns));
}

/// A time in the largest unit that has a whole number of it: `10s`, `50us`.
fn shortest_time(ns: u64) -> String {
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)];
    match units.into_iter().find(|(_, unit)| ns > 0 && ns.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", ns / unit),
        None => format!("{ns}ns"),
    }
}

/// A share of a whole, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl Value for Share {
    const METAVAR: &'static str = "SHARE";
    fn python() -> String {
        "str | float".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        Shares::<1>::read(given).map(|Shares([share])| Self(share))
    }
    fn plain(&self) -> Json {
        self.0.into()
    }
}

/// `COUNT` shares of a whole, each from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares<const COUNT: usize>(pub [f64; COUNT]);

impl<const COUNT: usize> Value for Shares<COUNT> {
    const METAVAR: &'static str = "SHARES";
    fn python() -> String {
        "str | Sequence[float]".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let shares = units::parse_shares(&given.to_string(), COUNT)?;
        shares.try_into().map(Self).map_err(|_| refuse(given, "shares", "write for example 50%"))
    }
    fn plain(&self) -> Json {
        self.0.as_slice().into()
    }
}

/// Page sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSizes(pub Vec<u64>);

impl Value for PageSizes {
    const METAVAR: &'static str = "SIZES";
    fn python() -> String {
        "str | int | Sequence[str | int]".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Text(text) => units::parse_page_sizes(text).map(Self),
            several => several
                .items()
                .iter()
                .map(|item| Bytes::read(item).map(|bytes| bytes.0))
                .collect::<Result<_, _>>()
                .map(Self),
        }
    }
    fn plain(&self) -> Json {
        self.0.as_slice().into()
    }
}

/// A memory size, and its text as given.
#[derive(Clone, Debug, PartialEq)]
pub struct OneMemory {
    pub text: String,
    pub size: MemorySize,
}

impl Value for OneMemory {
    const METAVAR: &'static str = "SIZE";
    fn python() -> String {
        "str | int".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let Memory { text, sizes } = Memory::read(given)?;
        match sizes.as_slice() {
            [size] => Ok(Self { text, size: *size }),
            _ => Err(refuse(given, "one size", "give one size, such as 30%")),
        }
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}

/// Memory sizes, and their text as given.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    pub text: String,
    pub sizes: Vec<MemorySize>,
}

impl Value for Memory {
    const METAVAR: &'static str = "SIZES";
    fn python() -> String {
        "str | int | Sequence[str | int]".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Text(_) | Given::Whole(_) | Given::List(_) => {
                let text = given.to_string();
                Ok(Self { sizes: units::parse_memory(&text)?, text })
            }
            other => Err(refuse(other, "a memory size", "write for example 10%,50% or 512M")),
        }
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_from_text_and_numbers() {
        let listed = Given::List(vec![0.6.into(), "50%".into()]);
        assert_eq!(Shares::<2>::read(&listed), Ok(Shares([0.6, 0.5])));
        assert_eq!(Shares::<2>::read(&"60%,0.5".into()), Ok(Shares([0.6, 0.5])));
        assert_eq!(Share::read(&0.25.into()), Ok(Share(0.25)));
        assert_eq!(Share::read(&1.into()), Ok(Share(1.0)));
        assert!(Shares::<2>::read(&"60%".into()).unwrap_err().contains("1 shares, not 2"));
        assert!(Share::read(&1.5.into()).is_err() && Share::read(&Given::Nothing).is_err());
    }

    #[test]
    fn a_time_is_recorded_with_its_unit() {
        let time = Nanoseconds::read(&50.into()).unwrap();
        assert_eq!(time.plain(), "50ns");
        assert_eq!(Nanoseconds::read(&"50ns".into()), Ok(time));
        assert!(Nanoseconds::read(&"50".into()).unwrap_err().contains("write for example 50us"));
    }

    #[test]
    fn a_flag_leaves_out_the_last_underscore() {
        let spec = crate::Spec::new::<Bytes>("from_", "", crate::required());
        assert_eq!(spec.flag(), "--from");
    }
}
