//! Views: filtered copies of a trace, which studies read like any other trace. [`cache`] selects the
//! references that miss the caches of a core.

use std::collections::HashMap;
use std::path::Path;

use nearfar_hardware::cache::{Filter as CacheFilter, Geometry};
use nearfar_hardware::machine::{Machine, MachineName};
use nearfar_schema::Value;
use nearfar_trace::{Batch, Columns, Info, Reader, Result, Source, Writer, WriterOptions};

/// The default machine of page studies and views.
pub(crate) const MACHINE: &str = "nvme";

nearfar_schema::choices! {
    /// Which references of a trace a study sees.
    pub enum Filter: "filter" in "filter" {
        /// every reference of the program, before any CPU cache
        None = "none",
        /// references that miss the machine's CPU caches
        Cache = "cache",
        /// references that miss the machine's CPU caches, and lines that the caches write back
        CacheWriteBacks = "cache-write-backs",
    }
}

nearfar_schema::options! {
    /// The options of every command that reads a view of a trace.
    pub struct View {
        /// References to read: all (`none`), or those that miss the machine's caches.
        filter: Filter = "none",
        /// Machine whose caches --filter simulates: name or file.
        machine: MachineName = MACHINE,
    }
}

/// Write the view `filter` of the trace `from` to `to`, with the caches of `machine`. Returns a
/// description of its references. [`Filter::None`] writes nothing.
///
/// # Errors
/// If the machine has no caches or the trace is damaged.
pub fn view(
    filter: Filter,
    from: &Path,
    to: &Path,
    machine: &Machine,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<String> {
    let (write_backs, and_lines) = match filter {
        Filter::None => return Ok(Filter::choices().swap_remove(0).what),
        Filter::Cache => (false, ""),
        Filter::CacheWriteBacks => (true, ", and the lines they write back"),
    };
    let caches = machine.caches()?;
    cache(&Reader::open(from)?, to, &caches, write_backs, on_progress)?;
    let name = &machine.name;
    Ok(format!("references that miss the CPU caches of {name} ({caches}){and_lines}"))
}

/// Write the references of the trace `from` that miss the caches ([`nearfar_hardware::cache`]) to
/// `to`; with `write_backs`, also the lines that the caches write back. Instructions, processes and
/// events are those of `from`. Returns the contents of `trace.json`.
///
/// `on_progress` is called periodically with the records read so far; its error ends the run.
///
/// # Errors
/// If `from` cannot be read or `to` cannot be written; errors of `on_progress`.
pub fn cache(
    from: &Reader,
    to: &Path,
    geometry: &Geometry,
    write_backs: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Info> {
    let info = from.info();
    let detail = format!("{}; misses of {geometry}", info.source.detail);
    let source = Source { detail, ..info.source.clone() };
    let options = WriterOptions { lifetimes: info.has_lifetimes(), ..WriterOptions::default() };
    let mut writer = Writer::create(to, source, options)?;
    for thread in &info.threads {
        writer.thread_process(thread.index, thread.process);
    }
    let mut events = from.regions()?.into_iter().peekable();
    let mut filter = CacheFilter::new(geometry, write_backs);
    let mut batches = from.batches(Columns::ALL);
    let (mut batch, mut misses) = (Batch::default(), Batch::default());
    let mut written: HashMap<u32, u64> = HashMap::new();
    let mut done = 0u64;
    while batches.next_into(&mut batch)? {
        let mut start = 0;
        while start < batch.len() {
            // `at` is the number of records before the event. It is lower in `to`.
            while events.peek().is_some_and(|event| event.at <= done) {
                if let Some(mut event) = events.next() {
                    event.at = writer.records();
                    writer.region(event)?;
                }
            }
            let until = events.peek().map_or(u64::MAX, |event| event.at) - done;
            let end = start + usize::try_from(until).unwrap_or(usize::MAX).min(batch.len() - start);
            filter.records(&batch, start..end, &mut misses);
            for (&thread, &instr) in misses.thread.iter().zip(&misses.instr) {
                *written.entry(thread).or_default() += u64::from(instr);
            }
            writer.push_batch(&misses)?;
            misses.clear();
            done += (end - start) as u64;
            start = end;
        }
        on_progress(done)?;
    }
    for mut event in events {
        event.at = writer.records();
        writer.region(event)?;
    }
    for thread in &info.threads {
        let written = written.get(&thread.index).copied().unwrap_or(0);
        writer.add_instructions(thread.index, thread.instructions.saturating_sub(written));
    }
    let unfinished = info.incomplete_reason.as_deref().unwrap_or("the trace was not finished");
    writer.finish((!info.complete).then_some(unfinished))
}

#[cfg(test)]
mod tests {
    use nearfar_hardware::cache::Level;
    use nearfar_trace::{Kind, Record, RegionEvent};

    use super::*;

    fn map(at: u64, addr: u64) -> RegionEvent {
        let (prot, name) = (String::from("rw-p"), format!("at {addr}"));
        RegionEvent { at, addr, length: 4096, prot, name, ..RegionEvent::default() }
    }

    #[test]
    fn a_view_keeps_instructions_processes_and_the_order_of_events() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, view) = (folder.path().join("a.trace"), folder.path().join("b.trace"));
        let source = Source { kind: "test".into(), ..Source::default() };
        let mut writer = Writer::create(&whole, source, WriterOptions::default()).unwrap();
        writer.thread_process(0, 1);
        writer.thread_process(1, 2);
        // Cycle through 50 lines, ten references to each: the caches hold at most 16, so one of ten
        // references misses. An event precedes every 40th reference.
        for i in 0..40_000u64 {
            if i.is_multiple_of(40) {
                writer.region(map(i, i)).unwrap();
            }
            let addr = i / 10 % 50 * 64;
            let (thread, kind) = ((i / 1000 % 2) as u32, Kind::ALL[(i % 3) as usize]);
            writer.push(Record { addr, kind, size: 4, thread, instr: 3 }).unwrap();
        }
        writer.add_instructions(1, 7);
        let before = writer.finish(Some("interrupted")).unwrap();
        let level = Level { sets: 2, ways: 4 };
        let geometry =
            Geometry { instruction: None, data: level, second: Some(level), line_bytes: 64 };
        let reader = Reader::open(&whole).unwrap();
        let write_backs = false;
        let after = cache(&reader, &view, &geometry, write_backs, &mut |_| Ok(())).unwrap();
        assert_eq!(after.records, 4000);
        assert_eq!(after.instructions, before.instructions);
        for (old, new) in before.threads.iter().zip(&after.threads) {
            let of = |t: &nearfar_trace::ThreadInfo| (t.index, t.process, t.instructions);
            assert_eq!(of(old), of(new));
        }
        assert_eq!(after.incomplete_reason.as_deref(), Some("interrupted"));
        let events = Reader::open(&view).unwrap().regions().unwrap();
        assert_eq!(events.len(), 1000);
        for (event, old) in events.iter().zip(0u64..) {
            assert_eq!(event.at, old * 4, "{}", event.name);
        }
    }
}
