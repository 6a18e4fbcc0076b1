//! When the recording of a virtual machine begins and ends.

use std::sync::atomic::Ordering::Release;
use std::time::Instant;

use nearfar_trace::Result;

use super::{Ports, Vm};
use crate::interrupt::send;
use crate::shared::{Shared, wake};
use crate::streams::Streams;

/// A virtual machine that runs as process `pid`.
pub(crate) struct Guest<'a> {
    vm: &'a Vm,
    ports: &'a Ports,
    pid: u32,
    /// When QEMU was started.
    since: Instant,
    begun: bool,
    killed: bool,
}

impl<'a> Guest<'a> {
    pub fn new(vm: &'a Vm, ports: &'a Ports, pid: u32) -> Self {
        Self { vm, ports, pid, since: Instant::now(), begun: false, killed: false }
    }

    /// Begin to record the machine when that is due, and kill it once recording is over.
    pub fn turn(&mut self, shared: &Shared, streams: &mut Streams<'_>, ended: bool) -> Result<()> {
        let out = &mut streams.recording.out;
        let waits = !out.has_begun();
        if waits
            && out.schedule.waits_for().is_some()
            && self.since.elapsed() > self.vm.boot_timeout
        {
            out.stop(None);
        }
        if !waits && !self.begun && streams.has_processes() {
            self.begun = true;
            streams.begin_vm(self.vm, self.ports)?;
            shared.header().record.store(1, Release);
            wake(&shared.header().record);
        }
        if streams.stopped() && !self.killed && !ended {
            self.killed = true;
            // SIGKILL loses nothing: the machine has nothing to write back.
            send(self.pid, libc::SIGKILL);
        }
        Ok(())
    }
}
