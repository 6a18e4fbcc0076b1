//! Latency by bandwidth: the key `loaded` of a machine file.

use std::borrow::Cow;

use nearfar_schema::units::Value;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

/// The latency of a load by bandwidth, at one share of reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Share of reads among the memory's reads and writes, 0 to 1. A store to cacheable memory reads the line
    /// and later writes it back: 0.5.
    pub reads: f64,
    /// Bandwidth of reads and writes in GB/s, rising from 0, and latency in ns. The last point is the peak.
    #[serde(deserialize_with = "pairs")]
    pub points: Vec<[f64; 2]>,
}

/// Points of exactly two numbers each.
fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<[f64; 2]>, D::Error> {
    let points = Vec::<Vec<f64>>::deserialize(deserializer)?;
    let pair = |point: Vec<f64>| {
        <[f64; 2]>::try_from(point).map_err(|point| {
            de::Error::custom(format!("{point:?} is not a point [GB/s, ns] of two numbers"))
        })
    };
    points.into_iter().map(pair).collect()
}

/// Curves in order of rising share of reads. Latencies between two curves are interpolated at equal
/// utilisation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Curves(pub Vec<Curve>);

impl Value for Curves {
    const WHAT: &'static str = "curves of latency by bandwidth";
    const EXAMPLE: &'static str = "[{ reads = 1, points = [[0, 90], [20, 95], [25, 180]] }]";
}

impl<'de> Deserialize<'de> for Curves {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let curves = Vec::<Curve>::deserialize(deserializer)?;
        let wrong = |what: &str| {
            Err(de::Error::custom(format!("{what}; write for example {}", Self::EXAMPLE)))
        };
        if curves.is_empty() {
            return wrong("no curve");
        }
        if !curves.iter().all(|curve| (0.0..=1.0).contains(&curve.reads))
            || !curves.is_sorted_by(|one, next| one.reads < next.reads)
        {
            return wrong("`reads` must rise from curve to curve, within 0 to 1");
        }
        for Curve { points, reads } in &curves {
            let first = points.first().is_some_and(|[gb_s, ns]| *gb_s == 0.0 && *ns > 0.0);
            let rises = points.is_sorted_by(|one, next| one[0] < next[0] && one[1] <= next[1]);
            let bounded = points.last().is_some_and(|[gb_s, ns]| *gb_s <= 1e6 && *ns <= 1e9);
            if points.len() < 2 || !first || !rises || !bounded {
                return wrong(&format!(
                    "the curve of reads = {reads} is not two or more points [GB/s, ns] of rising \
                     bandwidth, from 0, and rising latency"
                ));
            }
        }
        Ok(Self(curves))
    }
}

impl JsonSchema for Curves {
    fn schema_name() -> Cow<'static, str> {
        "Curves".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let curve = generator.subschema_for::<Curve>();
        json_schema!({ "type": "array", "items": curve, "minItems": 1 })
    }
}
