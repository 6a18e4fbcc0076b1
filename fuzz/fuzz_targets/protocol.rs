//! The memory that a captured program shares with the capture: the plugin's half writes to it, the
//! input writes whatever it likes, the receiver makes a trace of it that can be read.
//!
//! The plugin's files are GPL-2.0-or-later; what is built here is not distributed.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use nearfar_capture::exercise::{Input, protocol};
use nearfar_capture::layout;
use nearfar_capture::shared::Shared;
use nearfar_fuzz::in_folder;

#[path = "../../crates/capture/src/loopback/half.rs"]
mod half;
#[path = "../../capture/qemu-plugin/src/recorder.rs"]
#[allow(dead_code)]
mod recorder;
#[path = "../../capture/qemu-plugin/src/stream.rs"]
#[allow(dead_code)]
mod stream;

thread_local! {
    static MEMORY: OnceCell<(Shared, &'static recorder::Recorder)> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| in_folder(|folder| MEMORY.with(|memory| {
    let (shared, recorder) = memory.get_or_init(|| {
        let shared = Shared::create(0).expect("shared memory");
        let recorder = half::install(&shared);
        (shared, recorder)
    });
    let _ = protocol(shared, folder, bytes, &mut |input, first| half::act(recorder, input, first));
})));
