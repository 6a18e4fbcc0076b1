//! Every importer on bytes of any format: it does not panic, and all its references are valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_trace::import::{IMPORTERS, exercise};

fuzz_target!(|bytes: &[u8]| {
    for importer in IMPORTERS {
        exercise(*importer, bytes);
    }
});
