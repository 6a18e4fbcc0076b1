//! Exact LRU at every memory size at once, which must see every reference.

use nearfar_kernel::replacement::stack::StackDistance;

use super::engine::{Engine, NO_PAGE, Outcome, View};
use super::window::WRITE;

/// Exact LRU at every size, from the stack.
pub struct Stack {
    stack: StackDistance,
    frames: Vec<u64>,
}

impl Stack {
    /// Memories of `frames` frames each.
    pub fn new(frames: &[u64]) -> Self {
        Self { stack: StackDistance::new(), frames: frames.to_vec() }
    }
}

impl Engine for Stack {
    fn window(&mut self, view: &View<'_>) {
        for &local in view.distinct {
            self.stack.expect(view.page(local));
        }
        for &byte in view.refs() {
            let page = view.page(byte & !WRITE);
            if page != NO_PAGE {
                self.stack.access(page, byte & WRITE != 0);
            }
        }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let written = self.stack.dirty_evictions(&self.frames);
        self.frames
            .iter()
            .zip(written)
            .map(|(&frames, dirty_evictions)| Outcome {
                faults: self.stack.faults(frames),
                dirty_evictions,
            })
            .collect()
    }
}
