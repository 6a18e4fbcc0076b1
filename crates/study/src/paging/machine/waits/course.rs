//! The course of a run: memory over time, including times in which no thread runs.

use super::super::SMALL;
use super::super::touches::Idle;
use super::PageSize;

/// Steps of an idle time; khugepaged runs after each.
const IDLE_STEPS: u32 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Nanoseconds since the program began.
    pub ns: f64,
    /// Mapped private memory, bytes.
    pub mapped_bytes: u64,
    /// Mapped private memory in huge pages, bytes.
    pub huge_bytes: u64,
}

/// The time of a run: the end of the last idle time, plus the work of threads since then.
#[derive(Default)]
pub struct Clock {
    /// End of the last idle time.
    began_ns: f64,
    /// The time of each thread at `began_ns`.
    threads_ns: Vec<f64>,
    /// Average number of threads that run in parallel; `None`: all.
    parallel: Option<f64>,
}

impl Clock {
    /// Whether the trace says how many threads run at a time.
    pub(super) fn is_measured(&self) -> bool {
        self.parallel.is_some()
    }
}

impl PageSize<'_> {
    fn threads_ns(&self) -> impl Iterator<Item = f64> + '_ {
        self.threads.iter().map(|thread| thread.ns(self.processor))
    }

    fn now(&self) -> f64 {
        let Clock { began_ns, threads_ns: before, parallel } = &self.clock;
        let before = before.iter().copied().chain(std::iter::repeat(0.0));
        let ran = self.threads_ns().zip(before).map(|(now, before)| now - before);
        began_ns
            + match parallel {
                Some(parallel) => ran.sum::<f64>() / parallel,
                None => ran.fold(0.0, f64::max),
            }
    }

    pub(super) fn idle(&mut self, Idle { ns, parallel }: Idle) {
        self.moment();
        for _ in 0..IDLE_STEPS {
            self.clock.began_ns += ns as f64 / f64::from(IDLE_STEPS);
            self.moment();
        }
        let (began_ns, threads_ns) = (self.now(), self.threads_ns().collect());
        self.clock = Clock { began_ns, threads_ns, parallel };
    }

    /// Run khugepaged until now, and record what is mapped.
    pub(super) fn moment(&mut self) {
        let Some(mut course) = self.course.take() else { return };
        let before = course.last().map_or(0.0, |moment| moment.ns);
        let ns = self.now().max(before);
        self.pages.tick(ns);
        self.shoot_down();
        if let Some(areas) = &mut self.areas {
            areas.advance(ns - before, self.pages.mapped_by_area());
        }
        let [mapped_bytes, huge_bytes] = self.pages.mapped().map(|pages| pages << SMALL);
        course.push(Moment { ns, mapped_bytes, huge_bytes });
        self.course = Some(course);
    }

    pub fn course(&mut self) -> Vec<Moment> {
        self.course.take().unwrap_or_default()
    }
}
