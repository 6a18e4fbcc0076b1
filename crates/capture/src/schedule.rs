//! When recording begins and ends, other than with the program: options, a clock and a signal.
//!
//! What the program writes before the beginning is received and left out, as `--skip-refs` does: events
//! of address spaces are noted all the same, so that every record finds its region.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nearfar_schema::{Given, Value};
use serde_json::Value as Json;

nearfar_schema::choices! {
    /// A signal to nearfar, not to the program.
    pub enum Signal: "signal" {
        /// `kill -USR1`
        Usr1 = "SIGUSR1",
        /// `kill -USR2`
        Usr2 = "SIGUSR2",
    }
}

impl Signal {
    fn number(self) -> i32 {
        match self {
            Signal::Usr1 => libc::SIGUSR1,
            Signal::Usr2 => libc::SIGUSR2,
        }
    }
}

/// A time on the clock, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    text: String,
    time: Duration,
}

/// What seconds, and parts and multiples of them, are called.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)];

impl Value for Wait {
    fn metavar() -> &'static str {
        "TIME"
    }
    fn python() -> String {
        "str".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let text = given.to_string().trim().to_owned();
        let time = text.find(|c: char| c.is_ascii_alphabetic()).and_then(|at| {
            let (number, unit) = text.split_at(at);
            let scale = UNITS.iter().find(|known| known.0 == unit)?.1;
            let number: f64 = number.trim().parse().ok()?;
            Duration::try_from_secs_f64(number * scale).ok()
        });
        let wrong = || format!("'{}' is not a time; write for example 30s or 2min", given.shown());
        time.map(|time| Self { text, time }).ok_or_else(wrong)
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}

/// Where recording ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// So long after its beginning.
    Time(Wait),
    /// After so many records.
    Records(u64),
}

impl Value for Stop {
    fn metavar() -> &'static str {
        "TIME|RECORDS"
    }
    fn python() -> String {
        "str | int".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let text = given.to_string();
        if let Ok(records) = text.trim().parse::<u64>() {
            return match records {
                0 => Err("0 records are none; give 1 or more, or a time such as 10s".into()),
                _ => Ok(Self::Records(records)),
            };
        }
        Wait::read(given).map(Self::Time).map_err(|_| {
            let given = given.shown();
            format!("'{given}' is no time and no count; write for example 10s or 1000000")
        })
    }
    fn plain(&self) -> Json {
        match self {
            Self::Time(wait) => wait.plain(),
            Self::Records(records) => (*records).into(),
        }
    }
}

/// What recording waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// So long after the program was started.
    After(Wait),
    /// A signal.
    On(Signal),
}

impl Start {
    /// What it is, after "recording begins".
    pub fn words(&self) -> String {
        match self {
            Start::After(wait) => format!("{} after the program", wait.text),
            Start::On(signal) => format!("on {}", signal.name()),
        }
    }
}

/// The clock and the signal of one capture.
pub(crate) struct Schedule {
    start: Option<Start>,
    signal: Option<Caught>,
    stop: Option<Duration>,
    /// Since when: the beginning of the program, then that of the recording.
    since: Option<Instant>,
}

impl Schedule {
    /// From now on a signal that is waited for is caught.
    pub fn new(start: Option<Start>, stop: Option<Duration>) -> Self {
        let signal = match start {
            Some(Start::On(signal)) => Some(Caught::new(signal.number())),
            _ => None,
        };
        Self { start, signal, stop, since: None }
    }

    /// Recording begins with the program and ends with it.
    pub fn whole() -> Self {
        Self::new(None, None)
    }

    /// The program has begun.
    pub fn program_began(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// What recording still waits for.
    pub fn waits(&self) -> Option<&Start> {
        self.start.as_ref()
    }

    /// Look at clock and signal. What the program has written by now comes before what is due.
    pub fn due(&self) -> Due {
        let reached = |time| self.since.is_some_and(|since| since.elapsed() >= time);
        let (due, is_due) = match &self.start {
            Some(Start::After(wait)) => (Due::Beginning, reached(wait.time)),
            Some(Start::On(_)) => {
                (Due::Beginning, self.signal.as_ref().is_some_and(Caught::has_come))
            }
            None => (Due::End, self.stop.is_some_and(reached)),
        };
        if is_due { due } else { Due::Nothing }
    }

    /// Recording begins.
    pub fn begin(&mut self) {
        self.start = None;
        self.since = Some(Instant::now());
    }
}

/// What is to be done once everything written so far is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing.
    Nothing,
    /// Recording begins.
    Beginning,
    /// Recording ends.
    End,
}

impl Wait {
    /// How long.
    pub fn time(&self) -> Duration {
        self.time
    }
}

static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn came(_: libc::c_int) {
    CAME.store(true, Relaxed);
}

/// A signal that does nothing but be noticed; what was there before is put back.
struct Caught {
    number: i32,
    before: libc::sigaction,
}

impl Caught {
    fn new(number: i32) -> Self {
        CAME.store(false, Relaxed);
        let handler: extern "C" fn(libc::c_int) = came;
        // SAFETY: the handler stores to an atomic alone; both structures are whole.
        let before = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            let mut before = std::mem::zeroed();
            libc::sigaction(number, &action, &mut before);
            before
        };
        Self { number, before }
    }

    fn has_come(&self) -> bool {
        CAME.load(Relaxed)
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        // SAFETY: what was there before.
        unsafe { libc::sigaction(self.number, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_counts_are_read() {
        for (text, milliseconds) in
            [("30s", 30_000), ("0.5 s", 500), ("250ms", 250), ("2min", 120_000)]
        {
            assert_eq!(Wait::read(&text.into()).unwrap().time.as_millis(), milliseconds, "{text}");
        }
        for text in ["", "30", "s", "-1s", "1us", "inf s", "1e400s"] {
            assert!(Wait::read(&text.into()).is_err(), "{text}");
        }
        assert_eq!(Stop::read(&"1000".into()), Ok(Stop::Records(1000)));
        assert!(matches!(Stop::read(&"10s".into()), Ok(Stop::Time(_))));
        for text in ["0", "-1", "10x", ""] {
            assert!(Stop::read(&text.into()).is_err(), "{text}");
        }
    }

    #[test]
    fn recording_begins_at_its_time_or_signal_and_ends_after_its_own() {
        let wait = |text: &str| Wait::read(&text.into()).unwrap();
        let mut schedule = Schedule::new(Some(Start::After(wait("1h"))), Some(Duration::ZERO));
        schedule.program_began();
        assert_eq!(schedule.due(), Due::Nothing);
        let mut schedule = Schedule::new(Some(Start::After(wait("0s"))), Some(Duration::ZERO));
        assert_eq!(schedule.due(), Due::Nothing);
        schedule.program_began();
        assert!(schedule.due() == Due::Beginning && schedule.waits().is_some());
        schedule.begin();
        assert!(schedule.due() == Due::End && schedule.waits().is_none());
        let mut schedule = Schedule::new(Some(Start::On(Signal::Usr2)), None);
        assert_eq!(schedule.due(), Due::Nothing);
        // SAFETY: a signal to this thread, which is caught.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(schedule.due(), Due::Beginning);
        schedule.begin();
        assert_eq!((schedule.due(), Schedule::whole().due()), (Due::Nothing, Due::Nothing));
    }
}
