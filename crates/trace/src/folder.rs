//! Atomic replacement of files and folders: a reader sees the old one or the new one, complete
//! (folders: if the file system can exchange names).

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The hidden name `.NAME.SUFFIX` next to `path`, where its new (`partial`) or old (`replaced`)
/// version is kept.
///
/// # Errors
/// `path` has no file name.
pub fn hidden_sibling(path: &Path, suffix: &str) -> Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        Error::input(path.display().to_string(), "is no file name", "name a folder with -o")
    })?;
    let parts = [OsStr::new("."), name, OsStr::new("."), OsStr::new(suffix)];
    Ok(path.with_file_name(parts.iter().copied().collect::<OsString>()))
}

/// A file that is written under a temporary name. Removed if dropped before [`Self::commit`].
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    /// Its temporary path.
    pub(crate) path: PathBuf,
    to: PathBuf,
}

impl TemporaryFile {
    /// Prepare a file with the final name `to`.
    ///
    /// # Errors
    /// `to` has no file name.
    pub(crate) fn new(to: PathBuf) -> Result<Self> {
        Ok(Self { path: hidden_sibling(&to, "partial")?, to })
    }

    /// Rename it to its final name.
    pub(crate) fn commit(self) -> Result<()> {
        std::fs::rename(&self.path, &self.to)
            .map_err(|e| Error::io(&self.to, "cannot rename into place", &e))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Fails if the file was renamed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Flush a file, or the names in a folder, to disk.
///
/// # Errors
/// The disk fails, or is full.
pub(crate) fn flush(path: &Path) -> Result<()> {
    let flushed = File::open(path).and_then(|file| file.sync_data());
    flushed.map_err(|e| Error::io(path, "cannot write", &e))
}

/// Remove the file or folder `path`, if it exists.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        _ => std::fs::remove_file(path),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path, "cannot replace", &e)),
        _ => Ok(()),
    }
}

/// Rename the folder `temporary` to `path`. A folder at `path` is renamed to `temporary`. This is
/// atomic if the file system can exchange names; otherwise the old folder is briefly at
/// `.NAME.replaced`.
///
/// # Errors
/// A rename fails.
pub fn exchange(temporary: &Path, path: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::io(path, "cannot rename into place", &e);
    if !path.exists() {
        return std::fs::rename(temporary, path).map_err(failed);
    }
    if rename(temporary, path, libc::RENAME_EXCHANGE).is_ok() {
        return Ok(());
    }
    let old = hidden_sibling(path, "replaced")?;
    remove(&old)?;
    std::fs::rename(path, &old).map_err(failed)?;
    std::fs::rename(temporary, path).map_err(failed)?;
    std::fs::rename(&old, temporary).map_err(failed)
}

/// [`exchange`], then remove the old folder.
///
/// # Errors
/// A rename fails, or the old folder cannot be removed.
pub fn replace(temporary: &Path, path: &Path) -> Result<()> {
    exchange(temporary, path)?;
    remove(temporary)
}

/// Rename `temporary` to `path`, which must not exist.
///
/// # Errors
/// `path` exists, or the rename fails.
pub(crate) fn rename_new(temporary: &Path, path: &Path) -> io::Result<()> {
    match rename(temporary, path, libc::RENAME_NOREPLACE) {
        // The file system cannot check and rename atomically.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => match path.symlink_metadata() {
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => std::fs::rename(temporary, path),
        },
        renamed => renamed,
    }
}

fn rename(from: &Path, to: &Path, flags: libc::c_uint) -> io::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (from, to) = (name(from)?, name(to)?);
    let cwd = libc::AT_FDCWD;
    // SAFETY: both are C strings that outlive the call.
    match unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &Path, file: &str) {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join(file), file).unwrap();
    }

    #[test]
    fn replaces_an_existing_folder() {
        let parent = tempfile::tempdir().unwrap();
        let (temporary, path) = (parent.path().join(".a.partial"), parent.path().join("a"));
        create(&temporary, "first");
        replace(&temporary, &path).unwrap();
        assert!(path.join("first").is_file() && !temporary.exists());
        create(&temporary, "second");
        exchange(&temporary, &path).unwrap();
        assert!(path.join("second").is_file() && temporary.join("first").is_file());
        replace(&temporary, &path).unwrap();
        assert!(path.join("first").is_file() && !temporary.exists());
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_rename_is_reported() {
        let parent = tempfile::tempdir().unwrap();
        let error = replace(&parent.path().join("nothing"), &parent.path().join("a")).unwrap_err();
        assert!(error.to_string().contains("cannot rename into place"), "{error}");
        assert!(hidden_sibling(Path::new("/"), "partial").is_err());
    }
}
