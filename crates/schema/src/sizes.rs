//! Options that are sizes, times and shares, in the grammar of [`units`](crate::units).

use serde_json::Value as Json;

use crate::units::{self, MemorySize};
use crate::value::refuse;
use crate::{Given, Value};

/// A number that stands in its type's own unit, or text with a unit.
macro_rules! amounts {
    ($($(#[$attribute:meta])* $name:ident, $metavar:literal, $parse:path, $a:literal, $fix:literal;)*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name(pub u64);

            impl Value for $name {
                fn metavar() -> &'static str {
                    $metavar
                }
                fn python() -> String {
                    "str | int".into()
                }
                fn read(given: &Given) -> Result<Self, String> {
                    match given {
                        Given::Text(text) => $parse(text).map(Self),
                        Given::Whole(number) => u64::try_from(*number)
                            .map(Self)
                            .map_err(|_| refuse(given, $a, $fix)),
                        other => Err(refuse(other, $a, $fix)),
                    }
                }
                fn plain(&self) -> Json {
                    self.0.into()
                }
            }
        )*
    };
}
amounts! {
    /// Bytes, above 0.
    Bytes, "SIZE", units::parse_bytes, "a size", "write a size above 0 such as 4096, 4K or 2M";
    /// Nanoseconds.
    Nanoseconds, "TIME", nanoseconds, "a time", "write for example 50us";
}

/// A time with its unit; what was recorded as nanoseconds has none.
fn nanoseconds(text: &str) -> Result<u64, String> {
    text.parse().or_else(|_| units::parse_nanoseconds(text))
}

/// Page sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSizes(pub Vec<u64>);

impl Value for PageSizes {
    fn metavar() -> &'static str {
        "SIZES"
    }
    fn python() -> String {
        "str | Sequence[int]".into()
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

/// One memory size, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct OneMemory {
    /// What was written.
    pub text: String,
    /// What it says.
    pub size: MemorySize,
}

impl Value for OneMemory {
    fn metavar() -> &'static str {
        "SIZE"
    }
    fn python() -> String {
        "str".into()
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

/// Memory sizes, as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// What was written.
    pub text: String,
    /// What it says.
    pub sizes: Vec<MemorySize>,
}

impl Value for Memory {
    fn metavar() -> &'static str {
        "SIZES"
    }
    fn python() -> String {
        "str".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Text(text) => Ok(Self { text: text.clone(), sizes: units::parse_memory(text)? }),
            other => Err(refuse(other, "a memory size", "write for example 10%,50% or 512M")),
        }
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}
