//! A stub of the plugin's sample, which needs QEMU: these tests record every reference.

use super::recorder::Recorder;
use super::stream::Stream;

pub fn begin_counts(_recorder: &Recorder, _vcpu: u32) {}

pub fn sync(_stream: &mut Stream, _vcpu: u32) {}

pub fn forget_all() {}
