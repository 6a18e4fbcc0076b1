//! Columns of rows, declared with [`columns!`](crate::columns).

use serde_json::{Value as Json, json};

/// A type that columns can have.
pub trait Cell {
    /// Its type in Arrow.
    const ARROW: &'static str;
    /// Its type in Python.
    const PYTHON: &'static str;
    /// Whether values may be missing.
    const NULLABLE: bool = false;
}

macro_rules! cells {
    ($($type:ty: $arrow:literal $python:literal;)*) => {
        $(impl Cell for $type {
            const ARROW: &'static str = $arrow;
            const PYTHON: &'static str = $python;
        })*
    };
}
// Counts are signed in Arrow, so that their differences in a data frame are correct.
cells! {
    u32: "int64" "int";
    usize: "int64" "int";
    u64: "int64" "int";
    u128: "decimal128" "int";
    i64: "int64" "int";
    f64: "double" "float";
    bool: "bool" "bool";
    String: "string" "str";
    &'static str: "string" "str";
    Seed: "uint64" "int";
}

impl<T: Cell> Cell for Option<T> {
    const ARROW: &'static str = T::ARROW;
    const PYTHON: &'static str = T::PYTHON;
    const NULLABLE: bool = true;
}

/// A seed, which uses all 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

/// The declaration of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Column {
    pub name: &'static str,
    /// As [`Cell::ARROW`].
    pub arrow: &'static str,
    /// As [`Cell::PYTHON`].
    pub python: &'static str,
    /// As [`Cell::NULLABLE`].
    pub nullable: bool,
    /// Its unit; empty for counts, shares and names.
    pub unit: &'static str,
    /// What it means.
    pub what: &'static str,
    /// Heading in tables and plots; if empty, Python derives it from the name (`Column.head` in
    /// `schema.py`).
    pub title: &'static str,
}

impl Column {
    /// Declare a column of the type `T`.
    pub fn new<T: Cell>(
        name: &'static str,
        unit: &'static str,
        what: &'static str,
        title: &'static str,
    ) -> Self {
        let (arrow, python, nullable) = (T::ARROW, T::PYTHON, T::NULLABLE);
        Self { name, arrow, python, nullable, unit, what, title }
    }
}

/// Rows declared with [`columns!`](crate::columns).
pub trait Rows {
    /// Their columns, in order.
    fn columns() -> Vec<Column>;
    /// The columns that identify a row, to pair rows of two runs. Of names joined by `|`, the first
    /// that is not null counts.
    const KEYS: &'static [&'static str];
    /// The result columns, each with the better direction, `less` or `more`. The first is the
    /// default for comparisons and plots.
    const METRICS: &'static [(&'static str, &'static str)];
    /// Name of the column, or of a swept option, that distinguishes repetitions; empty if there is
    /// none.
    const SEED: &'static str;
}

/// The declaration of rows as JSON, for `make declared`.
pub fn to_json<R: Rows>() -> Json {
    let columns = R::columns();
    let known = |name: &str| columns.iter().any(|column| column.name == name);
    let keys = R::KEYS.iter().flat_map(|key| key.split('|'));
    for name in keys.chain(R::METRICS.iter().map(|(name, _)| *name)) {
        assert!(known(name), "no column {name}");
    }
    json!({
        "columns": columns,
        "keys": R::KEYS,
        "metrics": R::METRICS,
        "seed": R::SEED,
    })
}

/// Declare rows: a struct for serde, and its columns. The documentation of a field is the column's
/// meaning, the text in brackets its unit, and the text after `as` its heading.
///
/// ```
/// use nearfar_schema::Rows as _;
///
/// nearfar_schema::columns! {
///     /// A row of a study.
///     pub struct Row {
///         /// Page size.
///         page_bytes: u64 ["bytes"],
///         /// Page faults.
///         faults: u64,
///         /// Evictions of written pages.
///         dirty_evictions: u64 as "dirty",
///     }
///     keys [page_bytes]
///     metrics [faults less]
///     seed []
/// }
/// assert_eq!(Row::columns()[0].unit, "bytes");
/// assert_eq!(Row::columns()[2].title, "dirty");
/// assert_eq!(Row::METRICS, [("faults", "less")]);
/// ```
#[macro_export]
macro_rules! columns {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $row:ident {
            $($(#[doc = $what:literal])+ $name:ident: $type:ty $([$unit:literal])? $(as $title:literal)?,)*
        }
        keys [$($key:ident $(| $or:ident)*),* $(,)?]
        metrics [$($metric:ident $better:ident),* $(,)?]
        seed [$($seed:ident)?]
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, $crate::serde::Serialize)]
        #[serde(crate = "nearfar_schema::serde")]
        $visible struct $row {
            $($(#[doc = $what])+ pub $name: $type,)*
        }

        impl $crate::Rows for $row {
            fn columns() -> Vec<$crate::Column> {
                vec![$($crate::Column::new::<$type>(
                    stringify!($name),
                    concat!("", $($unit)?),
                    concat!($($what,)+).trim_start(),
                    concat!("", $($title)?),
                ),)*]
            }
            const KEYS: &'static [&'static str] =
                &[$(concat!(stringify!($key) $(, "|", stringify!($or))*)),*];
            const METRICS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($metric), stringify!($better))),*];
            const SEED: &'static str = concat!("", $(stringify!($seed))?);
        }
    };
}
