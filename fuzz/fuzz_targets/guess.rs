//! Decompression and guessing of a format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearfar_trace::import::exercise_detection(bytes));
