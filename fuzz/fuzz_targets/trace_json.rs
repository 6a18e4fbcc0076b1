//! The reader of `trace.json`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_fuzz::in_folder;
use nearfar_trace::exercise;

fuzz_target!(|bytes: &[u8]| in_folder(|folder| {
    exercise::trace_json(folder, bytes);
}));
