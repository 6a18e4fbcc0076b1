//! Every importer, whatever the file's format: no panic, and only references come out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_trace::import::{IMPORTERS, exercise};

fuzz_target!(|bytes: &[u8]| {
    for importer in IMPORTERS {
        exercise(*importer, bytes);
    }
});
