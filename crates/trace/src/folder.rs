//! Atomic replacement of files and folders: a reader sees the old one or the new one, complete.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A hidden name beside `path`, where what becomes (`partial`) or was (`replaced`) `path` is kept.
///
/// # Errors
/// `path` has no file name.
pub fn beside(path: &Path, what: &str) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        Error::input(path.display().to_string(), "is no file name", "name a folder with -o")
    })?;
    let parts = [OsStr::new("."), name, OsStr::new("."), OsStr::new(what)];
    Ok(path.with_file_name(parts.iter().copied().collect::<OsString>()))
}

/// A file that is written under one name to be given another; removed when dropped before that.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    /// Where it is written.
    pub(crate) path: PathBuf,
    to: PathBuf,
}

impl TemporaryFile {
    /// For a file that is to have the name `to`.
    ///
    /// # Errors
    /// `to` has no file name.
    pub(crate) fn new(to: PathBuf) -> Result<Self> {
        Ok(Self { path: beside(&to, "partial")?, to })
    }

    /// Give it its name.
    pub(crate) fn commit(self) -> Result<()> {
        std::fs::rename(&self.path, &self.to)
            .map_err(|e| Error::io(&self.to, "cannot rename into place", &e))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Once it has its name, there is nothing here to remove.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Have a file, or the names in a folder, on the disk.
///
/// # Errors
/// The disk fails, or is full.
pub(crate) fn flush(path: &Path) -> Result<()> {
    let flushed = File::open(path).and_then(|file| file.sync_data());
    flushed.map_err(|e| Error::io(path, "cannot write", &e))
}

/// Remove the file or folder `path`, if it is there.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        _ => std::fs::remove_file(path),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path, "cannot replace", &e)),
        _ => Ok(()),
    }
}

/// Give the folder `temporary` the name `path`. A folder that had it gets the name `temporary`: remove it,
/// or keep it. At no moment is neither there, where the file system can exchange names; elsewhere
/// the old folder is for a moment at `.NAME.replaced`.
///
/// # Errors
/// They cannot be renamed.
pub fn exchange(temporary: &Path, path: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::io(path, "cannot rename into place", &e);
    if !path.exists() {
        return std::fs::rename(temporary, path).map_err(failed);
    }
    if swap(temporary, path) {
        return Ok(());
    }
    let old = beside(path, "replaced")?;
    remove(&old)?;
    std::fs::rename(path, &old).map_err(failed)?;
    std::fs::rename(temporary, path).map_err(failed)?;
    std::fs::rename(&old, temporary).map_err(failed)
}

/// [`exchange`], and remove what was there.
///
/// # Errors
/// As [`exchange`]; the old folder cannot be removed.
pub fn replace(temporary: &Path, path: &Path) -> Result<()> {
    exchange(temporary, path)?;
    remove(temporary)
}

/// Rename `temporary` to `path`, which nothing may be called yet.
///
/// # Errors
/// Something is; it cannot be renamed.
pub(crate) fn rename_new(temporary: &Path, path: &Path) -> io::Result<()> {
    match rename(temporary, path, libc::RENAME_NOREPLACE) {
        // The file system cannot do both at once.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => match path.symlink_metadata() {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => std::fs::rename(temporary, path),
        },
        renamed => renamed,
    }
}

/// Exchange two names in one step; false where the file system cannot.
fn swap(one: &Path, other: &Path) -> bool {
    rename(one, other, libc::RENAME_EXCHANGE).is_ok()
}

fn rename(from: &Path, to: &Path, flags: libc::c_uint) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (from, to) = (name(from)?, name(to)?);
    let here = libc::AT_FDCWD;
    // SAFETY: both are strings that end in a zero byte and live until the call returns.
    match unsafe { libc::renameat2(here, from.as_ptr(), here, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(path: &Path, holds: &str) {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join(holds), holds).unwrap();
    }

    #[test]
    fn takes_the_place_of_what_was_there() {
        let place = tempfile::tempdir().unwrap();
        let (temporary, path) = (place.path().join(".a.partial"), place.path().join("a"));
        folder(&temporary, "first");
        replace(&temporary, &path).unwrap();
        assert!(path.join("first").is_file() && !temporary.exists());
        folder(&temporary, "second");
        exchange(&temporary, &path).unwrap();
        assert!(path.join("second").is_file() && temporary.join("first").is_file());
        replace(&temporary, &path).unwrap();
        assert!(path.join("first").is_file() && !temporary.exists());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn says_what_cannot_be_renamed() {
        let place = tempfile::tempdir().unwrap();
        let error = replace(&place.path().join("nothing"), &place.path().join("a")).unwrap_err();
        assert!(error.to_string().contains("cannot rename into place"), "{error}");
        assert!(beside(Path::new("/"), "partial").is_err());
    }
}
