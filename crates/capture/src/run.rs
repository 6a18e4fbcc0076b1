//! Runs a program under QEMU and writes its trace.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use nearfar_trace::{Error, Info, PageSample, Result, Source, Writer, WriterOptions, file};
use serde::Serialize;

use crate::interrupt::{Action, Interrupter, POLL_INTERVAL, SignalWitness, send};
use crate::layout::{FETCH, FOLLOW};
use crate::output::StopReason;
use crate::probe::{no_room, not_started};
use crate::recording::{LostProgram, Recording};
use crate::request::Request;
use crate::sample::counts;
use crate::schedule::{Due, Schedule, Start, TimeSpan};
use crate::shared::Shared;
use crate::streams::{Remaining, Streams};
use crate::target::{Launch, Target, has_ended, kill_with_parent};
use crate::vm::{Guest, Ports, Reports, Vm, VmStart};

/// What to capture and where to.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program and its arguments; for a virtual machine, the command that it is to run, if any.
    pub command: Vec<OsString>,
    /// The trace folder to create.
    pub output: PathBuf,
    /// The plugin's shared library.
    pub plugin: PathBuf,
    /// Replace an existing trace.
    pub force: bool,
    pub request: Request,
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It exited with this status.
    Exit(i32),
    /// A signal ended it.
    Signal(i32),
    /// The user ended it.
    Interrupted,
}

/// Result of a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub end: End,
    /// The contents of `trace.json`.
    pub info: Info,
    /// What the trace lacks, such as programs that ran unrecorded: one line each.
    pub warnings: Vec<String>,
}

/// Run a program and write its trace. `poll` is called about ten times a second with the number of
/// records so far.
///
/// # Errors
/// Options that conflict, no such program, no QEMU, or the trace cannot be written. A failing program is
/// no error.
pub fn run(options: &Options, poll: &mut dyn FnMut(u64) -> Action) -> Result<Outcome> {
    let request = &options.request;
    let (mut start, stop_after, max_refs) = request.limits()?;
    let vm = request.virtual_machine()?;
    let sample = request.sample.map(|rate| (rate, request.sample_seed.0));
    let skip_refs = request.skip_refs.0;
    // Catch the start signal first: it may be sent as soon as this process can be seen.
    if let (None, Some(vm)) = (&start, &vm) {
        start = (vm.start != VmStart::Boot).then(|| Start::Guest(vm.start.clone()));
    }
    let schedule = Schedule::new(start.clone(), stop_after.as_ref().map(TimeSpan::time));
    let target = Target::new(&options.command, request.arch, vm.as_ref())?;
    if !options.plugin.is_file() {
        let place = options.plugin.display().to_string();
        return Err(Error::missing(
            place,
            "the QEMU plugin has not been built",
            "run `make plugin`",
        ));
    }
    let follow = if request.follow_forks { FOLLOW } else { 0 };
    let fetch = if request.fetch { FETCH } else { 0 };
    let shared = Shared::create(follow | fetch).map_err(|e| {
        let what = format!("cannot create the shared memory that QEMU writes to: {e}");
        Error::input("memory", what, "check the limits (`ulimit -v`, `ulimit -f`)")
    })?;
    if let Some((rate, seed)) = sample {
        rate.set(shared.header(), seed);
    }
    let (arch, mut detail) = (target.arch(), target.describe());
    let skipped = format!("recording began after {skip_refs} records");
    let described = start.as_ref().map(Start::describe);
    let started = format!("recording began {}", described.as_deref().unwrap_or_default());
    for (set, text) in [
        (!request.fetch, "without instruction fetches"),
        (!request.resident, "without pages resident before recording"),
        (request.follow_forks, "child processes recorded"),
        (described.is_some(), started.as_str()),
        (skip_refs > 0, skipped.as_str()),
    ] {
        if set {
            detail = format!("{detail}; {text}");
        }
    }
    // A trace of a virtual machine is complete without its boot.
    let late = start.as_ref().is_some_and(|start| !matches!(start, Start::Guest(_)));
    let late = late || skip_refs > 0;
    let missing = [(late, "its start"), (!request.resident, "memory resident before recording")];
    let missing = missing.into_iter().filter(|part| part.0).map(|part| part.1);
    let source = Source {
        kind: "capture".into(),
        detail,
        command: options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        arch: arch.into(),
        vm_memory_bytes: vm.as_ref().map_or(0, |vm| vm.memory),
        sample: sample.map(|(rate, seed)| rate.sample(seed)),
        unrecorded: Some(missing.map(str::to_owned).collect()),
        ..Source::default()
    };
    // Program and this thread keep at most one processor each busy, encoding at most one and a half:
    // leave a processor to the program, and make at most four encoder threads.
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = processors.saturating_sub(1).clamp(1, 4);
    let writer_options =
        WriterOptions { overwrite: options.force, in_place: true, threads, ..<_>::default() };
    let writer = Writer::create(&options.output, source, writer_options)?;

    // An absolute path, because the program may change its directory and then call `execve`. QEMU
    // reads a doubled comma as a comma.
    let file = std::path::absolute(&options.plugin).unwrap_or_else(|_| options.plugin.clone());
    let file = file.to_string_lossy().replace(',', ",,");
    let plugin = format!("{file},plugin={file},shm={}", shared.path());
    let Launch { mut command, emulator, connections } = match target.launch(plugin) {
        Ok(launch) => launch,
        Err(error) => {
            writer.discard();
            return Err(error);
        }
    };
    kill_with_parent(&mut command);
    // Distinguishes signals to the whole process group (Ctrl-C) from those to this process alone.
    let witness = SignalWitness::start();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            writer.discard();
            return Err(Error::io(&emulator, "cannot be started", &e));
        }
    };
    // Closes QEMU's ends of console and port, which QEMU has inherited.
    let ports = connections.map(|(ports, _)| ports);
    let guest = vm.as_ref().zip(ports.as_ref());
    let interrupter = Interrupter::new(child.id(), witness, poll);
    let limits = (skip_refs, max_refs, schedule);
    let recording = Recording::new(&shared, writer, request.fetch, limits, interrupter);
    let mut streams = Streams::new(&shared, recording, request.follow_forks, request.resident);
    let received = receive(&shared, &mut streams, &child, guest);
    let status = child.wait().map_err(|e| Error::io(&emulator, "cannot be waited for", &e))?;
    received?;
    if !streams.began() && !status.success() {
        let interrupted = streams.recording.out.interrupter.interrupted();
        streams.into_writer().discard();
        return Err(not_started(&emulator, status, interrupted));
    }
    let outcome = finish(&shared, streams, status, request, guest)?;
    if vm.is_none() {
        copy_perf_map(child.id(), &options.output);
    }
    Ok(outcome)
}

/// Copy the perf map of a just-in-time compiler into the trace. Errors are ignored.
fn copy_perf_map(pid: u32, trace: &Path) {
    let name = format!("perf-{pid}.map");
    let Ok(mut map) = file::open(&Path::new("/tmp").join(&name)) else { return };
    // SAFETY: cannot fail.
    let user = unsafe { libc::geteuid() };
    if !map.metadata().is_ok_and(|metadata| metadata.uid() == user) {
        return;
    }
    let part = trace.join(format!(".{name}.partial"));
    let copied = fs::File::create(&part).and_then(|mut to| std::io::copy(&mut map, &mut to));
    if copied.and_then(|_| fs::rename(&part, trace.join(name))).is_err() {
        let _ = fs::remove_file(&part);
    }
}

/// Receive what `child` and the processes that it forks write to `shared`, until all have ended.
/// The child must not be reaped meanwhile. In case of an error, end the child.
pub(crate) fn receive(
    shared: &Shared,
    streams: &mut Streams<'_>,
    child: &Child,
    guest: Option<(&Vm, &Ports)>,
) -> Result<()> {
    let ended = AtomicBool::new(false);
    let pid = child.id();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(pid);
            ended.store(true, Release);
            shared.ring_bell();
        });
        if let Some((vm, ports)) = guest {
            scope.spawn(|| ports.watch_console(shared, &vm.start));
            scope.spawn(|| ports.watch_port(shared, &vm.start));
        }
        let driven = drive(shared, streams, pid, &ended, guest);
        if driven.is_err() {
            streams.recording.out.stop(None);
            end_program(pid, &ended);
        }
        driven
    })
}

/// Turns of [`drive`], after the program's end, to read what it wrote, or to let other processes end.
const MAX_TURNS: u32 = 100;

/// Read the streams until every recorded process has ended.
fn drive(
    shared: &Shared,
    streams: &mut Streams<'_>,
    pid: u32,
    ended: &AtomicBool,
    guest: Option<(&Vm, &Ports)>,
) -> Result<()> {
    let reports = guest.map(|(_, ports)| &ports.reports);
    let mut guest = guest.map(|(vm, ports)| Guest::new(vm, ports, pid));
    let mut checked: HashMap<u32, Instant> = HashMap::new();
    let (mut idle_turns, mut late_turns, mut grace_turns) = (0, 0, 0);
    loop {
        let seen = shared.header().bell.load(Acquire);
        let program_ended = ended.load(Acquire);
        let mut is_gone = |process: u32, now: bool| {
            if process == pid {
                return program_ended;
            }
            // `has_ended` is slow: do not call it in every turn.
            let checked = checked.entry(process).or_insert_with(Instant::now);
            (now || checked.elapsed() >= POLL_INTERVAL) && {
                *checked = Instant::now();
                has_ended(process)
            }
        };
        let due = streams.recording.out.schedule.due(reports);
        let remaining = streams.drain(pid, &mut is_gone)?;
        if streams.began() {
            streams.recording.out.schedule.program_began();
        }
        match due {
            Due::None => {}
            Due::Begin => streams.recording.out.schedule.begin(),
            Due::End => streams.recording.out.stop(None),
        }
        match &mut guest {
            Some(guest) => guest.turn(shared, streams, program_ended)?,
            None => streams.record_resident()?,
        }
        let follows = streams.follows_children;
        let out = &mut streams.recording.out;
        let records = out.writer.records();
        // If the program wrote to the shared memory, do not trust it to name further processes.
        let forged = out.stop_reason == Some(StopReason::Forged);
        // A service manager sends SIGTERM to every process: give the others time to end.
        grace_turns += u32::from(program_ended && out.interrupter.terminated());
        let has_grace = out.interrupter.terminated() && grace_turns <= MAX_TURNS;
        let interrupted = out.interrupter.interrupted() && !has_grace;
        if program_ended && (interrupted || forged || remaining == Remaining::None) {
            // A child forked just before its parent's end may not be known yet.
            idle_turns += 1;
            if !follows || interrupted || forged || idle_turns > 1 {
                if remaining != Remaining::None {
                    out.interrupter.count_as_killed();
                }
                // Ctrl-C also reaches the program, which may have ended before this poll.
                out.interrupter.poll(records);
                return Ok(());
            }
        } else {
            idle_turns = 0;
        }
        // A few turns suffice to read what the program wrote before its end; more words are forged.
        late_turns += u32::from(program_ended && !follows);
        if late_turns > MAX_TURNS {
            out.stop(Some(StopReason::Forged));
        }
        out.interrupter.poll_if_due(records);
        if program_ended && follows {
            std::thread::sleep(Duration::from_millis(50));
        } else if shared.header().bell.load(Acquire) == seen {
            let soon = Duration::from_millis(1);
            shared
                .wait_bell(seen, if remaining == Remaining::Ending { soon } else { POLL_INTERVAL });
        }
    }
}

/// Wait until the child has ended, without reaping it.
pub(crate) fn wait_for(pid: u32) {
    loop {
        // SAFETY: the child is not reaped before this returns.
        let status = unsafe {
            let mut info = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        let interrupted = std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
        if status == 0 || !interrupted {
            return;
        }
    }
}

/// End the program, because its trace cannot be written: with SIGTERM, then with SIGKILL.
fn end_program(pid: u32, ended: &AtomicBool) {
    for (signal, milliseconds) in [(libc::SIGTERM, 1000), (libc::SIGKILL, 0)] {
        if ended.load(Acquire) {
            return;
        }
        send(pid, signal);
        let since = Instant::now();
        while !ended.load(Acquire) && since.elapsed() < Duration::from_millis(milliseconds) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn finish(
    shared: &Shared,
    mut streams: Streams<'_>,
    status: ExitStatus,
    request: &Request,
    guest: Option<(&Vm, &Ports)>,
) -> Result<Outcome> {
    let reports = guest.map(|(_, ports)| &ports.reports);
    let recording = &mut streams.recording;
    let interrupter = &recording.out.interrupter;
    let of_command = reports.and_then(Reports::status).filter(|status| *status >= 0);
    // A virtual machine is killed when recording stops.
    let killed = reports.is_some() && recording.out.stopped;
    let code = of_command.or(status.code()).or(killed.then_some(0));
    let end = match (interrupter.interrupted(), code, status.signal()) {
        // A service exits by itself on SIGTERM.
        (true, Some(code), _) if interrupter.terminated() => End::Exit(code),
        (true, ..) => End::Interrupted,
        (_, Some(code), _) => End::Exit(code),
        (_, _, signal) => End::Signal(signal.unwrap_or(0)),
    };
    let (mut warnings, mut unrecorded) = (Vec::new(), Vec::new());
    if recording.lost_forks > 0 {
        let count = recording.lost_forks;
        let noun = if count == 1 { "child process" } else { "child processes" };
        warnings.push(format!("{count} {noun} ran unrecorded; --follow-forks records them"));
        unrecorded.push(format!("{count} {noun}"));
    }
    if let Some(name) = recording.unseen.take() {
        warnings.push(format!(
            "some stores by `{name}` instructions are missing: this QEMU does not report them"
        ));
    }
    if streams.recording.out.skip > 0 {
        warnings
            .push("the program ended before --skip-refs was reached: nothing is recorded".into());
    }
    let no_data = (!streams.began()).then(|| "QEMU sent no data of the program".to_owned());
    let start = streams.recording.out.schedule.waits_for();
    let not_begun = start.map(|start| {
        let start = start.describe();
        format!("nothing is recorded: the program ended before recording began ({start})")
    });
    let lacks = guest.and_then(|(vm, ports)| {
        let out = &streams.recording.out;
        ports.reports.lacks(vm, out.has_begun(), out.stopped)
    });
    let reason = incomplete(shared, &streams.recording, end);
    let reason = lacks.filter(|_| end != End::Interrupted).or(reason).or(no_data).or(not_begun);
    let stopped = streams.stopped() && !reports.is_some_and(Reports::ends);
    let build_ids = build_ids(&streams.recording.files_mapped);
    let mut clock = std::mem::take(&mut streams.recording.out.clock);
    clock.end();
    let (references, bursts) =
        (streams.recording.out.references, std::mem::take(&mut streams.recording.out.bursts));
    let mut writer = streams.into_writer();
    if let Some(rate) = request.sample {
        let (rate, seed) = (rate.at_end(shared.header()), request.sample_seed.0);
        let references = counts(references, request.fetch);
        // With all pages, the trace is no sample.
        let sample = (rate < 1.0).then_some(PageSample { rate, seed, references, bursts });
        writer.change_source(|source| source.sample = sample);
    }
    writer.build_ids(build_ids);
    writer.clock(clock);
    let mut details = warnings.clone();
    if stopped {
        details.push(format!("recording stopped after {} records", writer.records()));
        unrecorded.push("its end".into());
    }
    let skipped = shared.header().device_references.load(Relaxed);
    if skipped > 0 {
        details.push(format!("{skipped} references to devices and firmware are not recorded"));
    }
    if let End::Exit(status) = end
        && status != 0
    {
        unrecorded.push(format!("a successful run (exit status {status})"));
    }
    writer.change_source(|source| {
        details.iter().for_each(|detail| source.detail = format!("{}; {detail}", source.detail));
        source.unrecorded.get_or_insert_default().extend(unrecorded);
    });
    Ok(Outcome { end, info: writer.finish(reason.as_deref())?, warnings })
}

/// Build ids of the mapped files, except files that were replaced meanwhile.
fn build_ids(files: &BTreeMap<Rc<str>, (u64, u64)>) -> BTreeMap<String, String> {
    let unchanged = |(path, file): &(&Rc<str>, &(u64, u64))| {
        fs::metadata(&***path).is_ok_and(|now| (now.dev(), now.ino()) == **file)
    };
    let known = files.iter().filter(unchanged).filter_map(|(path, _)| {
        let id = nearfar_symbols::build_id(Path::new(&**path)).ok()??;
        Some((path.to_string(), id))
    });
    known.collect()
}

/// Why the trace is incomplete, if it is.
fn incomplete(shared: &Shared, recording: &Recording<'_>, end: End) -> Option<String> {
    let out = &recording.out;
    let header = shared.header();
    let threads = header.lost_streams.load(Relaxed);
    let blocks = header.lost_blocks.load(Relaxed);
    if end == End::Interrupted {
        return Some("interrupted".to_owned());
    }
    let what = match out.stop_reason {
        Some(StopReason::Forged) => {
            Some("the program has written to the memory that it shares with nearfar")
        }
        Some(StopReason::TooManyEvents) => {
            Some("there were more events of address spaces than a trace can hold")
        }
        None => None,
    };
    if let Some(what) = what {
        let records = out.writer.records();
        return Some(format!("{what}: nothing is recorded after {records} records"));
    }
    if let Some(LostProgram { name, why, at }) = &recording.lost_program {
        let more = match recording.lost_programs - 1 {
            0 => String::new(),
            more => format!("; so did {more} more programs"),
        };
        return Some(format!("{name} ran unrecorded after {at} records: {why}{more}"));
    }
    let reservation = header.reservation.load(Relaxed);
    if reservation > 0 {
        return Some(no_room(reservation));
    }
    match end {
        _ if out.stopped => None,
        End::Signal(signal) => Some(format!("program killed by signal {signal}")),
        _ if threads > 0 => {
            Some(format!("{threads} threads ran unrecorded, beyond the maximum recorded at once"))
        }
        _ if blocks > 0 => {
            Some(format!("{blocks} blocks of code are not recorded: there are too many in all"))
        }
        _ => None,
    }
}
