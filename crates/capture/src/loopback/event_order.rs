//! Tests that a trace keeps the order of events. The threads of a process execute the steps of a
//! script one at a time, so the order is known.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use nearfar_trace::{RegionEvent, RegionKind};
use proptest::prelude::*;

use super::stream::Stream;
use super::{
    Received, child_can_start_threads, recorder, reopen, run_and_receive, stream_of_child,
};
use crate::layout::{CHUNK_WORDS, FOLLOW, SIZE_SHIFT, origin, what};

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// Write this many words, each the record of a load.
    Touch(u64),
    /// Begin the fence of an event (`layout.rs`): it fixes the event's place in the order.
    Begin,
    /// Write the event, and end the fence.
    End,
    /// `Begin` and `End`.
    Event,
    /// Close the stream, and continue as another thread.
    Restart,
}

/// The thread that acts, and its action.
type Step = (usize, Act);

fn encode(steps: &[Step]) -> String {
    let token = |(thread, act): &Step| match act {
        Act::Touch(words) => format!("{thread}t{words}"),
        Act::Begin => format!("{thread}b"),
        Act::End => format!("{thread}e"),
        Act::Event => format!("{thread}m"),
        Act::Restart => format!("{thread}r"),
    };
    steps.iter().map(token).collect::<Vec<_>>().join(" ")
}

fn decode(text: &str) -> Vec<Step> {
    let step = |token: &str| {
        let act = match &token[1..2] {
            "t" => Act::Touch(token[2..].parse().unwrap()),
            "b" => Act::Begin,
            "e" => Act::End,
            "m" => Act::Event,
            _ => Act::Restart,
        };
        (token[..1].parse().unwrap(), act)
    };
    text.split_whitespace().map(step).collect()
}

/// The word of a load of 8 bytes (2^3) in step `step`; its address is 8 times the step.
fn load(step: usize) -> u64 {
    3 << SIZE_SHIFT | (step as u64) << 3
}

fn event(stream: &mut Stream, step: usize) {
    stream.event(&[what::MAP, (step as u64) << 12, 4096], b"");
    stream.end_fence();
}

/// In the writing process: execute the steps, then end the process or kill it.
pub(super) fn perform(text: &str, killed: bool) {
    let steps = decode(text);
    let turn = AtomicUsize::new(0);
    let threads = steps.iter().map(|(thread, _)| thread + 1).max().unwrap_or(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (steps, turn) = (&steps, &turn);
            reopen(thread as u32);
            scope.spawn(move || {
                recorder::set_current_vcpu(thread as u32);
                let mut vcpu = thread as u32;
                // SAFETY: opened above, and only this thread uses this vCPU number.
                let mut stream = unsafe { Stream::of(vcpu) };
                for (number, (_, act)) in steps.iter().enumerate().filter(|(_, s)| s.0 == thread) {
                    while turn.load(Acquire) != number {
                        std::thread::yield_now();
                    }
                    match act {
                        Act::Touch(words) => (0..*words).for_each(|_| stream.put(load(number))),
                        Act::Begin => stream.begin_fence(),
                        Act::End => event(&mut stream, number),
                        Act::Event => {
                            stream.begin_fence();
                            event(&mut stream, number);
                        }
                        Act::Restart => {
                            stream.close();
                            vcpu += threads as u32;
                            stream = reopen(vcpu);
                        }
                    }
                    turn.store(number + 1, Release);
                }
                while turn.load(Acquire) != steps.len() {
                    std::thread::yield_now();
                }
                if !killed {
                    stream.close();
                }
            });
        }
    });
    if killed {
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Wait until a child has ended, and write the event of the wait.
fn wait_for(child: libc::pid_t, stream: &mut Stream) {
    // SAFETY: our child; its status is ignored.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    stream.begin_fence();
    stream.event(&[what::WAITED, u64::from(child.cast_unsigned())], b"");
    stream.end_fence();
}

/// In the writing process: fork a child, which writes words and then ends or executes another
/// program. The parent writes before the fork, and again after it has waited for the child.
pub(super) fn fork_child(program: Option<Command>) {
    let mut stream = reopen(0);
    (0..100).for_each(|_| stream.put(load(0)));
    // QEMU's user mode runs a program's `vfork` as a `fork`, too.
    stream.before_fork(origin::VFORK);
    // SAFETY: the child only writes to memory that it has, and exits.
    match unsafe { libc::fork() } {
        0 => {
            let mut stream = stream_of_child();
            (0..100_000).for_each(|_| stream.put(load(1)));
            if let Some(mut program) = program {
                stream.note(what::EXEC, b"program");
                panic!("{}", program.exec());
            }
            // `true`: the process ends as well.
            stream.end(true);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        child => {
            stream.after_fork(Some(child.cast_unsigned()));
            wait_for(child, &mut stream);
            (0..100_000).for_each(|_| stream.put(load(2)));
            stream.end(true);
        }
    }
}

/// In the writing process: fork a child, which ends after its parent has written words. The parent
/// writes again after it has waited for the child.
pub(super) fn fork_parallel_child() {
    let mut stream = reopen(0);
    let (mut is_written, mut written) = std::io::pipe().unwrap();
    stream.before_fork(origin::FORK);
    // SAFETY: the child only writes to memory that it has, and exits.
    match unsafe { libc::fork() } {
        0 => {
            let mut stream = stream_of_child();
            is_written.read_exact(&mut [0]).unwrap();
            (0..10).for_each(|_| stream.put(load(1)));
            stream.end(true);
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        child => {
            stream.after_fork(Some(child.cast_unsigned()));
            (0..50).for_each(|_| stream.put(load(2)));
            written.write_all(&[0]).unwrap();
            wait_for(child, &mut stream);
            (0..50).for_each(|_| stream.put(load(3)));
            stream.end(true);
        }
    }
}

/// In the child's process: the program that it executes writes words, and is killed.
pub(super) fn child_program() {
    let mut stream = reopen(0);
    (0..1000).for_each(|_| stream.put(load(3)));
    // SAFETY: ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// Execute and receive the steps: at the same time or, with `later`, one after the other.
fn run(steps: &[Step], later: bool, killed: bool) -> Received {
    let name = if killed { "steps-killed " } else { "steps " };
    run_and_receive(&(name.to_owned() + &encode(steps)), 0, later)
}

/// Compare the order of all events and records with that of the steps.
fn check(steps: &[Step], got: &Received) {
    let maps: Vec<&RegionEvent> =
        got.regions.iter().filter(|event| event.event == RegionKind::Map).collect();
    // Step at which each event begins and ends, in the order of beginning.
    let mut expected = Vec::new();
    for (begin, (thread, act)) in steps.iter().enumerate() {
        let end = match act {
            Act::Event => Some(begin),
            Act::Begin => steps[begin..].iter().position(|s| *s == (*thread, Act::End)),
            _ => continue,
        };
        let end = end.map(|end| if *act == Act::Begin { begin + end } else { end });
        expected.extend(end.map(|end| (begin, end)));
    }
    let found: Vec<usize> = maps.iter().map(|map| (map.addr >> 12) as usize).collect();
    assert_eq!(found, expected.iter().map(|(_, end)| *end).collect::<Vec<_>>());
    for (map, (begin, end)) in maps.iter().zip(expected) {
        let (before, after) = got.order.split_at(map.at as usize);
        assert!(before.iter().all(|record| (record.addr >> 3) as usize <= end), "event {end}");
        assert!(after.iter().all(|record| (record.addr >> 3) as usize >= begin), "event {end}");
    }
    let touched = |(number, (_, act)): (usize, &Step)| match act {
        Act::Touch(words) => Some((number as u64, *words)),
        _ => None,
    };
    for (number, words) in steps.iter().enumerate().filter_map(touched) {
        let count = got.order.iter().filter(|record| record.addr >> 3 == number).count();
        assert_eq!(count as u64, words, "step {number}");
    }
}

/// One thread maps, the other touches, the first unmaps; then the other way around. If streams were
/// read one after another, all touches of a thread would precede or follow all events.
#[test]
fn touches_fall_within_the_lifetime_of_a_mapping_of_another_thread() {
    use Act::{Event, Touch};
    let round = [(0, Event), (1, Touch(50)), (0, Event), (1, Event), (0, Touch(70)), (1, Event)];
    let steps = round.repeat(20);
    for later in [false, true] {
        check(&steps, &run(&steps, later, false));
    }
}

/// While one thread is within a system call, another writes more than its ring holds.
#[test]
fn an_unfinished_call_does_not_block_other_threads() {
    let words = 20 * CHUNK_WORDS as u64;
    let steps = [(1, Act::Touch(9)), (0, Act::Begin), (1, Act::Touch(words)), (0, Act::End)];
    check(&steps, &run(&steps, false, false));
}

/// Overlapping events are ordered by their beginnings.
#[test]
fn events_come_in_the_order_in_which_they_began() {
    use Act::{Begin, End, Event, Touch};
    let steps =
        [(0, Begin), (1, Event), (1, Touch(5)), (2, Event), (2, Touch(5)), (0, End), (0, Touch(3))];
    for later in [false, true] {
        check(&steps, &run(&steps, later, false));
    }
}

/// If the process is killed during a system call, the trace lacks the call's event, but no words.
#[test]
fn a_call_ended_by_a_kill_has_no_effect() {
    use Act::{Begin, Event, Touch};
    let steps = [(0, Touch(7)), (0, Begin), (1, Touch(5)), (1, Event), (2, Touch(11))];
    for later in [false, true] {
        let got = run(&steps, later, true);
        assert_eq!(got.signal, Some(libc::SIGKILL));
        check(&steps, &got);
        assert_eq!(got.regions.last().map(|event| event.event), Some(RegionKind::Exit));
    }
}

/// A child's words follow those that its parent wrote before the fork, and precede those that the
/// parent writes after the wait.
#[test]
fn a_child_lives_between_its_fork_and_its_end() {
    if !child_can_start_threads() {
        return;
    }
    for later in [false, true] {
        let got = run_and_receive("fork child", FOLLOW, later);
        let at = |event| got.regions.iter().find(|e| e.event == event).unwrap();
        let (fork, exit) = (at(RegionKind::Vfork), at(RegionKind::Exit));
        let steps = |from, to| got.order[from as usize..to as usize].iter().map(|r| r.addr >> 3);
        assert_eq!((fork.at, fork.thread, fork.to, exit.thread), (100, 0, 2, 1));
        assert_eq!(exit.at, 100_100);
        assert!(steps(0, 100).all(|step| step == 0) && steps(100, exit.at).all(|step| step == 1));
        let last = got.regions.last().unwrap();
        assert_eq!((last.event, last.thread, last.at), (RegionKind::Exit, 0, 200_100));
    }
}

/// The exit of a process follows the words that others wrote before it, and precedes those that its
/// parent writes after the wait.
#[test]
fn a_process_ends_after_what_others_wrote_before() {
    if !child_can_start_threads() {
        return;
    }
    for later in [false, true] {
        let got = run_and_receive("fork parallel child", FOLLOW, later);
        let exit = got.regions.iter().find(|event| event.event == RegionKind::Exit).unwrap();
        assert_eq!((exit.thread, exit.at), (1, 60));
        let (before, after) = got.order.split_at(60);
        assert!(before.iter().all(|record| record.addr >> 3 < 3));
        assert!(after.len() == 50 && after.iter().all(|record| record.addr >> 3 == 3));
    }
}

/// The order is right even if everything is written before anything is read.
#[test]
fn a_program_executed_by_a_child_precedes_what_its_parent_does_after_the_wait() {
    if !child_can_start_threads() {
        return;
    }
    for later in [false, true] {
        let got = run_and_receive("fork child that execs", FOLLOW, later);
        assert_eq!(got.lost_programs, 0);
        assert_eq!(got.info.threads[1].process, got.info.threads[2].process);
        let steps: Vec<u64> = got.order.iter().map(|record| record.addr >> 3).collect();
        let parts: Vec<(u64, usize)> =
            steps.chunk_by(|a, b| a == b).map(|part| (part[0], part.len())).collect();
        assert_eq!(parts, [(0, 100), (1, 100_000), (3, 1000), (2, 100_000)]);
        let exits: Vec<_> = got.regions.iter().filter(|e| e.event == RegionKind::Exit).collect();
        assert_eq!([(exits[0].thread, exits[0].at)], [(2, 101_100)]);
    }
}

/// Valid scripts: a thread does nothing between the beginning and the end of a fence.
fn scripts() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..4usize, 0..12, 1..400u64), 1..60).prop_map(|choices| {
        let mut within = [false; 4];
        let mut steps = Vec::new();
        for (thread, choice, words) in choices {
            let act = match (within[thread], choice) {
                (true, _) => Act::End,
                (false, 0 | 1) => Act::Begin,
                (false, 2..5) => Act::Event,
                (false, 5) => Act::Restart,
                // Sometimes more than a chunk.
                (false, 6) => Act::Touch(words * 50),
                (false, _) => Act::Touch(words),
            };
            within[thread] = act == Act::Begin;
            steps.push((thread, act));
        }
        let open = within.iter().enumerate().filter(|(_, within)| **within);
        steps.extend(open.map(|(thread, _)| (thread, Act::End)));
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..<_>::default() })]
    #[test]
    fn any_interleaving_is_kept(steps in scripts(), later: bool) {
        // If received later, all words must fit a ring (131,072 words), with up to 40 control words
        // per step.
        let words = |act: &Act| if let Act::Touch(words) = act { *words } else { 0 };
        let fits = steps.iter().map(|(_, act)| words(act) + 40).sum::<u64>() < 50_000;
        check(&steps, &run(&steps, later && fits, false));
    }
}
