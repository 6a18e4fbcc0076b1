//! Code that the fuzz targets share.

use std::cell::OnceCell;
use std::path::Path;

/// Call `run` with a temporary folder, the same one each time.
pub fn in_folder(run: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| run(folder.get_or_init(|| tempfile::tempdir().expect("a folder")).path()));
}
