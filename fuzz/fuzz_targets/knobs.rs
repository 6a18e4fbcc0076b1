//! Tiering policies and their knobs, as `--policy` and `--knob` give them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_kernel::exercise;

fuzz_target!(|text: &str| {
    exercise::knobs(text);
});
