//! What is declared once: options, the columns of rows, registries of named things, and the grammar
//! of sizes, times and rates. A leaf: it depends on no other crate of nearfar.

pub mod units;
