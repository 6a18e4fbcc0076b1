//! The error type of nearfar: what went wrong, where, and what to do.

use std::fmt::{self, Write as _};
use std::path::Path;

/// Why a run cannot continue. Determines the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Usage or bad input: exit code 2.
    Input,
    /// A required tool or device is missing: exit code 3.
    Missing,
    /// The caller cancelled the run, for example with Ctrl-C: exit code 130, as in shells.
    Cancelled,
}

/// An error, shown as one line: `place: what; fix`.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    place: String,
    what: String,
    fix: String,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Bad input or usage. `place` is the file, record, byte, key or flag, and `fix` the remedy.
    pub fn input(
        place: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { kind: ErrorKind::Input, place: place.into(), what: what.into(), fix: fix.into() }
    }

    /// An invalid option.
    pub fn refused(wrong: nearfar_schema::Wrong) -> Self {
        Self::input(wrong.place, wrong.what, "")
    }

    pub fn missing(
        place: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { kind: ErrorKind::Missing, place: place.into(), what: what.into(), fix: fix.into() }
    }

    pub fn cancelled() -> Self {
        let (place, what) = ("run".into(), "cancelled".into());
        Self { kind: ErrorKind::Cancelled, place, what, fix: String::new() }
    }

    /// An operating-system error on `path`, with the usual remedy for its cause.
    pub fn io(path: &Path, doing: &str, error: &std::io::Error) -> Self {
        Self::input(path.display().to_string(), format!("{doing}: {error}"), remedy(error))
    }

    pub fn exit_code(&self) -> i32 {
        match self.kind {
            ErrorKind::Input => 2,
            ErrorKind::Missing => 3,
            ErrorKind::Cancelled => 130,
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// The remedy for an operating-system error on a file.
pub(crate) fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as K;
    match error.raw_os_error() {
        Some(libc::EMFILE) => return "raise the limit on open files (`ulimit -n`)",
        Some(libc::ENFILE) => return "the whole machine has too many files open; try again later",
        Some(libc::ENOMEM) => return "free some memory, or raise the limit on it (`ulimit -v`)",
        Some(libc::EIO) => return "the disk reports an error: see the system log",
        _ => {}
    }
    match error.kind() {
        K::NotFound => "check the path",
        K::PermissionDenied => "check the permissions or choose another place with -o",
        K::StorageFull | K::QuotaExceeded | K::FileTooLarge => {
            "free some space or choose another disk with -o; finished parts are kept"
        }
        K::AlreadyExists => "choose another name or pass --force",
        _ => "check the path and the disk, or choose another place with -o",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, &self.place)?;
        f.write_str(": ")?;
        escaped(f, &self.what)?;
        if !self.fix.is_empty() {
            f.write_str("; ")?;
            escaped(f, &self.fix)?;
        }
        Ok(())
    }
}

/// Write `text` with control characters and line breaks escaped.
fn escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|letter| match letter {
        _ if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
            write!(f, "{}", letter.escape_default())
        }
        _ => f.write_char(letter),
    })
}

impl std::error::Error for Error {}
