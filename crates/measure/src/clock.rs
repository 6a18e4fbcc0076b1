//! Duration of a clock cycle.

use std::hint::black_box;

use crate::thread::Stopwatch;

/// Additions per iteration of the loop.
const ADDITIONS: usize = 32;

/// Nanoseconds per cycle, measured in each of `batches` batches. A batch runs `rounds` times 32 dependent
/// additions, each of which takes one cycle on every processor.
pub fn cycle_times(rounds: usize, batches: usize) -> Vec<f64> {
    (0..batches).map(|_| time(rounds)).collect()
}

fn time(rounds: usize) -> f64 {
    let began = Stopwatch::start();
    let mut sum: u64 = 1;
    for _ in 0..rounds {
        sum = add(sum, black_box(3));
    }
    black_box(sum);
    began.each(rounds.max(1) * ADDITIONS)
}

/// Adds `one` 32 times, from a register: some processors execute additions of constants for free.
#[inline(always)]
fn add(sum: u64, one: u64) -> u64 {
    let mut sum = sum;
    macro_rules! eight {
        ($text:literal) => {
            concat!($text, $text, $text, $text, $text, $text, $text, $text)
        };
    }
    // SAFETY: only adds registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            eight!("add {sum}, {one}\n"), eight!("add {sum}, {one}\n"),
            eight!("add {sum}, {one}\n"), eight!("add {sum}, {one}\n"),
            sum = inout(reg) sum, one = in(reg) one, options(pure, nomem, nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            eight!("add {sum}, {sum}, {one}\n"), eight!("add {sum}, {sum}, {one}\n"),
            eight!("add {sum}, {sum}, {one}\n"), eight!("add {sum}, {sum}, {one}\n"),
            sum = inout(reg) sum, one = in(reg) one, options(pure, nomem, nostack),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    for _ in 0..ADDITIONS {
        sum = black_box(sum.wrapping_add(one));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_adds_thirty_two_times() {
        assert_eq!(add(5, 3), 5 + 3 * ADDITIONS as u64);
    }

    #[test]
    fn a_batch_has_a_time() {
        let times = cycle_times(100, 3);
        assert!(times.len() == 3 && times.iter().all(|time| *time > 0.0));
    }
}
