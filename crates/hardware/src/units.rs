//! Numbers of a machine file: a value with its unit spelled out, and where it comes from.
//!
//! Everything with a unit is held as a whole number of a small base unit (picoseconds, bytes,
//! bytes per second, hertz, thousandths of a turn per minute): decimal text such as `"7.6GB/s"` is
//! converted exactly, so the same file gives the same bits everywhere.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

/// What every value type of a machine file can tell about itself, for its error messages.
pub trait Value {
    /// What is measured: "a time", "a size", ...
    const WHAT: &'static str;
    /// A right value, as it is written in a machine file.
    const EXAMPLE: &'static str;
}

/// `value = ..., source = "..."`: a value and where it comes from. Neither may be left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced<V> {
    /// The value.
    pub value: V,
    /// Data sheet, paper, measurement or reason the value is taken from; never empty.
    pub source: String,
}

impl<V: Serialize> Serialize for Sourced<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut state = serializer.serialize_struct("Sourced", 2)?;
        state.serialize_field("value", &self.value)?;
        state.serialize_field("source", &self.source)?;
        state.end()
    }
}

impl<'de, V: Deserialize<'de> + Value> Deserialize<'de> for Sourced<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourcedVisitor(PhantomData))
    }
}

struct SourcedVisitor<V>(PhantomData<V>);

impl<V: Value> SourcedVisitor<V> {
    /// The value stands alone; say so, and also what is wrong with it when it has no unit.
    fn bare<E: de::Error, T>(what: &str) -> Result<T, E> {
        Err(E::custom(format!(
            "{what} without a source; write for example {{ value = {}, source = \"data sheet of \
             ...\" }}",
            V::EXAMPLE
        )))
    }
}

impl<'de, V: Deserialize<'de> + Value> Visitor<'de> for SourcedVisitor<V> {
    type Value = Sourced<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} with its source, such as {{ value = {}, source = \"data sheet of ...\" }}",
            V::WHAT,
            V::EXAMPLE
        )
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Self::bare(&format!("{} stands", V::WHAT))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self::Value, E> {
        Self::bare("a bare number stands")
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Self::bare("a bare number stands")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        #[derive(Deserialize)]
        #[serde(field_identifier, rename_all = "lowercase")]
        enum Field {
            Value,
            Source,
        }
        let (mut value, mut source) = (None, None);
        while let Some(field) = map.next_key()? {
            match field {
                Field::Value => value = Some(map.next_value::<V>()?),
                Field::Source => source = Some(map.next_value::<String>()?),
            }
        }
        let value = value.ok_or_else(|| {
            de::Error::custom(format!("no value; add for example value = {}", V::EXAMPLE))
        })?;
        let source = source.filter(|text| !text.trim().is_empty()).ok_or_else(|| {
            de::Error::custom("no source; add source = \"where the number comes from\"")
        })?;
        Ok(Sourced { value, source })
    }
}

impl<V: JsonSchema> JsonSchema for Sourced<V> {
    fn schema_name() -> Cow<'static, str> {
        format!("Sourced{}", V::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<V>();
        json_schema!({
            "type": "object",
            "description": "A value and where it comes from.",
            "properties": { "value": value, "source": { "type": "string", "minLength": 1 } },
            "required": ["value", "source"],
            "additionalProperties": false,
        })
    }
}

/// Units of one quantity: suffix and how many base units it is, smallest first.
type Units = &'static [(&'static str, u64)];

/// Read `"7.6GB/s"`-like text exactly. `Err` says what is wrong and what would be right.
fn parse(text: &str, what: &str, units: Units, range: (u64, u64)) -> Result<u64, String> {
    let known = || units.iter().map(|unit| unit.0).collect::<Vec<_>>().join(", ");
    let trimmed = text.trim();
    // Shown in messages; hostile files may hold very long text.
    let shown: String = trimmed.chars().take(40).collect();
    if trimmed.starts_with('-') {
        return Err(format!("{what} cannot be negative: \"{shown}\""));
    }
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim_start();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err(format!("\"{shown}\" is not a number followed by a unit ({})", known()));
    }
    if unit.is_empty() {
        return Err(format!("\"{shown}\" is a number without a unit ({})", known()));
    }
    let Some((_, scale)) = units.iter().find(|candidate| candidate.0 == unit) else {
        let unit: String = unit.chars().take(20).collect();
        return Err(format!("unknown unit `{unit}` in \"{shown}\"; units of {what}: {}", known()));
    };
    let absurd = || {
        format!("\"{shown}\" is absurd; {what} lies within {} to {}", show(range.0, units), {
            show(range.1, units)
        })
    };
    // 18 digits on either side keep the arithmetic below 2^127.
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    if whole.len() > 18 {
        return Err(absurd());
    }
    if fraction.len() > 18 {
        return Err(format!("\"{shown}\" has too many decimals; round it"));
    }
    let digits = |text: &str| text.bytes().fold(0u128, |n, b| n * 10 + u128::from(b - b'0'));
    let power = 10u128.pow(fraction.len() as u32);
    let scaled = (digits(whole) * power + digits(fraction)).checked_mul(u128::from(*scale));
    let scaled = scaled.ok_or_else(absurd)?;
    if scaled % power != 0 {
        return Err(format!("\"{shown}\" is finer than one {}; round it", units[0].0));
    }
    match u64::try_from(scaled / power) {
        Ok(amount) if (range.0..=range.1).contains(&amount) => Ok(amount),
        _ => Err(absurd()),
    }
}

/// An amount in the largest unit that divides it.
fn show(amount: u64, units: Units) -> String {
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
            const UNITS: Units = &$units;

            /// Read text such as the example; the error is one line that says what would be right.
            pub fn parse(text: &str) -> Result<Self, String> {
                let amount = parse(text, Self::WHAT, Self::UNITS, $range)
                    .map_err(|error| format!("{error}; write for example {}", Self::EXAMPLE))?;
                Ok(Self { amount, text: text.trim().to_owned() })
            }

            /// As written in the file.
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

/// What to say of a number that should have been text with a unit.
fn bare_number<V: Value>(value: impl fmt::Display) -> String {
    format!("{value} is a number without a unit; write for example {}", V::EXAMPLE)
}

const TEN: u64 = 10;

quantity!(
    /// A time, held in picoseconds; 0 to 1000 s.
    Time, "a time", "50ns", (0, TEN.pow(15)),
    [("ps", 1), ("ns", TEN.pow(3)), ("us", TEN.pow(6)), ("ms", TEN.pow(9)), ("s", TEN.pow(12))]
);
quantity!(
    /// A size, held in bytes; 1 B to 1 EiB. `KB` is 1000 bytes, `KiB` 1024.
    Size, "a size", "96GiB", (1, 1 << 60),
    [
        ("B", 1), ("KB", TEN.pow(3)), ("KiB", 1 << 10), ("MB", TEN.pow(6)), ("MiB", 1 << 20),
        ("GB", TEN.pow(9)), ("GiB", 1 << 30), ("TB", TEN.pow(12)), ("TiB", 1 << 40)
    ]
);
quantity!(
    /// A bandwidth, held in bytes per second; 1 KB/s to 1000 TB/s.
    Bandwidth, "a bandwidth", "7.6GB/s", (TEN.pow(3), TEN.pow(15)),
    [
        ("B/s", 1), ("KB/s", TEN.pow(3)), ("KiB/s", 1 << 10), ("MB/s", TEN.pow(6)),
        ("MiB/s", 1 << 20), ("GB/s", TEN.pow(9)), ("GiB/s", 1 << 30), ("TB/s", TEN.pow(12))
    ]
);
quantity!(
    /// A clock frequency, held in hertz; 1 kHz to 1000 GHz.
    Frequency, "a frequency", "2.4GHz", (TEN.pow(3), TEN.pow(12)),
    [("Hz", 1), ("kHz", TEN.pow(3)), ("MHz", TEN.pow(6)), ("GHz", TEN.pow(9))]
);
quantity!(
    /// A rotational speed, held in turns per minute; 1 to 1,000,000 rpm.
    Rotation, "a rotational speed", "7200rpm", (1, TEN.pow(6)), [("rpm", 1)]
);

impl Time {
    /// In nanoseconds.
    pub fn ns(&self) -> f64 {
        self.amount as f64 / 1e3
    }

    /// In picoseconds, exactly.
    pub fn ps(&self) -> u64 {
        self.amount
    }
}

impl Size {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        self.amount
    }
}

impl Bandwidth {
    /// In bytes per second.
    pub fn bytes_per_second(&self) -> u64 {
        self.amount
    }

    /// Nanoseconds to move `bytes`.
    pub fn ns_for(&self, bytes: u64) -> f64 {
        bytes as f64 * 1e9 / self.amount as f64
    }
}

impl Frequency {
    /// In hertz.
    pub fn hz(&self) -> u64 {
        self.amount
    }

    /// One cycle, in nanoseconds.
    pub fn cycle_ns(&self) -> f64 {
        1e9 / self.amount as f64
    }
}

impl Rotation {
    /// One turn, in nanoseconds.
    pub fn turn_ns(&self) -> f64 {
        60e9 / self.amount as f64
    }
}

/// How many of something: a whole number, 1 to 2^40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Count(pub u64);

impl Value for Count {
    const WHAT: &'static str = "a count";
    const EXAMPLE: &'static str = "64";
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Count;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number such as {}", Count::EXAMPLE)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Count, E> {
                match u64::try_from(value) {
                    Ok(count @ 1..=0x100_0000_0000) => Ok(Count(count)),
                    _ => Err(E::custom(format!(
                        "{value} is absurd; a count lies within 1 to 2^40; write for example {}",
                        Count::EXAMPLE
                    ))),
                }
            }
            // JSON gives unsigned numbers, TOML signed ones.
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Count, E> {
                self.visit_i64(i64::try_from(value).unwrap_or(i64::MAX))
            }
        }
        deserializer.deserialize_any(Whole)
    }
}

impl JsonSchema for Count {
    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 1u64 << 40 })
    }
}

/// A plain ratio: above 0, at most 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Ratio(pub f64);

impl Value for Ratio {
    const WHAT: &'static str = "a ratio";
    const EXAMPLE: &'static str = "1.5";
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Ratio;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a plain number such as {}", Ratio::EXAMPLE)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Ratio, E> {
                self.visit_f64(value as f64)
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ratio, E> {
                self.visit_f64(value as f64)
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Ratio, E> {
                // Not-a-number fails both comparisons.
                if value > 0.0 && value <= 1e6 {
                    Ok(Ratio(value))
                } else {
                    Err(E::custom(format!(
                        "{value} is absurd; a ratio is above 0 and at most 1000000; write for \
                         example {}",
                        Ratio::EXAMPLE
                    )))
                }
            }
        }
        deserializer.deserialize_any(Number)
    }
}

impl JsonSchema for Ratio {
    fn schema_name() -> Cow<'static, str> {
        "Ratio".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000 })
    }
}

/// Reads a whole number of at most 65,535, the largest that a list of small numbers may hold.
struct Small(u64);

impl<'de> Deserialize<'de> for Small {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match i64::deserialize(deserializer)? {
            value @ 0..=65_535 => Ok(Small(value as u64)),
            value => Err(de::Error::custom(format!("{value} does not lie within 0 to 65535"))),
        }
    }
}

/// Small whole numbers, one a node: 0 to 65,535.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Indices(pub Vec<u64>);

impl Value for Indices {
    const WHAT: &'static str = "a list of whole numbers";
    const EXAMPLE: &'static str = "[0, 0, 1, 1]";
}

impl<'de> Deserialize<'de> for Indices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let items = Vec::<Small>::deserialize(deserializer)?;
        Ok(Indices(items.into_iter().map(|item| item.0).collect()))
    }
}

impl JsonSchema for Indices {
    fn schema_name() -> Cow<'static, str> {
        "Indices".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let item = json_schema!({ "type": "integer", "minimum": 0, "maximum": 65_535 });
        json_schema!({ "type": "array", "items": item })
    }
}

/// A square of small whole numbers, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Grid(pub Vec<Vec<u64>>);

impl Value for Grid {
    const WHAT: &'static str = "rows of whole numbers";
    const EXAMPLE: &'static str = "[[10, 21], [21, 10]]";
}

impl<'de> Deserialize<'de> for Grid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rows = Vec::<Indices>::deserialize(deserializer)?;
        Ok(Grid(rows.into_iter().map(|row| row.0).collect()))
    }
}

impl JsonSchema for Grid {
    fn schema_name() -> Cow<'static, str> {
        "Grid".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let row = generator.subschema_for::<Indices>();
        json_schema!({ "type": "array", "items": row })
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
    fn wrong_text_says_what_is_right() {
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
            ("1001s", "absurd"),
            ("99999999999999999999999ns", "absurd"),
        ] {
            let error = Time::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
            assert!(error.ends_with("write for example \"50ns\""), "{error}");
        }
        assert!(Size::parse("0B").unwrap_err().contains("absurd"));
        assert!(Size::parse("64K").unwrap_err().contains("KiB"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
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
