//! Tests of the plugin's writer and this crate's receiver in two processes, without QEMU.
//!
//! The writing process is this test program again, with [`writer`] as its only test. The tests compile
//! the plugin's own files (GPL-2.0-or-later), which are in no distributed binary of this crate.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::Duration;

use nearfar_trace::{
    Batch, Columns, Info, Kind, Reader, Record, RegionEvent, RegionKind, Source, Writer,
    WriterOptions,
};

use crate::exercise::Input;
use crate::interrupt::{Action, Interrupter};
use crate::layout::{
    self, BLOCK, CHUNK_WORDS, CHUNKS, FOLLOW, INDEX_SHIFT, RING_WORDS, SIZE_SHIFT, STORE,
    block_word, origin, what,
};
use crate::liveness::{self, not_run};
use crate::output::StopReason;
use crate::recording::Recording;
use crate::run::{receive, wait_for};
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::streams::Streams;
use crate::target::kill_with_parent;

mod event_order;
mod hostile;
mod plugin_side;
#[path = "../../../capture/qemu-plugin/src/recorder.rs"]
mod recorder;
mod sample;
#[path = "../../../capture/qemu-plugin/src/stream.rs"]
mod stream;

use recorder::Recorder;
use stream::Stream;

/// Environment of the writer: path of the shared memory, and name of the script to run.
const MEMORY: &str = "NEARFAR_LOOPBACK_PATH";
const SCRIPT: &str = "NEARFAR_LOOPBACK_SCRIPT";

/// Number of words (`layout.rs`) of a stream that wraps its ring more than twice and ends within a chunk.
const LONG: u64 = RING_WORDS as u64 * 5 / 2 + 77;
const SHORT: u64 = 1000;
const THREADS: u64 = 3;
/// Events, with names of up to 3 KB: together more than two rings.
const EVENTS: u64 = 1500;

/// Word `number` of a thread, and its record.
fn word(thread: u64, number: u64) -> (u64, (u64, Kind, u16)) {
    let addr = thread << 40 | number * 8;
    match number % 4 {
        0 => (block_word(addr, 16, 3).unwrap(), (addr, Kind::Fetch, 16)),
        3 => (2 << INDEX_SHIFT | 2 << SIZE_SHIFT | STORE | addr, (addr, Kind::Store, 4)),
        n => ((n - 1) << INDEX_SHIFT | 3 << SIZE_SHIFT | addr, (addr, Kind::Load, 8)),
    }
}

/// The name of event `number`; lengths differ.
fn name(number: u64) -> String {
    "x".repeat((number * 997 % 3000) as usize) + &number.to_string()
}

// The writing process.

fn open(vcpu: u32) -> Stream {
    recorder::set_current_vcpu(vcpu);
    reopen(vcpu)
}

/// Open a stream for `vcpu`, which must not have an open one.
fn reopen(vcpu: u32) -> Stream {
    Recorder::installed().unwrap().open(vcpu);
    // SAFETY: installed and opened; threads use different numbers.
    unsafe { Stream::of(vcpu) }
}

/// In a forked child, before anything else: its stream.
fn stream_of_child() -> Stream {
    Recorder::installed().unwrap().after_fork_in_child();
    // SAFETY: opened again, and the parent's handle is not used in the child.
    unsafe { Stream::of(recorder::current_vcpu()) }
}

fn write(stream: &mut Stream, thread: u64, words: u64) {
    (0..words).for_each(|number| stream.put(word(thread, number).0));
}

#[test]
#[ignore = "the writing process of the other tests"]
fn writer() {
    let (Ok(path), Ok(script)) = (std::env::var(MEMORY), std::env::var(SCRIPT)) else { return };
    let memory = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let recorder = Recorder::install(memory.into()).unwrap();
    recorder.watch();
    recorder.started();
    match script.as_str() {
        "threads" => std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut stream = open(thread as u32);
                    write(&mut stream, thread, LONG);
                    assert_eq!(stream.position(), LONG);
                    stream.close();
                });
            }
        }),
        "long" => {
            let mut stream = open(0);
            write(&mut stream, 0, LONG);
            stream.close();
        }
        "idle" => loop {
            std::thread::park();
        },
        "events" => {
            let mut stream = open(0);
            for number in 0..EVENTS {
                let fixed = [what::MAP, number << 12, 4096, 0, 3];
                stream.event(&fixed, name(number).as_bytes());
                write(&mut stream, 0, number % 9);
            }
            stream.close();
        }
        "table" => {
            let mut stream = open(0);
            for addr in [0x5000, 0x6000] {
                // 200 instructions in 300 bytes.
                let index = recorder.add_block(addr, 200 << 32 | 300);
                stream.put(BLOCK | u64::from(index));
            }
            stream.close();
        }
        "fork" => {
            let mut stream = open(0);
            write(&mut stream, 0, SHORT);
            stream.before_fork(origin::FORK);
            // SAFETY: the child only writes to mapped memory, and exits.
            match unsafe { libc::fork() } {
                0 => {
                    let mut stream = stream_of_child();
                    write(&mut stream, 1, SHORT);
                    stream.close();
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(0) }
                }
                child => {
                    stream.after_fork(Some(child.cast_unsigned()));
                    write(&mut stream, 2, LONG);
                    // SAFETY: our child; its status is ignored.
                    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                    stream.close();
                }
            }
        }
        // A forked child starts a thread, while its parent has two: `watch` started one.
        "thread of a child" => {
            // SAFETY: the child starts a thread and exits; the status is a variable of this
            // function.
            let (ended, status) = unsafe {
                let child = libc::fork();
                if child == 0 {
                    // Keep an emulator's message out of the test's output.
                    libc::close(libc::STDERR_FILENO);
                    let joined = std::thread::spawn(|| ()).join();
                    libc::_exit(i32::from(joined.is_err()));
                }
                let mut status = 1;
                (libc::waitpid(child, &raw mut status, 0) == child, status)
            };
            assert!(ended && status == 0, "{status}");
        }
        "exec" => {
            write(&mut open(0), 0, SHORT);
            let error = command(&path, "long").exec();
            panic!("{error}");
        }
        "killed" => {
            write(&mut open(0), 0, LONG);
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        "fork child" => event_order::fork_child(None),
        "fork child that execs" => event_order::fork_child(Some(command(&path, "child program"))),
        "fork parallel child" => event_order::fork_parallel_child(),
        "child program" => event_order::child_program(),
        script => match script.split_once(' ') {
            // The second argument of `perform`: whether the process kills itself at the end.
            Some(("steps", steps)) => event_order::perform(steps, false),
            Some(("steps-killed", steps)) => event_order::perform(steps, true),
            _ => panic!("no script {script}"),
        },
    }
}

// The receiving process.

/// This program, started as by cargo: under an emulator if it is for another architecture.
fn this_program() -> Command {
    static STARTS: LazyLock<bool> =
        LazyLock::new(|| runner_and_program().arg("--list").output().unwrap().status.success());
    assert!(*STARTS, "cannot start this program again; set cargo's runner in the environment");
    runner_and_program()
}

fn runner_and_program() -> Command {
    let target = std::env::consts::ARCH.to_uppercase();
    let runner = std::env::var(format!("CARGO_TARGET_{target}_UNKNOWN_LINUX_GNU_RUNNER"));
    let runner = runner.unwrap_or_default();
    let mut words = runner.split_whitespace().map(OsString::from);
    let program = std::env::current_exe().unwrap();
    let Some(first) = words.next() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

fn command(path: &str, script: &str) -> Command {
    let mut command = this_program();
    command.args(["--exact", "loopback::writer", "--ignored"]).stdout(Stdio::null());
    command.env(MEMORY, path).env(SCRIPT, script);
    command
}

fn start(shared: &Shared, script: &str) -> Child {
    let mut command = command(&shared.path(), script);
    kill_with_parent(&mut command);
    command.spawn().unwrap()
}

struct Received {
    info: Info,
    /// Records by thread.
    threads: Vec<Vec<Record>>,
    /// All records, in order.
    order: Vec<Record>,
    regions: Vec<RegionEvent>,
    lost_forks: u64,
    lost_programs: u64,
    stop_reason: Option<StopReason>,
    signal: Option<i32>,
}

/// Whether a forked child can start a thread, as the plugin does: QEMU 7.2 in user mode kills it if
/// its parent has several threads. If not, prints that the calling test is not run.
fn child_can_start_threads() -> bool {
    static CAN_START: LazyLock<bool> = LazyLock::new(|| {
        let shared = Shared::create(0).unwrap();
        start(&shared, "thread of a child").wait().unwrap().success()
    });
    if !*CAN_START {
        not_run("a forked child cannot start a thread");
    }
    *CAN_START
}

/// Receive everything that the writing process writes.
fn received(shared: &Shared, child: Child, follow: bool) -> Received {
    received_with_limit(shared, child, follow, u64::MAX)
}

fn received_with_limit(shared: &Shared, mut child: Child, follow: bool, max: u64) -> Received {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.trace");
    let writer = Writer::create(&path, Source::default(), WriterOptions::default()).unwrap();
    let mut go_on = |_| Action::Continue;
    let interrupter = Interrupter::new(child.id(), None, &mut go_on);
    // Skip no records, and record without a maximum.
    let limits = (0, None, Schedule::unlimited());
    let fetch = true;
    let mut recording = Recording::new(shared, writer, fetch, limits, interrupter);
    recording.events_left = recording.events_left.min(max);
    let resident = true;
    let mut streams = Streams::new(shared, recording, follow, resident);
    receive(shared, &mut streams, &child, None).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success() || status.signal().is_some(), "{status}");
    let Recording { lost_forks, lost_programs, .. } = streams.recording;
    let stop_reason = streams.recording.out.stop_reason;
    let info = streams.into_writer().finish(None).unwrap();
    let reader = Reader::open(&path).unwrap();
    let (mut batches, mut batch) = (reader.batches(Columns::ALL), Batch::default());
    let (mut threads, mut order) = (vec![Vec::new(); info.threads.len()], Vec::new());
    while batches.next_into(&mut batch).unwrap() {
        batch.iter().for_each(|record| threads[record.thread as usize].push(record));
        order.extend(batch.iter());
    }
    let regions = reader.regions().unwrap();
    let signal = status.signal();
    Received { info, threads, order, regions, lost_forks, lost_programs, stop_reason, signal }
}

fn run(script: &str, flags: u32) -> Received {
    run_and_receive(script, flags, false)
}

/// Run a script, and receive what it writes: at the same time or, with `later`, afterwards.
fn run_and_receive(script: &str, flags: u32, later: bool) -> Received {
    let shared = Shared::create(flags).unwrap();
    let child = start(&shared, script);
    if later {
        wait_for(child.id());
    }
    received(&shared, child, flags & FOLLOW != 0)
}

/// Check that `records` are the ones of [`word`] for `numbers` of `thread`.
fn check(records: &[Record], thread: u64, numbers: impl Iterator<Item = u64>) {
    let found = records.iter().map(|record| (record.addr, record.kind, record.size));
    let expected = numbers.map(|number| word(thread, number).1);
    assert!(found.eq(expected), "thread {thread}: {} records", records.len());
}

/// Wait until the writer of the first slot waits for room.
fn await_full(shared: &Shared) {
    while shared.slots()[0].waiting.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn streams_wrap_around_their_rings() {
    let Received { mut threads, .. } = run("threads", 0);
    threads.sort_by_key(|records| records[0].addr);
    assert_eq!(threads.len() as u64, THREADS);
    for (thread, records) in (0..THREADS).zip(&threads) {
        check(records, thread, 0..LONG);
    }
}

/// Without a reader, the writer fills all chunks except one and stops; afterwards no word is
/// missing.
#[test]
fn a_full_ring_stops_the_writer() {
    let shared = Shared::create(0).unwrap();
    let child = start(&shared, "long");
    await_full(&shared);
    let slot = &shared.slots()[0];
    let cursor = slot.cursor.load(Acquire);
    assert_eq!((cursor - slot.ring.load(Acquire)) / 8, ((CHUNKS - 1) * CHUNK_WORDS) as u64);
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(slot.cursor.load(Acquire), cursor);
    check(&received(&shared, child, false).threads[0], 0, 0..LONG);
}

/// No control record crosses the end of a chunk.
#[test]
fn control_records_of_any_length_arrive() {
    let Received { threads, regions, .. } = run("events", 0);
    let maps: Vec<_> = regions.iter().filter(|event| event.event == RegionKind::Map).collect();
    assert_eq!(maps.len() as u64, EVENTS);
    for (number, map) in (0..EVENTS).zip(maps) {
        assert_eq!((map.addr, map.length, map.prot.as_str()), (number << 12, 4096, "rw-p"));
        assert_eq!(map.name, name(number));
    }
    check(&threads[0], 0, (0..EVENTS).flat_map(|number| 0..number % 9));
}

/// Events, which are kept in memory, have a limit; the program runs on.
#[test]
fn more_events_than_a_trace_holds_end_the_recording() {
    let shared = Shared::create(0).unwrap();
    let child = start(&shared, "events");
    let received = received_with_limit(&shared, child, false, 100);
    let Received { threads, regions, stop_reason, signal, .. } = received;
    assert_eq!((regions.len(), stop_reason, signal), (100, Some(StopReason::TooManyEvents), None));
    // The first of the 100 events is the start of the thread.
    check(&threads[0], 0, (0..99).flat_map(|number| 0..number % 9));
}

#[test]
fn large_blocks_are_found_in_the_table() {
    let records = run("table", 0).threads.remove(0);
    let found: Vec<_> = records.iter().map(|r| (r.addr, r.kind, r.size, r.instr)).collect();
    assert_eq!(found, [(0x5000, Kind::Fetch, 300, 0), (0x6000, Kind::Fetch, 300, 200)]);
}

#[test]
fn a_forked_child_is_recorded_or_counted_as_lost() {
    if !child_can_start_threads() {
        return;
    }
    let Received { info, threads, lost_forks, .. } = run("fork", FOLLOW);
    assert_eq!((threads.len(), lost_forks), (2, 0));
    assert_ne!(info.threads[0].process, info.threads[1].process);
    let (before, after) = threads[0].split_at(SHORT as usize);
    check(before, 0, 0..SHORT);
    check(after, 2, 0..LONG);
    check(&threads[1], 1, 0..SHORT);

    let Received { threads, lost_forks, .. } = run("fork", 0);
    assert_eq!((threads.len(), lost_forks), (1, 1));
    check(&threads[0][SHORT as usize..], 2, 0..LONG);
}

/// A program that calls `execve` leaves its stream open; the next program of the process closes it.
#[test]
fn an_exec_begins_a_new_stream() {
    let Received { info, threads, .. } = run("exec", 0);
    assert_eq!(info.threads[0].process, info.threads[1].process);
    check(&threads[0], 0, 0..SHORT);
    check(&threads[1], 0, 0..LONG);
}

#[test]
fn nothing_that_a_killed_writer_wrote_is_lost() {
    let Received { threads, signal, .. } = run("killed", 0);
    assert_eq!(signal, Some(libc::SIGKILL));
    check(&threads[0], 0, 0..LONG);
}

/// The writer ends both while it waits for room (`long`) and while it does nothing (`idle`).
#[test]
fn a_writer_ends_with_its_receiver() {
    if !liveness::is_supported() {
        return;
    }
    for script in ["long", "idle"] {
        let shared = Shared::create(0).unwrap();
        let mut child = command(&shared.path(), script).spawn().unwrap();
        if script == "long" {
            await_full(&shared);
            // Longer than the writer's 100 ms between checks.
            std::thread::sleep(Duration::from_millis(700));
        }
        while shared.header().started.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(child.try_wait().unwrap(), None);
        drop(shared);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

#[test]
fn a_different_layout_is_refused() {
    let shared = Shared::create(0).unwrap();
    shared.header().magic.store(layout::MAGIC + 1, SeqCst);
    assert!(!start(&shared, "long").wait().unwrap().success());
}
