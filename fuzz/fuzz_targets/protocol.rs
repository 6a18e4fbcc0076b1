//! The memory that a captured program shares with the capture. The plugin writes to it, the fuzz
//! input overwrites it arbitrarily, and the receiver must still make a readable trace.
//!
//! The plugin's files are GPL-2.0-or-later; this binary is not distributed.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use nearfar_capture::exercise::{Input, protocol};
use nearfar_capture::layout;
use nearfar_capture::shared::Shared;
use nearfar_fuzz::in_folder;

#[path = "../../crates/capture/src/loopback/plugin_side.rs"]
mod plugin_side;
#[path = "../../capture/qemu-plugin/src/recorder.rs"]
#[allow(dead_code)]
mod recorder;
#[path = "../../crates/capture/src/loopback/sample.rs"]
#[allow(dead_code)]
mod sample;
#[path = "../../capture/qemu-plugin/src/stream.rs"]
#[allow(dead_code)]
mod stream;

thread_local! {
    static MEMORY: OnceCell<(Shared, &'static recorder::Recorder)> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| in_folder(|folder| MEMORY.with(|memory| {
    let (shared, recorder) = memory.get_or_init(|| {
        // No flags: `protocol` sets them for each input.
        let shared = Shared::create(0).expect("shared memory");
        let recorder = plugin_side::install(&shared);
        (shared, recorder)
    });
    let _ = protocol(shared, folder, bytes, &mut |input, at_start| {
        plugin_side::act(recorder, input, at_start)
    });
})));
