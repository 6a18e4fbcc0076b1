//! The manager's loop.

use std::sync::atomic::Ordering;

use nearfar_live::linux::{Linux, Owner};
use nearfar_live::shared::Block;
use nearfar_live::{Kernel, Manager, PAGE, Turn, next_look_ns};

use crate::ARENA;

/// How long the manager waits for messages before it says that it is there, and looks whether the program is.
pub(crate) const BEAT_NS: u64 = 100_000_000;

/// Publish what is in use and what was counted.
pub(crate) fn publish(manager: &Manager<Linux>, block: &Block) {
    let world = &manager.world;
    block.beat();
    let ([fast, far], window) = world.used();
    for (word, number) in block.used.iter().zip([fast, far, window, world.far_bytes()]) {
        word.store(number, Ordering::Relaxed);
    }
    block.publish(&world.counters);
}

/// The same, and what takes longer to find out.
fn publish_all(manager: &Manager<Linux>, block: &Block) {
    publish(manager, block);
    block.manager_ns.store(processor_time(), Ordering::Relaxed);
    block.held_pages.store(manager.world.held_pages(), Ordering::Relaxed);
}

/// Serve the program until it has ended or runs another one, and nobody else uses its memory.
///
/// # Errors
/// Why it cannot go on.
pub(crate) fn manage(
    manager: &mut Manager<Linux>,
    mut owner: Owner,
    block: &Block,
) -> Result<(), String> {
    let (mut look, mut every, mut rounds) = (0, 0, 0u32);
    let mut next_check = 0;
    loop {
        let turn = manager.turn()?;
        // Every time: what is published is what there was at the program's end.
        publish(manager, block);
        rounds = rounds.wrapping_add(1);
        if turn == Turn::Busy && !rounds.is_multiple_of(64) {
            continue;
        }
        if manager.world.kernel().is_called() && manager.can_discover() {
            manager.discover();
            manager.world.kernel_mut().answer();
        }
        let now = manager.world.kernel().now_ns();
        if now >= next_check {
            next_check = now + BEAT_NS;
            let own = manager.world.kernel_mut().count_present(ARENA.range());
            let own = own + manager.world.spare_frames();
            block.own_bytes.store(own * PAGE as u64, Ordering::Relaxed);
            if owner.has_left()
                && manager.is_settled()
                && manager.can_discover()
                && !owner.memory_has_others()
            {
                publish_all(manager, block);
                return Ok(());
            }
        }
        if now >= look {
            publish_all(manager, block);
            let before = processor_time();
            let found = manager.discover();
            every = next_look_ns(every, found, processor_time() - before);
            look = manager.world.kernel().now_ns() + every;
        }
        if let Turn::Until(due) = turn {
            let until = due.min(look).min(next_check).saturating_sub(now);
            let others = [manager.world.far_descriptor(), owner.descriptor()];
            if manager.world.kernel_mut().wait(others, until) {
                next_check = 0;
            }
        }
    }
}

/// Processor time of this process, nanoseconds.
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the variable of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
