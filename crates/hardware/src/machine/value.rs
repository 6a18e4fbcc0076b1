//! Values of a machine file with their sources; counts, ratios and lists, in addition to the
//! quantities of [`nearfar_schema::units`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use nearfar_schema::units::Value;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// `{ value = ..., source = "..." }`: a value and where it comes from, both required.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sourced<V> {
    /// The value.
    pub value: V,
    /// Data sheet, paper, measurement or reason the value is taken from; never empty.
    pub source: String,
}

impl<'de, V: Deserialize<'de> + Value> Deserialize<'de> for Sourced<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourcedVisitor(PhantomData))
    }
}

struct SourcedVisitor<V>(PhantomData<V>);

impl<V: Value> SourcedVisitor<V> {
    /// The error for a value without a source.
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
        Self::bare(V::WHAT)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self::Value, E> {
        Self::bare("a bare number")
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Self::bare("a bare number")
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

/// A count: a whole number, 1 to 2^40.
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
                        "{value} is out of range; a count is within 1 to 2^40; write for example {}",
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
                        "{value} is out of range; a ratio is above 0 and at most 1000000; write for \
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

struct Small(u64);

impl<'de> Deserialize<'de> for Small {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match i64::deserialize(deserializer)? {
            value @ 0..=65_535 => Ok(Small(value as u64)),
            value => Err(de::Error::custom(format!("{value} is not within 0 to 65535"))),
        }
    }
}

/// A whole number for each memory node, 0 to 65,535.
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

/// Rows of whole numbers, 0 to 65,535.
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
