//! The manager's loop.

use std::sync::atomic::Ordering;

use nearfar_live::linux::{Linux, Owner, processor_time};
use nearfar_live::shared::Block;
use nearfar_live::{Kernel, Manager, PAGE, Turn, next_look_ns};

use crate::ARENA;

/// Maximum time that the manager waits for messages between heartbeats and checks of the program.
pub(crate) const BEAT_NS: u64 = 100_000_000;

/// Publish memory in use and counters to the launcher, in the process's block of shared memory.
pub(crate) fn publish(manager: &Manager<Linux>, block: &Block) {
    let world = &manager.world;
    block.beat();
    let ([fast, far], window) = world.used();
    for (word, number) in block.used.iter().zip([fast, far, window, world.far_bytes()]) {
        word.store(number, Ordering::Relaxed);
    }
    block.publish(&world.counters);
}

/// [`publish`], and the values that take longer to determine.
fn publish_all(manager: &Manager<Linux>, block: &Block) {
    publish(manager, block);
    block.manager_ns.store(processor_time(), Ordering::Relaxed);
    block.held_pages.store(manager.world.held_pages(), Ordering::Relaxed);
}

/// Serve the program until it has ended or called exec, and no process uses its memory. An error says why the
/// program must end.
pub(crate) fn manage(
    manager: &mut Manager<Linux>,
    mut owner: Owner,
    block: &Block,
) -> Result<(), String> {
    let (mut next_look, mut interval, mut rounds) = (0, 0, 0u32);
    let mut next_check = 0;
    loop {
        let turn = manager.turn()?;
        // In every round, so that the values at the program's end are published.
        publish(manager, block);
        rounds = rounds.wrapping_add(1);
        // A busy manager does the periodic work in every 64th round.
        if turn == Turn::Busy && !rounds.is_multiple_of(64) {
            continue;
        }
        // A thread that waits at the doorbell needs new mappings registered at once.
        if manager.world.kernel().doorbell_rang() && manager.can_discover() {
            manager.discover();
            manager.world.kernel_mut().reset_doorbell();
        }
        let now = manager.world.kernel().now_ns();
        if now >= next_check {
            next_check = now + BEAT_NS;
            let pages = manager.world.kernel_mut().count_present(ARENA.range());
            let pages = pages + manager.world.spare_frames();
            block.own_bytes.store(pages * PAGE as u64, Ordering::Relaxed);
            if owner.has_left()
                && manager.is_settled()
                && manager.can_discover()
                && owner.memory_is_unused()
            {
                publish_all(manager, block);
                return Ok(());
            }
        }
        if now >= next_look {
            publish_all(manager, block);
            let before = processor_time();
            let found = manager.discover();
            interval = next_look_ns(interval, found, processor_time() - before);
            next_look = manager.world.kernel().now_ns() + interval;
        }
        if let Turn::Until(due) = turn {
            let until = due.min(next_look).min(next_check).saturating_sub(now);
            let others = [manager.world.far_descriptor(), owner.descriptor()];
            if manager.world.kernel_mut().wait(others, until) {
                next_check = 0;
            }
        }
    }
}
