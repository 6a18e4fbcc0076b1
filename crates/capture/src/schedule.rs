//! Delayed start and early stop of recording: options, a timer and a signal.
//!
//! Records before the beginning are received and dropped, as by `--skip-refs`. Events of address
//! spaces are recorded from the start, so that every record has its region.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nearfar_schema::{Given, Value};
use serde_json::Value as Json;

use crate::vm::{Reports, VmStart};

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

/// A duration, as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    text: String,
    time: Duration,
}

/// Units and their seconds.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)];

impl Value for TimeSpan {
    const METAVAR: &'static str = "TIME";
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
    /// This long after it began.
    Time(TimeSpan),
    /// After this many records.
    Records(u64),
}

impl Value for Stop {
    const METAVAR: &'static str = "TIME|RECORDS";
    fn python() -> String {
        "str | int".into()
    }
    fn read(given: &Given) -> Result<Self, String> {
        let text = given.to_string();
        if let Ok(records) = text.trim().parse::<u64>() {
            return match records {
                0 => Err("must be 1 or more, or a time such as 10s".into()),
                _ => Ok(Self::Records(records)),
            };
        }
        TimeSpan::read(given).map(Self::Time).map_err(|_| {
            let given = given.shown();
            format!("'{given}' is neither a time nor a count; write for example 10s or 1000000")
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
    /// This long after the program was started.
    After(TimeSpan),
    On(Signal),
    /// The start condition of a virtual machine.
    Guest(VmStart),
}

impl Start {
    /// Completes the phrase "recording began".
    pub fn describe(&self) -> String {
        match self {
            Start::After(wait) => format!("{} after the program's start", wait.text),
            Start::On(signal) => format!("on {}", signal.name()),
            Start::Guest(VmStart::Console(text)) => format!("when the console showed '{text}'"),
            Start::Guest(_) => "when the guest wrote `start`".into(),
        }
    }
}

/// Timer and signal state of one capture.
pub(crate) struct Schedule {
    start: Option<Start>,
    /// Catches the signal of `start`.
    _signal: Option<SignalHandler>,
    stop: Option<Duration>,
    /// When the program began, or the recording once it has begun.
    since: Option<Instant>,
}

impl Schedule {
    /// Create a schedule. Catches its signal from now on.
    pub fn new(start: Option<Start>, stop: Option<Duration>) -> Self {
        let handler = match start {
            Some(Start::On(signal)) => Some(SignalHandler::new(signal.number())),
            _ => None,
        };
        Self { start, _signal: handler, stop, since: None }
    }

    /// Record the whole program.
    pub fn unlimited() -> Self {
        Self::new(None, None)
    }

    pub fn program_began(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// What recording still waits for.
    pub fn waits_for(&self) -> Option<&Start> {
        self.start.as_ref()
    }

    /// The change that is due, by the clock and signals (a virtual machine's included). Records
    /// and events that are already written precede the change: read them first.
    pub fn due(&self, guest: Option<&Reports>) -> Due {
        let reached = |time| self.since.is_some_and(|since| since.elapsed() >= time);
        if guest.is_some_and(Reports::ends) {
            return Due::End;
        }
        let (due, is_due) = match &self.start {
            Some(Start::After(wait)) => (Due::Begin, reached(wait.time)),
            Some(Start::On(_)) => (Due::Begin, RECEIVED.load(Relaxed)),
            Some(Start::Guest(_)) => (Due::Begin, guest.is_some_and(Reports::begins)),
            None => (Due::End, self.stop.is_some_and(reached)),
        };
        if is_due { due } else { Due::None }
    }

    pub fn begin(&mut self) {
        self.start = None;
        self.since = Some(Instant::now());
    }
}

/// What to do once everything written so far is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    None,
    Begin,
    End,
}

impl TimeSpan {
    pub fn time(&self) -> Duration {
        self.time
    }
}

/// The signal was received.
static RECEIVED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    RECEIVED.store(true, Relaxed);
}

/// A handler that notes the arrival of a signal. The previous handler is restored on drop.
struct SignalHandler {
    number: i32,
    previous: libc::sigaction,
}

impl SignalHandler {
    fn new(number: i32) -> Self {
        RECEIVED.store(false, Relaxed);
        let handler: extern "C" fn(libc::c_int) = on_signal;
        // SAFETY: the handler only stores to an atomic; both structures are valid.
        let previous = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            let mut previous = std::mem::zeroed();
            libc::sigaction(number, &action, &mut previous);
            previous
        };
        Self { number, previous }
    }
}

impl Drop for SignalHandler {
    fn drop(&mut self) {
        // SAFETY: restores the previous handler.
        unsafe { libc::sigaction(self.number, &self.previous, std::ptr::null_mut()) };
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
            assert_eq!(
                TimeSpan::read(&text.into()).unwrap().time.as_millis(),
                milliseconds,
                "{text}"
            );
        }
        for text in ["", "30", "s", "-1s", "1us", "inf s", "1e400s"] {
            assert!(TimeSpan::read(&text.into()).is_err(), "{text}");
        }
        assert_eq!(Stop::read(&"1000".into()), Ok(Stop::Records(1000)));
        assert!(matches!(Stop::read(&"10s".into()), Ok(Stop::Time(_))));
        for text in ["0", "-1", "10x", ""] {
            assert!(Stop::read(&text.into()).is_err(), "{text}");
        }
    }

    #[test]
    fn recording_starts_and_stops_as_given() {
        let wait = |text: &str| TimeSpan::read(&text.into()).unwrap();
        let mut schedule = Schedule::new(Some(Start::After(wait("1h"))), Some(Duration::ZERO));
        schedule.program_began();
        assert_eq!(schedule.due(None), Due::None);
        let mut schedule = Schedule::new(Some(Start::After(wait("0s"))), Some(Duration::ZERO));
        assert_eq!(schedule.due(None), Due::None);
        schedule.program_began();
        assert!(schedule.due(None) == Due::Begin && schedule.waits_for().is_some());
        schedule.begin();
        assert!(schedule.due(None) == Due::End && schedule.waits_for().is_none());
        let mut schedule = Schedule::new(Some(Start::On(Signal::Usr2)), None);
        assert_eq!(schedule.due(None), Due::None);
        // SAFETY: a signal to this thread, which is caught.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(schedule.due(None), Due::Begin);
        schedule.begin();
        assert_eq!((schedule.due(None), Schedule::unlimited().due(None)), (Due::None, Due::None));
    }
}
