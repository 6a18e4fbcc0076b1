//! The QEMU plugin's side of `exercise::protocol`, which receives a trace from fuzzed shared memory: for its
//! property test and its fuzz target.

use std::fs::OpenOptions;

use super::layout::{origin, what};
use super::recorder::{Recorder, set_current_vcpu};
use super::stream::Stream;
use super::{Input, Shared};

/// Let this process write to `shared`.
pub fn install(shared: &Shared) -> &'static Recorder {
    let file = OpenOptions::new().read(true).write(true).open(shared.path());
    let recorder = file.and_then(|file| Recorder::install(file.into()));
    recorder.unwrap_or_else(|error| panic!("{error}"))
}

/// With `first`, open streams and write to them as `input` says. Otherwise, call the plugin's functions that
/// read the shared memory, which `exercise::protocol` has overwritten arbitrarily since.
pub fn act(recorder: &'static Recorder, input: &mut Input<'_>, first: bool) {
    let open = |vcpu| {
        set_current_vcpu(vcpu);
        recorder.open(vcpu);
        // SAFETY: installed and opened by the only thread.
        unsafe { Stream::of(vcpu) }
    };
    if !first {
        // No stream below has this vCPU.
        let mut stream = open(9);
        stream.position();
        stream.pause();
        let _ = stream.resume();
        stream.begin_fence();
        stream.end_fence();
        stream.before_fork(origin::FORK);
        stream.after_fork(None);
        recorder.add_block(1, 2);
        return stream.end(false);
    }
    for vcpu in 0..u32::from(input.byte() % 3) {
        let mut stream = open(vcpu);
        for _ in 0..input.byte() {
            match input.byte() % 6 {
                0 => stream.put(input.number()),
                1 => stream.begin_fence(),
                2 => stream.end_fence(),
                3 => stream.event(&[what::MAP, input.number(), input.number(), 0, 3], b"name"),
                4 => stream.note(input.number() % 20, b"name"),
                // Any tag.
                _ => stream.control(input.number() % 8 + 120, &[input.number(), input.number()]),
            }
        }
        if input.byte() & 1 == 1 {
            stream.end(input.byte() & 1 == 1);
        }
    }
}
