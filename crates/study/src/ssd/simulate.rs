//! Every cell of a study, some at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use nearfar_hardware::Machine;
use nearfar_hardware::umd::Umd;
use nearfar_kernel::epf;
use nearfar_trace::{Columns, Error, Reader, Result};

use super::cell::{Cell, Detail};
use super::host::Run;
use super::options::{Options, Setting};

/// What a cell answers that was stopped as another failed.
const STOPPED: &str = "run: stopped";

type Outcome = Result<(Cell, Detail)>;

/// Simulate every cell of `options`; answers them in its order. Each goes over the trace on its
/// own; the number of threads changes no result.
///
/// `pulse` is called now and then with the references done so far in all cells; its error ends the
/// run.
///
/// # Errors
/// Input errors: an empty or damaged trace, one that does not fit the device, a size of DRAM that
/// the device cannot have.
pub fn simulate(
    reader: &Reader,
    machine: &Machine,
    options: &Options,
    pulse: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<(Cell, Detail)>> {
    if reader.info().records == 0 {
        return Err(Error::input(
            reader.path().display().to_string(),
            "holds no records",
            "capture again",
        ));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = if options.threads == 0 { cores } else { options.threads };
    let workers = workers.min(options.settings.len());
    let (next, done, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<Option<Outcome>>> =
        Mutex::new(options.settings.iter().map(|_| None).collect());
    let mut stopped = Ok(());
    std::thread::scope(|scope| {
        let (alive, ended) = channel::<()>();
        for _ in 0..workers {
            let alive = alive.clone();
            let (next, done, stop, results) = (&next, &done, &stop, &results);
            scope.spawn(move || {
                let _alive = alive;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(setting) = options.settings.get(number) else { break };
                    let mut before = 0;
                    let result = cell(reader, machine, options, setting, &mut |read| {
                        done.fetch_add(read - before, Ordering::Relaxed);
                        before = read;
                        match stop.load(Ordering::Relaxed) {
                            true => Err(Error::input("run", "stopped", "")),
                            false => Ok(()),
                        }
                    });
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if let Ok(mut results) = results.lock() {
                        results[number] = Some(result);
                    }
                }
            });
        }
        drop(alive);
        // Ends when the last worker drops its sender.
        while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) =
            ended.recv_timeout(Duration::from_millis(100))
        {
            if stopped.is_ok() {
                stopped = pulse(done.load(Ordering::Relaxed));
                stop.fetch_or(stopped.is_err(), Ordering::Relaxed);
            }
        }
    });
    stopped?;
    let results = results.into_inner().unwrap_or_default();
    // The first cell that failed of itself, not one that was stopped because of it.
    let (cells, errors): (Vec<_>, Vec<_>) = results.into_iter().flatten().partition(Result::is_ok);
    let mut errors: Vec<Error> = errors.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.to_string() == STOPPED);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => cells.into_iter().collect(),
    }
}

/// One cell: the device made and preconditioned, the whole trace replayed on this thread.
///
/// # Errors
/// As [`simulate`], and what `pulse` answers.
pub fn cell(
    reader: &Reader,
    machine: &Machine,
    options: &Options,
    setting: &Setting,
    pulse: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(Cell, Detail)> {
    let mut umd = Umd::new(machine, setting.dram_bytes)?;
    let conditioned = umd.precondition(&options.precondition);
    let policy = epf::parse(&setting.epf).map_err(|what| Error::input("--epf", what, ""))?;
    let run = Run::new(&options.host, policy, options.replay, umd, conditioned);
    let mut batches = reader.batches(Columns::ALL);
    let (cell, detail) = run.run(&mut |batch| batches.next_into(batch), pulse)?;
    Ok((Cell { epf: setting.epf.clone(), dram_bytes: setting.dram_bytes, ..cell }, detail))
}
