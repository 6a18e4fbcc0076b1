//! Quantities with full units (`64KiB`, not `64K`), as in files.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{Fault, MAX_SIZE, SIZE, TIME, Units, scaled, shown, split};

/// Texts for error messages about values of a type.
pub trait Value {
    /// What is measured: "a time", "a size", ...
    const WHAT: &'static str;
    /// A valid value, as in a file.
    const EXAMPLE: &'static str;
}

/// Parse text such as `"7.6GB/s"` exactly. An error says what is wrong and what would be correct.
fn parse(text: &str, what: &str, units: Units, range: (u64, u64)) -> Result<u64, String> {
    let known = || units.iter().map(|unit| unit.0).collect::<Vec<_>>().join(", ");
    let shown = shown(text);
    if shown.starts_with('-') {
        return Err(format!("{what} cannot be negative: \"{shown}\""));
    }
    let (number, unit) = split(text);
    let scale = units.iter().find(|candidate| candidate.0 == unit).map(|unit| unit.1);
    let not_a_number = || format!("\"{shown}\" is not a number followed by a unit ({})", known());
    let out_of_range = || {
        let (min, max) = (in_largest_unit(range.0, units), in_largest_unit(range.1, units));
        format!("\"{shown}\" is out of range; {what} is within {min} to {max}")
    };
    match scaled(number, scale.unwrap_or(1)) {
        Err(Fault::NotANumber) => Err(not_a_number()),
        _ if unit.is_empty() => {
            Err(format!("\"{shown}\" is a number without a unit ({})", known()))
        }
        _ if scale.is_none() => {
            let unit: String = unit.chars().take(20).collect();
            Err(format!("unknown unit `{unit}` in \"{shown}\"; units of {what}: {}", known()))
        }
        Err(Fault::TooManyDecimals) => Err(format!("\"{shown}\" has too many decimals; round it")),
        Err(Fault::TooFine) => {
            Err(format!("\"{shown}\" is finer than one {}; round it", units[0].0))
        }
        Ok(amount) if (range.0..=range.1).contains(&amount) => Ok(amount),
        Ok(_) | Err(Fault::TooLarge) => Err(out_of_range()),
    }
}

/// An amount in the largest unit that divides it.
fn in_largest_unit(amount: u64, units: Units) -> String {
    let (name, scale) = units
        .iter()
        .rev()
        .find(|(_, scale)| amount >= *scale && amount.is_multiple_of(*scale))
        .unwrap_or(&units[0]);
    format!("{}{name}", amount / scale)
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $what:literal, $example:literal, $range:expr, $units:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            amount: u64,
            text: String,
        }

        impl $name {
            const UNITS: Units = $units;

            /// Parse text such as [`Value::EXAMPLE`].
            ///
            /// # Errors
            /// The text is anything else. The message is one line that says what would be right.
            pub fn parse(text: &str) -> Result<Self, String> {
                let amount = parse(text, Self::WHAT, Self::UNITS, $range)
                    .map_err(|error| format!("{error}; write for example {}", Self::EXAMPLE))?;
                Ok(Self { amount, text: text.trim().to_owned() })
            }

            /// The text in the file.
            pub fn text(&self) -> &str {
                &self.text
            }
        }

        impl Value for $name {
            const WHAT: &'static str = $what;
            const EXAMPLE: &'static str = concat!("\"", $example, "\"");
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.amount == other.amount
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "{} with its unit, such as {}", $name::WHAT, $name::EXAMPLE)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::parse(text).map_err(E::custom)
                    }
                    fn visit_i64<E: de::Error>(self, value: i64) -> Result<$name, E> {
                        Err(E::custom(bare_number::<$name>(value)))
                    }
                    fn visit_f64<E: de::Error>(self, value: f64) -> Result<$name, E> {
                        Err(E::custom(bare_number::<$name>(value)))
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let units: Vec<_> = Self::UNITS.iter().map(|unit| unit.0).collect();
                let pattern = format!("^\\s*[0-9]+(\\.[0-9]+)?\\s*({})\\s*$", units.join("|"));
                json_schema!({
                    "type": "string",
                    "description": concat!($what, ", unit spelled out"),
                    "pattern": pattern,
                    "examples": [$example],
                })
            }
        }
    };
}

/// The message for a number without a unit.
fn bare_number<V: Value>(value: impl fmt::Display) -> String {
    format!("{value} is a number without a unit; write for example {}", V::EXAMPLE)
}

const TEN: u64 = 10;

quantity!(
    /// A time, held in picoseconds; 0 to 1000 s.
    Time, "a time", "50ns", (0, TEN.pow(15)), TIME
);
quantity!(
    /// A size, held in bytes; 1 B to 1 EiB. `KB` is 1000 bytes, `KiB` 1024.
    Size, "a size", "96GiB", (1, MAX_SIZE), SIZE
);
quantity!(
    /// A bandwidth, held in bytes per second; 1 KB/s to 1000 TB/s.
    Bandwidth, "a bandwidth", "7.6GB/s", (TEN.pow(3), TEN.pow(15)),
    &[
        ("B/s", 1), ("KB/s", TEN.pow(3)), ("KiB/s", 1 << 10), ("MB/s", TEN.pow(6)),
        ("MiB/s", 1 << 20), ("GB/s", TEN.pow(9)), ("GiB/s", 1 << 30), ("TB/s", TEN.pow(12))
    ]
);
quantity!(
    /// A clock frequency, held in hertz; 1 kHz to 1000 GHz.
    Frequency, "a frequency", "2.4GHz", (TEN.pow(3), TEN.pow(12)),
    &[("Hz", 1), ("kHz", TEN.pow(3)), ("MHz", TEN.pow(6)), ("GHz", TEN.pow(9))]
);
quantity!(
    /// A rotational speed, held in turns per minute; 1 to 1,000,000 rpm.
    Rotation, "a rotational speed", "7200rpm", (1, TEN.pow(6)), &[("rpm", 1)]
);

impl Time {
    pub fn ns(&self) -> f64 {
        self.amount as f64 / 1e3
    }

    /// In picoseconds, exactly.
    pub fn ps(&self) -> u64 {
        self.amount
    }
}

impl Size {
    pub fn bytes(&self) -> u64 {
        self.amount
    }
}

impl Bandwidth {
    pub fn bytes_per_second(&self) -> u64 {
        self.amount
    }

    /// Nanoseconds to move `bytes`.
    pub fn ns_for(&self, bytes: u64) -> f64 {
        bytes as f64 * 1e9 / self.amount as f64
    }
}

impl Frequency {
    pub fn hz(&self) -> u64 {
        self.amount
    }

    pub fn cycle_ns(&self) -> f64 {
        1e9 / self.amount as f64
    }
}

impl Rotation {
    pub fn turn_ns(&self) -> f64 {
        60e9 / self.amount as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_read_exactly() {
        assert_eq!(Time::parse("0.29ns").unwrap().ps(), 290);
        assert_eq!(Time::parse("25 us").unwrap().ns(), 25_000.0);
        assert_eq!(Bandwidth::parse("7.6GB/s").unwrap().bytes_per_second(), 7_600_000_000);
        assert_eq!(Size::parse("1.5KiB").unwrap().bytes(), 1536);
        assert_eq!(Size::parse("96GiB").unwrap().bytes(), 96 << 30);
        assert_eq!(Frequency::parse("2.4GHz").unwrap().hz(), 2_400_000_000);
        assert_eq!(Rotation::parse("7200rpm").unwrap().turn_ns(), 60e9 / 7200.0);
    }

    #[test]
    fn errors_say_what_is_valid() {
        for (text, part) in [
            ("50", "without a unit"),
            ("", "not a number followed by a unit"),
            ("-5ns", "negative"),
            ("nanns", "not a number"),
            ("inf s", "not a number"),
            ("1e3ns", "unknown unit `e3ns`"),
            ("5.ns", "not a number"),
            ("1.2.3ns", "not a number"),
            ("50nS", "unknown unit `nS`"),
            ("0.0001ps", "finer than one ps"),
            ("1001s", "out of range"),
            ("99999999999999999999999ns", "out of range"),
        ] {
            let error = Time::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
            assert!(error.ends_with("write for example \"50ns\""), "{error}");
        }
        assert!(Size::parse("0B").unwrap_err().contains("out of range"));
        assert!(Size::parse("64K").unwrap_err().contains("KiB"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Time::parse(&text);
            let _ = Size::parse(&text);
        }

        #[test]
        fn thousandths_are_exact(n in 0u64..1_000_000_000) {
            let text = format!("{}.{:03}us", n / 1000, n % 1000);
            prop_assert_eq!(Time::parse(&text).unwrap().ps(), n * 1000);
        }
    }
}
