//! A string in shared memory.

use std::sync::atomic::{AtomicU32, Ordering};

/// A string. It is truncated to `4 * WORDS` bytes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Text<const WORDS: usize> {
    length: AtomicU32,
    words: [AtomicU32; WORDS],
}

impl<const WORDS: usize> Text<WORDS> {
    pub(super) fn set(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(4 * WORDS)];
        for (word, chunk) in self.words.iter().zip(bytes.chunks(4)) {
            let mut four = [0; 4];
            four[..chunk.len()].copy_from_slice(chunk);
            word.store(u32::from_le_bytes(four), Ordering::Relaxed);
        }
        self.length.store(bytes.len() as u32, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> String {
        let bytes = self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let length = (self.length.load(Ordering::Relaxed) as usize).min(4 * WORDS);
        String::from_utf8_lossy(&bytes.take(length).collect::<Vec<_>>()).into_owned()
    }
}
