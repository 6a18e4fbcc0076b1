//! Exact LRU at all memory sizes, by stack distance. Other policies can take most pages once per window (a
//! run of records, `window.rs`); LRU needs every reference.

use nearfar_kernel::replacement::Setup;
use nearfar_kernel::replacement::stack::StackDistance;

use super::engine::{Engine, NO_PAGE, Outcome, View};
use super::window::{LOCAL, WRITE};
use crate::slot;

pub struct Stack {
    stack: StackDistance,
    frames: Vec<u64>,
    pages: Vec<State>,
    /// Stack distances of references to discarded pages.
    void: Vec<u64>,
    /// Some page was discarded.
    discarded: bool,
}

/// Whether the content of a page was discarded (`MADV_FREE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ordinary,
    Discarded,
    /// Discarded until its next reference.
    UndoneAtNextReference,
}

impl Stack {
    pub fn new(memories: &[Setup]) -> Self {
        Self {
            stack: StackDistance::new(),
            frames: memories.iter().map(|setup| setup.frames).collect(),
            pages: Vec::new(),
            void: Vec::new(),
            discarded: false,
        }
    }

    fn set(&mut self, page: u32, state: State) {
        *slot(&mut self.pages, page) = state;
    }

    fn state(&self, page: u32) -> State {
        self.pages.get(page as usize).copied().unwrap_or_default()
    }

    fn reference(&mut self, page: u32, write: bool) {
        let distance = self.stack.access(page, write);
        if self.discarded {
            match self.state(page) {
                State::Ordinary => return,
                State::Discarded => {}
                State::UndoneAtNextReference => self.set(page, State::Ordinary),
            }
            self.void.extend(distance);
        }
    }
}

impl Engine for Stack {
    fn window(&mut self, view: &View<'_>) {
        for &local in view.distinct {
            self.stack.prefetch(view.page(local));
        }
        for &byte in view.refs() {
            let page = view.page(byte & LOCAL);
            if page != NO_PAGE {
                self.reference(page, byte & WRITE != 0);
            }
        }
    }

    fn begin_file(&mut self, page: u32, _executable: bool) {
        self.stack.mark(page);
    }

    fn free(&mut self, page: u32) {
        self.stack.release(page);
        if self.state(page) != State::Ordinary {
            self.set(page, State::Ordinary);
        }
    }

    fn discard(&mut self, page: u32) {
        self.stack.discard(page);
        self.set(page, State::Discarded);
        self.discarded = true;
    }

    fn undo_discard(&mut self, page: u32) {
        self.set(page, State::UndoneAtNextReference);
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let written = self.stack.dirty_evictions(&self.frames);
        self.frames
            .iter()
            .zip(written)
            .map(|(&frames, [written, file_written])| {
                // Pages of files are marked.
                let [other_faults, file_faults] = self.stack.faults_by_mark(frames);
                Outcome {
                    faults: other_faults + file_faults,
                    dirty_evictions: written + file_written,
                    file_faults,
                    file_dirty_evictions: file_written,
                    void_faults: self.void.iter().filter(|distance| **distance >= frames).count()
                        as u64,
                }
            })
            .collect()
    }
}
