//! The reader of machine descriptions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_hardware::Machine;

fuzz_target!(|text: &str| {
    let _ = Machine::parse("fuzz", text);
});
