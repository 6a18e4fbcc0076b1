//! Sizes, times, TLBs, policies: the short notations of the command line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_kernel::exercise;

fuzz_target!(|text: &str| {
    exercise::words(text);
});
