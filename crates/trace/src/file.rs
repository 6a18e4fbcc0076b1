//! Opens untrusted paths: only regular files or pipes of a shell, and no more bytes than expected.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// Open `path` for reading if it is a regular file: a pipe can block, and a device may have no end.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> Result<File> {
    let file = open_any(path)?;
    match special(&file, path)? {
        Some(what) => Err(Error::input(path.display().to_string(), what, "give a regular file")),
        None => Ok(file),
    }
}

/// Open `path` for one sequential pass: a regular file, or a pipe passed by a shell (`<(...)`,
/// `/dev/stdin`).
///
/// # Errors
/// It cannot be opened, or is something else.
pub fn open_stream(path: &Path) -> Result<File> {
    let file = open_any(path)?;
    let prefixes = ["/dev/fd/", "/proc/self/fd/", "/dev/stdin"];
    match special(&file, path)? {
        None => Ok(file),
        Some(PIPE) if prefixes.iter().any(|start| path.to_string_lossy().starts_with(start)) => {
            // Clear O_NONBLOCK.
            // SAFETY: the descriptor is open as long as `file` exists.
            match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } {
                -1 => Err(Error::io(path, "cannot open", &std::io::Error::last_os_error())),
                _ => Ok(file),
            }
        }
        Some(what) => Err(Error::input(
            path.display().to_string(),
            what,
            "give a regular file; a pipe only as standard input (`/dev/stdin`)",
        )),
    }
}

/// Read the file `path`, opened by [`open_stream`], if it has at most `max` bytes. `what` describes
/// the expected file.
///
/// # Errors
/// It cannot be opened or read, is not a file, or is larger.
pub fn read(path: &Path, what: &str, max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Bound the read, because files below /proc and /sys report no size.
    let read = open_stream(path)?.take(max + 1).read_to_end(&mut bytes);
    let read = read.map_err(|e| Error::io(path, "cannot read", &e))?;
    if read as u64 > max {
        let size = format!("is over {} MiB", max >> 20);
        return Err(Error::input(path.display().to_string(), size, format!("{what} is smaller")));
    }
    Ok(bytes)
}

fn open_any(path: &Path) -> Result<File> {
    // Without O_NONBLOCK, opening a pipe waits for a writer.
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    opened.map_err(|e| Error::io(path, "cannot open", &e))
}

const PIPE: &str = "is a pipe";

/// The type of the file, if it is not a regular file.
fn special(file: &File, path: &Path) -> Result<Option<&'static str>> {
    let kind = file.metadata().map_err(|e| Error::io(path, "cannot open", &e))?.file_type();
    Ok(match kind {
        _ if kind.is_file() => None,
        _ if kind.is_dir() => Some("is a folder"),
        _ if kind.is_fifo() => Some(PIPE),
        _ => Some("is a device"),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let zero = Path::new("/dev/zero");
        for (path, is) in [(&*fifo, "a pipe"), (zero, "a device"), (folder.path(), "a folder")] {
            for opened in [open(path), open_stream(path)] {
                let error = opened.unwrap_err().to_string();
                assert!(error.contains(is), "{error}");
            }
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(zero, &link).unwrap();
        assert!(open(&link).unwrap_err().to_string().contains("a device"));
        let file = folder.path().join("file");
        std::fs::write(&file, vec![b'x'; 2 << 20]).unwrap();
        assert_eq!(read(&file, "such a file", 2 << 20).unwrap().len(), 2 << 20);
        let error = read(&file, "such a file", 1 << 20).unwrap_err().to_string();
        assert!(error.ends_with("file: is over 1 MiB; such a file is smaller"), "{error}");
        // Its size is reported as 0.
        assert!(!read(Path::new("/proc/self/status"), "", 1 << 20).unwrap().is_empty());
    }
}
