//! Columns of rows: declared once with [`columns!`](crate::columns), where the rows are made.

use serde_json::{Value as Json, json};

/// A type that a column may have.
pub trait Cell {
    /// Its name in Arrow.
    const ARROW: &'static str;
    /// Its type in Python.
    const PYTHON: &'static str;
    /// Whether it may be missing.
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
// Counts are signed in Arrow: what subtracts two of them in a data frame expects that.
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

/// A seed, which has all 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct Seed(pub u64);

/// The declaration of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
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
    /// The head of the column in tables and plots; empty where the name says it: Python makes it
    /// from that (`Column.head` in `schema.py`).
    pub title: &'static str,
}

impl Column {
    /// The column of this name, of the type `T`.
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

/// Rows that were declared with [`columns!`](crate::columns).
pub trait Rows {
    /// Their columns, in order.
    fn columns() -> Vec<Column>;
    /// The columns that say what a row is of, so that rows of two runs are paired by them; of names
    /// joined by `|` the first that is not null counts.
    const KEYS: &'static [&'static str];
    /// The columns that say what a row found, each with `less` or `more`: what of it is better. The
    /// first is compared and drawn unless another is named.
    const METRICS: &'static [(&'static str, &'static str)];
    /// The column over which rows are repetitions of each other, of the rows or of a sweep over the
    /// option of this name; empty where there is none.
    const SEED: &'static str;
}

/// The declaration of rows as JSON, from which `make declared` writes everything else.
pub fn to_json<R: Rows>() -> Json {
    let columns = R::columns();
    let known = |name: &str| columns.iter().any(|column| column.name == name);
    let keys = R::KEYS.iter().flat_map(|key| key.split('|'));
    for name in keys.chain(R::METRICS.iter().map(|(name, _)| *name)) {
        assert!(known(name), "no column {name}");
    }
    let columns = columns.iter().map(|column| {
        json!({
            "name": column.name, "arrow": column.arrow, "python": column.python,
            "nullable": column.nullable, "unit": column.unit, "what": column.what,
            "title": column.title,
        })
    });
    json!({
        "columns": columns.collect::<Vec<_>>(),
        "keys": R::KEYS,
        "metrics": R::METRICS,
        "seed": R::SEED,
    })
}

/// Declare rows: a struct that serde writes, and its columns. The documentation of a field is what
/// the column means, the text in brackets its unit, the text after `as` its head in tables.
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
