//! Sequential memory bandwidth of one or several processors.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use nearfar_trace::{Error, Result};

use crate::mapping::{Mapping, Pages};
use crate::thread::{Stopwatch, pin};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Stores, as `memset` makes them.
    Write,
}

/// Bytes per second in each round. A thread on each processor of `cpus` reads or writes `bytes` of its
/// own, on the memory node `node` if given. A single thread is timed by its processor time, several by
/// the wall clock, from the first start to the last end.
///
/// # Errors
/// The system denies memory or a processor.
pub fn bandwidth(
    access: Access,
    cpus: &[usize],
    bytes: usize,
    node: Option<usize>,
    rounds: usize,
) -> Result<Vec<f64>> {
    let memories: Result<Vec<Mapping>> =
        cpus.iter().map(|_| Mapping::new(bytes, Pages::Huge, node)).collect();
    let barrier = Barrier::new(cpus.len());
    // For each round: start, end, and processor time in nanoseconds.
    let measure = |cpu: usize, mut memory: Mapping| -> Result<Vec<(Instant, Instant, f64)>> {
        // A thread that is denied its processor continues, because the others wait at the barrier.
        let pinned = pin(cpu);
        // Fault in all pages before the rounds.
        memory.write(4096, None);
        let times = (0..rounds).map(|_| {
            barrier.wait();
            let (began, watch) = (Instant::now(), Stopwatch::start());
            match access {
                Access::Read => black_box(sum(memory.words())),
                Access::Write => {
                    memory.words_mut().fill(black_box(u64::MAX));
                    0
                }
            };
            (began, Instant::now(), watch.each(1))
        });
        let times = times.collect();
        pinned.map(|()| times)
    };
    let times: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .zip(memories?)
            .map(|(cpu, memory)| scope.spawn(|| measure(*cpu, memory)))
            .collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::missing("bandwidth", "a thread died", "")))
        });
        ended.collect()
    });
    let times = times?;
    let total_bytes = (bytes * cpus.len()) as f64;
    let rates = (0..rounds).filter_map(|round| {
        let began = times.iter().map(|times| times[round].0).min()?;
        let ended = times.iter().map(|times| times[round].1).max()?;
        let ns = match &times[..] {
            [alone] => alone[round].2,
            _ => (ended - began).as_nanos() as f64,
        };
        Some(total_bytes / ns * 1e9)
    });
    Ok(rates.collect())
}

/// The sum of all words. Eight independent chains hide the latency of additions.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 8];
    for eight in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_has_a_rate() {
        for access in [Access::Read, Access::Write] {
            let rates = bandwidth(access, &[0, 0], 1 << 20, None, 3).unwrap();
            assert!(rates.len() == 3 && rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
        }
    }

    #[test]
    fn a_missing_processor_or_too_much_memory_is_an_error() {
        assert!(bandwidth(Access::Read, &[0, 1 << 20], 1 << 20, None, 3).is_err());
        assert!(bandwidth(Access::Read, &[0], 1 << 62, None, 3).is_err());
    }

    #[test]
    fn all_words_are_read() {
        assert_eq!(sum(&(1..=64).collect::<Vec<u64>>()), 64 * 65 / 2);
    }
}
