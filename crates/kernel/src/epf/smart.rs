//! `smart:TIME` (smart_EPF in paper 002, with 50 us): only embedded page faults predicted to take
//! TIME or longer go to the kernel.

use nearfar_hardware::units::Time;

use super::{Epf, Fault, PolicyEntry};

pub struct Smart {
    /// Minimum predicted time of faults that go to the kernel, picoseconds.
    threshold_ps: u128,
}

impl Epf for Smart {
    fn pass(&self, fault: &Fault) -> bool {
        u128::from(fault.predicted_ns) * 1000 >= self.threshold_ps
    }
}

pub(super) const POLICY: PolicyEntry = PolicyEntry {
    name: "smart",
    usage: "smart:50us",
    what: "faults predicted to take at least this time go to the kernel",
    make: |argument| {
        // Cut off the example in the error of `Time::parse`: `super::parse` appends the policy's own.
        let threshold = Time::parse(argument.unwrap_or(""))
            .map_err(|what| what.split("; write").next().unwrap_or_default().to_owned())?;
        Ok(Box::new(Smart { threshold_ps: u128::from(threshold.ps()) }))
    },
};
