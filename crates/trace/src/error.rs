//! The one error type of nearfar: what went wrong, where, and what to do.

use std::fmt::{self, Write as _};
use std::path::Path;

/// Why a run cannot go on; decides the process exit code (DESIGN: Errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Usage or bad input: exit code 2.
    Input,
    /// A needed tool or device is absent: exit code 3.
    Missing,
    /// The caller ended the run, with Ctrl-C for example: exit code 130, as shells have it.
    Cancelled,
}

/// One clear line: `place: what; fix`.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    place: String,
    what: String,
    fix: String,
}

/// `Result` with nearfar's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Bad input or usage. `place` names the file, record, byte, key or flag; `fix` says what to do.
    pub fn input(
        place: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { kind: ErrorKind::Input, place: place.into(), what: what.into(), fix: fix.into() }
    }

    /// An option that is refused.
    pub fn refused(wrong: nearfar_schema::Wrong) -> Self {
        Self::input(wrong.place, wrong.what, "")
    }

    /// A tool or device that is needed is not there.
    pub fn missing(
        place: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { kind: ErrorKind::Missing, place: place.into(), what: what.into(), fix: fix.into() }
    }

    /// The caller ended the run. Whoever did so knows why; this only unwinds what was running.
    pub fn cancelled() -> Self {
        let (place, what) = ("run".into(), "cancelled".into());
        Self { kind: ErrorKind::Cancelled, place, what, fix: String::new() }
    }

    /// An operating-system error on `path`, with the usual remedy for its cause.
    pub fn io(path: &Path, doing: &str, error: &std::io::Error) -> Self {
        Self::input(path.display().to_string(), format!("{doing}: {error}"), remedy(error))
    }

    /// Which exit code this error asks for.
    pub fn exit_code(&self) -> i32 {
        match self.kind {
            ErrorKind::Input => 2,
            ErrorKind::Missing => 3,
            ErrorKind::Cancelled => 130,
        }
    }

    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// What to do about an operating-system error on a file.
pub(crate) fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind as K;
    match error.raw_os_error() {
        Some(libc::EMFILE) => return "raise the limit on open files (`ulimit -n`)",
        Some(libc::ENFILE) => return "the whole machine has too many files open; try again later",
        Some(libc::ENOMEM) => return "free some memory, or raise the limit on it (`ulimit -v`)",
        Some(libc::EIO) => return "the disk fails: look at the system's log",
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
        line(f, &self.place)?;
        f.write_str(": ")?;
        line(f, &self.what)?;
        if !self.fix.is_empty() {
            f.write_str("; ")?;
            line(f, &self.fix)?;
        }
        Ok(())
    }
}

/// Whatever a file or a flag held, an error stays one line without control characters.
fn line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|letter| match letter {
        _ if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
            write!(f, "{}", letter.escape_default())
        }
        _ => f.write_char(letter),
    })
}

impl std::error::Error for Error {}
