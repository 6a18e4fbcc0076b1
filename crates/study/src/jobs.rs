//! Runs independent simulations of a study (SSD settings, or policies x seeds) in parallel.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nearfar_trace::{Error, Result};

/// Reports the work of a job (references or accesses) since the previous call. If it returns an error,
/// the job must return that error.
pub type Advance<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Interval between two calls of `on_progress`.
const INTERVAL: Duration = Duration::from_millis(100);

/// Run `job` for each of `items`, at most `threads` at a time (0 = one per core), and return the
/// results in the order of `items`. The number of threads changes neither results nor errors.
///
/// `on_progress` is called on the calling thread, about ten times a second and at the end, with the
/// total work of all jobs so far. With one thread or one item, jobs run on the calling thread too.
///
/// # Errors
/// * The error of `on_progress`: every job is stopped.
/// * Otherwise the error of the first item, in order, that fails. Later items are stopped or not
///   started; earlier items continue, because they may still fail.
pub fn run<I: Sync, T: Send>(
    items: &[I],
    threads: usize,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
    job: impl Fn(&I, &mut Advance<'_>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let workers = if threads == 0 { cores() } else { threads }.min(items.len());
    if workers <= 1 {
        return run_here(items, on_progress, job);
    }
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    // Items from this index on are cancelled.
    let end = AtomicUsize::new(items.len());
    thread::scope(|scope| {
        let (sender, finished) = channel();
        for number in 0..workers {
            let (sender, next, done, end, job) = (sender.clone(), &next, &done, &end, &job);
            let work = move || {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= end.load(Relaxed) {
                        return;
                    }
                    let result = job(&items[index], &mut |work| {
                        done.fetch_add(work, Relaxed);
                        if index < end.load(Relaxed) { Ok(()) } else { Err(Error::cancelled()) }
                    });
                    if result.is_err() {
                        end.fetch_min(index, Relaxed);
                    }
                    if sender.send((index, result)).is_err() {
                        return;
                    }
                }
            };
            match thread::Builder::new().spawn_scoped(scope, work) {
                // The started threads run all items.
                Err(_) if number > 0 => break,
                Err(e) => {
                    let what = format!("no thread can be started: {e}");
                    return Err(Error::input("--threads", what, "give 1, or raise `ulimit -u`"));
                }
                Ok(_) => {}
            }
        }
        drop(sender);
        let mut results: Vec<Option<Result<T>>> = items.iter().map(|_| None).collect();
        let mut status = Ok(());
        loop {
            match finished.recv_timeout(INTERVAL) {
                Ok((index, result)) => results[index] = Some(result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if status.is_ok() {
                status = on_progress(done.load(Relaxed));
                if status.is_err() {
                    end.store(0, Relaxed);
                }
            }
        }
        status?;
        // Every item before the first error has a result, so `collect` returns that error.
        results.into_iter().flatten().collect()
    })
}

/// A pool of `threads` threads (0 = one per core).
pub(crate) fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::input("--threads", e.to_string(), "give fewer threads"))
}

fn run_here<I, T>(
    items: &[I],
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
    job: impl Fn(&I, &mut Advance<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let (mut done, mut called) = (0, Instant::now());
    let mut results = Vec::with_capacity(items.len());
    for item in items {
        results.push(job(item, &mut |work| {
            done += work;
            if called.elapsed() < INTERVAL {
                return Ok(());
            }
            called = Instant::now();
            on_progress(done)
        })?);
    }
    on_progress(done)?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use nearfar_trace::ErrorKind;
    use proptest::prelude::*;

    use super::*;

    fn failure(item: usize) -> Error {
        Error::input(format!("item {item}"), "fails", "")
    }

    proptest! {
        #[test]
        fn results_and_errors_equal_a_loop(
            fails in prop::collection::vec(any::<bool>(), 0..20),
            threads in 1usize..6,
        ) {
            let items: Vec<(usize, bool)> = fails.into_iter().enumerate().collect();
            let job = |&(item, fails): &(usize, bool)| match fails {
                true => Err(failure(item)),
                false => Ok(item * 10),
            };
            let expected: Result<Vec<usize>> = items.iter().map(job).collect();
            let found = run(&items, threads, &mut |_| Ok(()), |item, advance| {
                for _ in 0..item.0 % 7 {
                    advance(1)?;
                    thread::yield_now();
                }
                job(item)
            });
            prop_assert_eq!(found.map_err(|e| e.to_string()), expected.map_err(|e| e.to_string()));
        }
    }

    /// Three concurrent jobs. The second fails and stops the third, which is endless. The first job
    /// continues; if it fails later, its error is returned.
    #[test]
    fn the_first_error_in_order_is_returned_and_stops_later_jobs() {
        for first_fails in [true, false] {
            let all_started = Barrier::new(3);
            let failed = run(&[0, 1, 2], 3, &mut |_| Ok(()), |&item, advance| {
                all_started.wait();
                match item {
                    0 => {
                        thread::sleep(Duration::from_millis(20));
                        advance(1)?;
                        if first_fails { Err(failure(0)) } else { Ok(()) }
                    }
                    1 => Err(failure(1)),
                    _ => loop {
                        advance(1)?;
                    },
                }
            });
            let expected = failure(usize::from(!first_fails)).to_string();
            assert_eq!(failed.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn an_error_of_on_progress_stops_endless_jobs() {
        for threads in [1, 3] {
            let mut seen = 0;
            let mut on_progress = |done| {
                seen = done;
                if done > 0 { Err(Error::cancelled()) } else { Ok(()) }
            };
            let endless = |_: &i32, advance: &mut Advance<'_>| -> Result<()> {
                loop {
                    advance(1)?;
                }
            };
            let error = run(&[1, 2, 3, 4], threads, &mut on_progress, endless).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(seen > 0);
        }
    }

    #[test]
    fn the_last_progress_is_the_work_of_all_jobs() {
        for threads in [1, 4] {
            let mut last = 0;
            let job = |&work: &u64, advance: &mut Advance<'_>| advance(work);
            run(
                &[5, 7, 11],
                threads,
                &mut |done| {
                    last = done;
                    Ok(())
                },
                job,
            )
            .unwrap();
            assert_eq!(last, 23);
        }
    }
}
