//! What a command makes: a name is claimed, its content is written beside it, and takes the name
//! whole. Never in place of an input, never in a trace, and by one writer at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::folder;

/// What an output is, which is also what it may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file, in place of any regular file.
    File,
    /// A folder that holds a file of this name, in place of another one or of an empty folder.
    Folder(String),
}

/// How a name is asked for.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// File or folder.
    pub path: &'a Path,
    /// Which of them.
    pub form: Form,
    /// Replace what has the name.
    pub force: bool,
    /// What is read meanwhile, which is replaced in no case.
    pub inputs: &'a [PathBuf],
}

impl Wanted<'_> {
    /// Whether the name may be claimed, as far as that can be told before the work; answers the
    /// path without links.
    ///
    /// # Errors
    /// It may not, with the reason.
    pub fn check(&self) -> Result<PathBuf> {
        if self.path.file_name().is_none() {
            return Err(self.refused("is no file name", "name a file or folder with -o"));
        }
        let path = without_links(self.path);
        if let Some(trace) = path.ancestors().skip(1).find(|at| is_trace(at)) {
            let what = format!("lies in the trace {}", trace.display());
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
            let (known, ours) = (identities(&without_links(input)), identities(&path));
            let of = input.display();
            let what = match (known[0], ours[0]) {
                (Some(input), Some(output)) if input == output => "is an input itself".to_owned(),
                (Some(input), _) if ours.contains(&Some(input)) => {
                    format!("lies in the input {of}")
                }
                (_, Some(output)) if known.contains(&Some(output)) => {
                    format!("holds the input {of}")
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
            Ok(found) => match self.unlike(&path, &found) {
                Some(what) => {
                    let what = format!("{what}, so --force does not replace it");
                    Err(self.refused(what, "choose another name with -o"))
                }
                None => Ok(path),
            },
        }
    }

    /// Why what has the name is nothing that this output may replace.
    fn unlike(&self, path: &Path, found: &std::fs::Metadata) -> Option<String> {
        match &self.form {
            Form::File if found.is_dir() => Some("is a folder".to_owned()),
            Form::File => (!found.is_file()).then(|| "exists and is no regular file".to_owned()),
            Form::Folder(holds) => {
                let empty = || path.read_dir().is_ok_and(|mut files| files.next().is_none());
                let ours = found.is_dir() && (path.join(holds).is_file() || empty());
                let what = if holds == TRACE { "trace" } else { "result" };
                (!ours).then(|| format!("exists and is not a {what}"))
            }
        }
    }

    fn refused(&self, what: impl Into<String>, fix: &str) -> Error {
        Error::input(self.path.display().to_string(), what, fix)
    }

    fn busy(&self) -> Error {
        self.refused(
            "another command is writing it",
            "wait for its end or choose another name with -o",
        )
    }
}

/// The file that makes a folder a trace.
pub const TRACE: &str = "trace.json";

/// A claimed name. Dropped before [`Output::commit`], it leaves nothing.
///
/// The lock is on what is written, not on a file of its own: it goes where that is renamed to, and
/// with whoever holds it, however that ends. So what is left at the temporary name and not locked is
/// of a writer that was killed.
#[derive(Debug)]
pub struct Output {
    asked: PathBuf,
    form: Form,
    force: bool,
    path: PathBuf,
    temporary: PathBuf,
    _lock: File,
    placed: bool,
}

impl Output {
    /// Claim the name, and make the empty file or folder [`Output::temporary`].
    ///
    /// # Errors
    /// What [`Wanted::check`] refuses; another command is writing it; it cannot be made.
    pub fn claim(wanted: &Wanted<'_>) -> Result<Self> {
        let path = wanted.check()?;
        let temporary = folder::beside(&path, "partial")?;
        if let (Form::Folder(_), Some(parent)) = (&wanted.form, path.parent()) {
            std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, "cannot create", &e))?;
        }
        let lock = claim(&temporary, wanted)?;
        let (asked, form) = (wanted.path.to_owned(), wanted.form.clone());
        let force = wanted.force;
        let output = Self { asked, form, force, path, temporary, _lock: lock, placed: false };
        // A capture is at its own name while it is written.
        output.lock_replaced()?;
        Ok(output)
    }

    /// Where it is written.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Give it its name; what had it is removed.
    ///
    /// # Errors
    /// Something has the name by now that may not be replaced; it cannot be renamed.
    pub fn commit(&mut self) -> Result<()> {
        // Until it is removed, nobody may take what was replaced for the rest of a killed run.
        let replaced = self.lock_replaced()?;
        self.place()?;
        match replaced {
            Some(_) if self.temporary.is_dir() => folder::remove(&self.temporary),
            _ => Ok(()),
        }
    }

    /// Give a folder its name before it is finished. The lock stays until this is dropped. Answers
    /// where the folder that had the name is kept: at `.NAME.replaced`.
    ///
    /// # Errors
    /// As [`Output::commit`].
    pub(crate) fn take_place(&mut self) -> Result<Option<PathBuf>> {
        let replaced = self.lock_replaced()?;
        self.place()?;
        if replaced.is_none() {
            return Ok(None);
        }
        let old = folder::beside(&self.path, "replaced")?;
        folder::remove(&old)?;
        std::fs::rename(&self.temporary, &old)
            .map_err(|e| Error::io(&old, "cannot replace", &e))?;
        Ok(Some(old))
    }

    /// Rename it, in exchange with a folder that has the name.
    fn place(&mut self) -> Result<()> {
        let failed = |e: io::Error| Error::io(&self.asked, "cannot rename into place", &e);
        match self.form {
            Form::File if self.force => std::fs::rename(&self.temporary, &self.path),
            Form::Folder(_) if self.force && self.path.exists() => {
                folder::exchange(&self.temporary, &self.path)?;
                Ok(())
            }
            _ => folder::rename_new(&self.temporary, &self.path),
        }
        .map_err(failed)?;
        self.placed = true;
        Ok(())
    }

    /// Make sure that the name may be taken now, and lock a folder that has it.
    fn lock_replaced(&self) -> Result<Option<File>> {
        let wanted = self.wanted();
        wanted.check()?;
        if self.form == Form::File || !self.path.exists() {
            return Ok(None);
        }
        let old = open(&self.path).map_err(|e| Error::io(&self.asked, "cannot replace", &e))?;
        match old.try_lock() {
            Err(TryLockError::WouldBlock) => Err(wanted.busy()),
            _ => Ok(Some(old)),
        }
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted { path: &self.asked, form: self.form.clone(), force: self.force, inputs: &[] }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.placed {
            let _ = folder::remove(&self.temporary);
        }
    }
}

/// Make `temporary`, empty and locked, in place of what a killed run has left there.
fn claim(temporary: &Path, wanted: &Wanted<'_>) -> Result<File> {
    let failed = |e: io::Error| Error::io(temporary, "cannot create", &e);
    // Others may be at the same: each turn that comes to nothing is one of theirs.
    for _ in 0..100 {
        match open(temporary) {
            Ok(left) => match left.try_lock() {
                Ok(()) if is_at(&left, temporary) => folder::remove(temporary)?,
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => return Err(wanted.busy()),
                // A file system without locks cannot say whose it is.
                Err(TryLockError::Error(_)) => {
                    return Err(Error::input(
                        temporary.display().to_string(),
                        "another command is writing it, or was killed",
                        "remove it if none is at work",
                    ));
                }
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // A link, which nobody follows.
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                std::fs::remove_file(temporary).map_err(failed)?;
            }
            Err(e) => return Err(failed(e)),
        }
        let made = match wanted.form {
            Form::File => OpenOptions::new().write(true).create_new(true).open(temporary),
            Form::Folder(_) => std::fs::create_dir(temporary).and_then(|()| open(temporary)),
        };
        match made {
            Ok(made) => match made.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(wanted.busy()),
                _ if is_at(&made, temporary) => return Ok(made),
                _ => {}
            },
            Err(e)
                if [io::ErrorKind::AlreadyExists, io::ErrorKind::NotFound].contains(&e.kind()) =>
            {
                if !temporary.parent().is_some_and(Path::is_dir) {
                    return Err(failed(e));
                }
            }
            Err(e) => return Err(failed(e)),
        }
    }
    Err(wanted.busy())
}

/// Open what has this name, without waiting for the other end of a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether `path` is still the name of `file`.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(one), Ok(other)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn is_trace(folder: &Path) -> bool {
    let there = |name: &str| folder.join(name).is_file();
    there(TRACE) && (there(crate::region::FILE) || there("part-00000.parquet"))
}

/// The path with every link followed, as far as it is there.
fn without_links(path: &Path) -> PathBuf {
    if let Ok(found) = path.canonicalize() {
        return found;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            without_links(parent).join(name)
        }
        _ => path.to_owned(),
    }
}

/// What tells one file from another, whatever its names.
type Identity = Option<(u64, u64)>;

/// That of the file at `path`, then those of the folders around it.
fn identities(path: &Path) -> Vec<Identity> {
    let of = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    path.ancestors().map(of).collect()
}

#[cfg(test)]
mod tests;
