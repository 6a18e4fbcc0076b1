//! The reader of `trace.json`.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use nearfar_trace::{Info, KindSet};

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir().expect("a folder"));
        std::fs::write(folder.path().join("trace.json"), bytes).expect("a file");
        if let Ok(info) = Info::load(folder.path()) {
            let _ = info.footprint_pages(KindSet::ALL);
            let _ = info.records_of(KindSet::ALL);
        }
    });
});
