//! Which vector registers the processor has, as tokens that only full detection gives. A leaf: it
//! depends on no other crate of nearfar.
//!
//! A loop written for vector registers takes a token, [`Avx2`] or [`Avx512`], and enables none but
//! the features that the token was detected with: `tests/features.rs` reads the source of the whole
//! workspace for that. Beside it stands the same loop for any processor, and a test of both.
//!
//! [`VARIABLE`] lowers the level. It is read once.

use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::sync::{Once, OnceLock};

/// The environment variable that lowers the level: the name of a [`Level`]. It never raises it.
pub const VARIABLE: &str = "NEARFAR_SIMD";

/// How wide the vector registers are that loops use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever every processor of the architecture has.
    Scalar,
    /// [`Avx2`].
    Avx2,
    /// [`Avx512`].
    Avx512,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The name, as [`VARIABLE`] has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether the processor has it, whatever [`VARIABLE`] says.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            Self::Avx2 => Avx2::is_detected(),
            Self::Avx512 => Avx512::is_detected(),
        }
    }

    /// Whether the processor has it and [`VARIABLE`] allows it.
    fn is_allowed(self) -> bool {
        // The lowest when the variable is not understood: `check` has refused it where a user is.
        self <= limit().as_ref().map_or(Self::Scalar, |limit| *limit) && self.is_available()
    }
}

/// Check [`VARIABLE`]. To be called where an error can reach the user.
///
/// # Errors
/// It is set to something that is not the name of a level.
pub fn check() -> Result<(), UnknownLevel> {
    limit().as_ref().map(|_| ()).map_err(Clone::clone)
}

/// [`VARIABLE`] is set to something that is not the name of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLevel {
    value: String,
}

impl UnknownLevel {
    /// What is wrong.
    pub fn what(&self) -> String {
        format!("{:?} is no level", self.value)
    }

    /// What to do.
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

/// A token type: features are written once, for detection and for those who check them.
macro_rules! token {
    ($(#[$attribute:meta])* $name:ident: $($feature:tt)+) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());

        impl $name {
            /// What was detected: no function that takes the token may enable more.
            pub const FEATURES: &[&str] = &[$($feature),+];

            /// The token, where the processor has every feature and [`VARIABLE`] allows the level.
            #[inline]
            pub fn new() -> Option<Self> {
                static ALLOWED: OnceLock<bool> = OnceLock::new();
                ALLOWED.get_or_init(|| Level::$name.is_allowed()).then_some(Self(()))
            }

            /// [`Self::new`] for a test of a loop and its scalar twin: says once where only the twin
            /// can be run.
            pub fn for_test() -> Option<Self> {
                static WARNED: Once = Once::new();
                let token = Self::new();
                if token.is_none() {
                    WARNED.call_once(|| {
                        let level = Level::$name.name();
                        // Not `eprintln`, which the test harness keeps to itself when a test passes.
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
    fn a_name_is_a_limit_and_none_is_the_highest() {
        for level in Level::ALL {
            assert_eq!(parse(Some(level.name().as_ref())), Ok(level));
        }
        assert_eq!(parse(None), Ok(Level::Avx512));
        assert_eq!(parse(Some("".as_ref())), Ok(Level::Avx512));
    }

    #[test]
    fn another_name_is_one_line() {
        let error = parse(Some("avx\n1024".as_ref())).unwrap_err().to_string();
        assert_eq!(
            error,
            "NEARFAR_SIMD: \"avx\\n1024\" is no level; \
             set it to one of scalar, avx2, avx512, or unset it"
        );
    }

    /// A level has what the levels below it have.
    #[test]
    fn levels_are_ordered() {
        assert!(Avx2::FEATURES.iter().all(|feature| Avx512::FEATURES.contains(feature)));
        assert!(!Avx512::is_detected() || Avx2::is_detected());
    }
}
