//! Cost of a context switch between threads of one processor.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::thread;

use nearfar_trace::{Error, Result};

use crate::thread::{Stopwatch, pin};

/// Nanoseconds per switch, one value for each of `batches` batches of `rounds` round trips. Two
/// threads wake each other through pipes; the time of a single thread to write to a pipe and read
/// from it is subtracted. Uses the processor time of the process, in which no other threads should
/// run.
///
/// # Errors
/// The system denies a pipe or the processor.
pub fn switch_times(cpu: usize, rounds: usize, batches: usize) -> Result<Vec<f64>> {
    let failed = |why: io::Error| Error::missing("context switch", why.to_string(), "");
    let (mut there_read, mut there) = pipe().map_err(failed)?;
    let (mut back_read, mut back) = pipe().map_err(failed)?;
    thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            let pinned = pin(cpu);
            let mut byte = [0];
            // Ends when the measuring thread closes its end.
            while there_read.read(&mut byte).is_ok_and(|read| read == 1) {
                back.write_all(&byte).map_err(failed)?;
            }
            pinned
        });
        let times = scope.spawn(move || -> Result<Vec<f64>> {
            pin(cpu)?;
            let (mut own_read, mut own) = pipe().map_err(failed)?;
            let mut byte = [0];
            // `writes`: number of writes per round, by both threads together.
            let mut time = |to: &mut PipeWriter, from: &mut PipeReader, writes: usize| {
                let began = Stopwatch::of_process();
                for _ in 0..rounds {
                    to.write_all(&byte)
                        .and_then(|()| from.read_exact(&mut byte))
                        .map_err(failed)?;
                }
                Ok(began.each(rounds * writes))
            };
            (0..batches)
                .map(|_| {
                    Ok(time(&mut there, &mut back_read, 2)? - time(&mut own, &mut own_read, 1)?)
                })
                .collect()
        });
        let died = |_| Err(Error::missing("context switch", "a thread died", ""));
        let times = times.join().unwrap_or_else(died)?;
        other.join().unwrap_or(Ok(()))?;
        Ok(times)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_has_a_time_and_both_threads_end() {
        assert_eq!(switch_times(0, 10, 3).unwrap().len(), 3);
        assert!(switch_times(1 << 20, 10, 3).is_err());
    }
}
