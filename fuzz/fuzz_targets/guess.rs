//! Decompression of a trace and detection of its format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearfar_trace::import::exercise_detection(bytes));
