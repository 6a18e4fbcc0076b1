//! Detects vector extensions and represents them as tokens. It depends on no other crate of
//! nearfar.
//!
//! A vectorised loop takes a token, [`Avx2`] or [`Avx512`], and may enable only the features of
//! that token; `tests/features.rs` checks this in the source of the whole workspace. A scalar
//! version of the loop and a test of both stand next to it.
//!
//! [`VARIABLE`] lowers the level. It is read once.

use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::sync::{Once, OnceLock};

/// The environment variable that lowers the level: the name of a [`Level`]. It never raises it.
pub const VARIABLE: &str = "NEARFAR_SIMD";

/// A level of vector extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The baseline of the architecture.
    Scalar,
    /// [`Avx2`].
    Avx2,
    /// [`Avx512`].
    Avx512,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The name, as in [`VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether the processor supports it, regardless of [`VARIABLE`].
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => Avx2::is_detected(),
            Self::Avx512 => Avx512::is_detected(),
        }
    }

    /// Whether the processor supports it and [`VARIABLE`] allows it.
    fn is_allowed(self) -> bool {
        // Scalar if the variable is invalid, which `check` reports to the user.
        self <= limit().as_ref().map_or(Self::Scalar, |limit| *limit) && self.is_available()
    }
}

/// Check [`VARIABLE`]. To be called where an error can be reported.
///
/// # Errors
/// Its value is not the name of a level.
pub fn check() -> Result<(), UnknownLevel> {
    limit().as_ref().map(|_| ()).map_err(Clone::clone)
}

/// The value of [`VARIABLE`] is not the name of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLevel {
    value: String,
}

impl UnknownLevel {
    /// The message.
    pub fn what(&self) -> String {
        format!("{:?} is not a level", self.value)
    }

    /// The remedy.
    pub fn fix() -> String {
        format!("set it to one of {}, or unset it", Level::ALL.map(Level::name).join(", "))
    }
}

impl fmt::Display for UnknownLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VARIABLE}: {}; {}", self.what(), Self::fix())
    }
}

impl std::error::Error for UnknownLevel {}

/// The highest level that [`VARIABLE`] allows.
fn limit() -> &'static Result<Level, UnknownLevel> {
    static LIMIT: OnceLock<Result<Level, UnknownLevel>> = OnceLock::new();
    LIMIT.get_or_init(|| parse(std::env::var_os(VARIABLE).as_deref()))
}

fn parse(value: Option<&OsStr>) -> Result<Level, UnknownLevel> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(Level::Avx512) };
    let level = Level::ALL.into_iter().find(|level| value == level.name());
    level.ok_or_else(|| UnknownLevel { value: value.to_string_lossy().into_owned() })
}

/// Declare a token type. Its list of features serves both detection and `tests/features.rs`.
macro_rules! token {
    ($(#[$attribute:meta])* $name:ident: $($feature:tt)+) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());

        impl $name {
            /// The detected features: functions that take the token may enable no others.
            pub const FEATURES: &[&str] = &[$($feature),+];

            /// The token, if the processor has all features and [`VARIABLE`] allows the level.
            #[inline]
            pub fn new() -> Option<Self> {
                static ALLOWED: OnceLock<bool> = OnceLock::new();
                ALLOWED.get_or_init(|| Level::$name.is_allowed()).then_some(Self(()))
            }

            /// [`Self::new`] for tests of a loop and its scalar version. If only the latter can
            /// run, prints that once.
            pub fn for_test() -> Option<Self> {
                static WARNED: Once = Once::new();
                let token = Self::new();
                if token.is_none() {
                    WARNED.call_once(|| {
                        let level = Level::$name.name();
                        // The test harness hides the output of `eprintln` if the test passes.
                        let _ = writeln!(std::io::stderr(), "loops for {level} are not run here");
                    });
                }
                token
            }

            fn is_detected() -> bool {
                #[cfg(target_arch = "x86_64")]
                return true $(&& std::arch::is_x86_feature_detected!($feature))+;
                #[cfg(not(target_arch = "x86_64"))]
                false
            }
        }
    };
}

token! {
    /// 32-byte registers and bit manipulation: Haswell (2013), Zen (2017) and later.
    Avx2: "avx2" "bmi1" "bmi2" "lzcnt" "popcnt"
}

token! {
    /// 64-byte registers, with permutation and compression of bytes: Ice Lake (2019), Zen 4 (2022)
    /// and later.
    Avx512: "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vbmi" "avx512vbmi2"
        "avx2" "bmi1" "bmi2" "lzcnt" "popcnt"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_limit_and_the_default_is_the_highest() {
        for level in Level::ALL {
            assert_eq!(parse(Some(level.name().as_ref())), Ok(level));
        }
        assert_eq!(parse(None), Ok(Level::Avx512));
        assert_eq!(parse(Some("".as_ref())), Ok(Level::Avx512));
    }

    #[test]
    fn an_unknown_name_is_an_error_of_one_line() {
        let error = parse(Some("avx\n1024".as_ref())).unwrap_err().to_string();
        assert_eq!(
            error,
            "NEARFAR_SIMD: \"avx\\n1024\" is not a level; \
             set it to one of scalar, avx2, avx512, or unset it"
        );
    }

    /// A level has the features of the levels below it.
    #[test]
    fn levels_are_ordered() {
        assert!(Avx2::FEATURES.iter().all(|feature| Avx512::FEATURES.contains(feature)));
        assert!(!Avx512::is_detected() || Avx2::is_detected());
    }
}
