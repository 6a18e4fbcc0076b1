//! Output files and folders of commands. Each claims its final name, is written under a temporary name
//! next to it, and is renamed when complete. An output never replaces an input, never goes into a
//! trace, and has one writer at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::folder;

/// The form of an output. It determines what the output may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file. It may replace any regular file.
    File,
    /// A folder that contains a file of this name. It may replace another such folder or an empty
    /// one.
    Folder(String),
}

#[derive(Clone, Debug)]
pub struct OutputRequest<'a> {
    pub path: &'a Path,
    pub form: Form,
    /// Replace an existing file or folder.
    pub force: bool,
    /// Files and folders that are never replaced, because they are being read.
    pub inputs: &'a [PathBuf],
}

impl OutputRequest<'_> {
    /// Check whether the name may be claimed. Returns the path with all links resolved.
    ///
    /// # Errors
    /// It may not be claimed.
    pub fn check(&self) -> Result<PathBuf> {
        if self.path.file_name().is_none() {
            return Err(self.refused("is no file name", "name a file or folder with -o"));
        }
        let path = resolve_links(self.path);
        if let Some(trace) = path.ancestors().skip(1).find(|at| is_trace(at)) {
            let what = format!("is inside the trace {}", trace.display());
            return Err(self.refused(what, "choose another place"));
        }
        if self.form == Form::File
            && let Some(parent) = path.parent()
            && !parent.is_dir()
        {
            let what = format!("no folder {}", parent.display());
            return Err(self.refused(what, "make it first"));
        }
        for input in self.inputs {
            let (of_input, of_output) = (identities(&resolve_links(input)), identities(&path));
            let name = input.display();
            let what = match (of_input[0], of_output[0]) {
                (Some(input), Some(output)) if input == output => "is an input itself".to_owned(),
                (Some(input), _) if of_output.contains(&Some(input)) => {
                    format!("is inside the input {name}")
                }
                (_, Some(output)) if of_input.contains(&Some(output)) => {
                    format!("contains the input {name}")
                }
                _ => continue,
            };
            return Err(self.refused(what, "choose another place; --force does not help"));
        }
        match path.symlink_metadata() {
            Err(_) => Ok(path),
            Ok(_) if !self.force => {
                let fix = "choose another name with -o or replace it with --force";
                Err(self.refused("exists already", fix))
            }
            Ok(existing) => match self.mismatch(&path, &existing) {
                Some(what) => {
                    let what = format!("{what}, so --force does not replace it");
                    Err(self.refused(what, "choose another name with -o"))
                }
                None => Ok(path),
            },
        }
    }

    /// Why this output may not replace what exists at `path`, if it may not.
    fn mismatch(&self, path: &Path, existing: &std::fs::Metadata) -> Option<String> {
        match &self.form {
            Form::File if existing.is_dir() => Some("is a folder".to_owned()),
            Form::File => {
                (!existing.is_file()).then(|| "exists and is not a regular file".to_owned())
            }
            Form::Folder(file) => {
                let empty = || path.read_dir().is_ok_and(|mut files| files.next().is_none());
                let matches = existing.is_dir() && (path.join(file).is_file() || empty());
                let what = if file == TRACE { "trace" } else { "result" };
                (!matches).then(|| format!("exists and is not a {what}"))
            }
        }
    }

    fn refused(&self, what: impl Into<String>, fix: &str) -> Error {
        Error::input(self.path.display().to_string(), what, fix)
    }

    fn busy(&self) -> Error {
        self.refused(
            "another command is writing it",
            "wait until it ends, or choose another name with -o",
        )
    }
}

/// The file that makes a folder a trace.
pub const TRACE: &str = "trace.json";

/// A claimed name. If dropped before [`Output::commit`], it leaves nothing.
///
/// The lock is on the output itself, not on a separate file: it survives the rename, and ends with
/// its process. An unlocked file at the temporary name is therefore left over from a killed writer.
#[derive(Debug)]
pub struct Output {
    requested: PathBuf,
    form: Form,
    force: bool,
    path: PathBuf,
    temporary: PathBuf,
    _lock: File,
    renamed: bool,
}

impl Output {
    /// Claim the name, and create the empty file or folder [`Output::temporary`].
    ///
    /// # Errors
    /// [`OutputRequest::check`] fails, another command is writing the output, or it cannot be
    /// created.
    pub fn claim(request: &OutputRequest<'_>) -> Result<Self> {
        let path = request.check()?;
        let temporary = folder::hidden_sibling(&path, "partial")?;
        if let (Form::Folder(_), Some(parent)) = (&request.form, path.parent()) {
            std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, "cannot create", &e))?;
        }
        let lock = claim(&temporary, request)?;
        let output = Self {
            requested: request.path.to_owned(),
            form: request.form.clone(),
            force: request.force,
            path,
            temporary,
            _lock: lock,
            renamed: false,
        };
        // Fails if a running capture, which is written at its final name, holds the lock.
        output.lock_replaced()?;
        Ok(output)
    }

    /// Path at which it is written.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Its final path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rename it to its final name, and remove what it replaces.
    ///
    /// # Errors
    /// The name has meanwhile been taken by something that may not be replaced, or the rename
    /// fails.
    pub fn commit(&mut self) -> Result<()> {
        // Keep the replaced folder locked until it is removed: unlocked at the temporary name, it
        // would pass for the leftover of a killed writer.
        let replaced = self.lock_replaced()?;
        self.rename()?;
        match replaced {
            Some(_) if self.temporary.is_dir() => folder::remove(&self.temporary),
            _ => Ok(()),
        }
    }

    /// Rename a folder to its final name before it is complete. It stays locked until `self` is
    /// dropped. Returns the path of the folder that it replaced, which is kept at `.NAME.replaced`.
    ///
    /// # Errors
    /// As [`Output::commit`].
    pub(crate) fn rename_early(&mut self) -> Result<Option<PathBuf>> {
        let replaced = self.lock_replaced()?;
        self.rename()?;
        if replaced.is_none() {
            return Ok(None);
        }
        let old = folder::hidden_sibling(&self.path, "replaced")?;
        folder::remove(&old)?;
        std::fs::rename(&self.temporary, &old)
            .map_err(|e| Error::io(&old, "cannot replace", &e))?;
        Ok(Some(old))
    }

    /// Rename it. Exchanges names with a folder that it replaces.
    fn rename(&mut self) -> Result<()> {
        let failed = |e: io::Error| Error::io(&self.requested, "cannot rename into place", &e);
        match self.form {
            Form::File if self.force => std::fs::rename(&self.temporary, &self.path),
            Form::Folder(_) if self.force && self.path.exists() => {
                folder::exchange(&self.temporary, &self.path)?;
                Ok(())
            }
            _ => folder::rename_new(&self.temporary, &self.path),
        }
        .map_err(failed)?;
        self.renamed = true;
        Ok(())
    }

    /// Check that the name may be taken now, and lock the folder that has it, if any.
    fn lock_replaced(&self) -> Result<Option<File>> {
        let request = self.request();
        request.check()?;
        if self.form == Form::File || !self.path.exists() {
            return Ok(None);
        }
        let old = open(&self.path).map_err(|e| Error::io(&self.requested, "cannot replace", &e))?;
        match old.try_lock() {
            Err(TryLockError::WouldBlock) => Err(request.busy()),
            // Locked, or on a file system without locks.
            _ => Ok(Some(old)),
        }
    }

    fn request(&self) -> OutputRequest<'_> {
        let path = &self.requested;
        // Inputs were compared when the name was claimed.
        OutputRequest { path, form: self.form.clone(), force: self.force, inputs: &[] }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = folder::remove(&self.temporary);
        }
    }
}

/// Create `temporary`, empty and locked, replacing what a killed writer has left there.
fn claim(temporary: &Path, request: &OutputRequest<'_>) -> Result<File> {
    let failed = |e: io::Error| Error::io(temporary, "cannot create", &e);
    // Other processes may claim it at the same time. An iteration fails only if another process
    // made progress.
    for _ in 0..100 {
        match open(temporary) {
            Ok(existing) => match existing.try_lock() {
                Ok(()) if is_at(&existing, temporary) => folder::remove(temporary)?,
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => return Err(request.busy()),
                // On a file system without locks, the owner is unknown.
                Err(TryLockError::Error(_)) => {
                    return Err(Error::input(
                        temporary.display().to_string(),
                        "another command is writing it, or was killed",
                        "remove it if no command is running",
                    ));
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // A link, which `open` does not follow.
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                std::fs::remove_file(temporary).map_err(failed)?;
            }
            Err(e) => return Err(failed(e)),
        }
        let created = match request.form {
            Form::File => OpenOptions::new().write(true).create_new(true).open(temporary),
            Form::Folder(_) => {
                std::fs::create_dir(temporary).and_then(|()| match open(temporary) {
                    // Another process has removed it.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        Err(io::ErrorKind::AlreadyExists.into())
                    }
                    opened => opened,
                })
            }
        };
        match created {
            Ok(created) => match created.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(request.busy()),
                _ if is_at(&created, temporary) => return Ok(created),
                _ => {}
            },
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e)
                if e.kind() == io::ErrorKind::NotFound
                    && temporary.parent().is_some_and(Path::is_dir) =>
            {
                let what = "cannot be created: its folder does not accept new files";
                return Err(request.refused(what, "choose another place"));
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Err(request.busy())
}

/// Open a file or folder, without following a link or blocking on a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether `file` is still at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(path)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (file.dev(), file.ino()) == (path.dev(), path.ino())
}

fn is_trace(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    has(TRACE) && (has(crate::region::FILE) || has("part-00000.parquet"))
}

/// Resolve all links of a path whose last components may not exist.
fn resolve_links(path: &Path) -> PathBuf {
    if let Ok(resolved) = path.canonicalize() {
        return resolved;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            resolve_links(parent).join(name)
        }
        _ => path.to_owned(),
    }
}

/// Device and inode of a file, if it exists.
type Identity = Option<(u64, u64)>;

/// The identities of `path` and all its parents.
fn identities(path: &Path) -> Vec<Identity> {
    let identity = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    path.ancestors().map(identity).collect()
}

#[cfg(test)]
mod tests;
