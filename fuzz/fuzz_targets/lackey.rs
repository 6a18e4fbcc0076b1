//! The `lackey` importer: no panic, and only references come out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearfar_trace::import;

fuzz_target!(|bytes: &[u8]| {
    let importer = import::by_name("lackey").expect("a registered format");
    import::exercise(importer, bytes);
});
