//! A program that writes arbitrary data to the shared memory: its trace can still be read.

use std::path::Path;
use std::sync::Mutex;

use proptest::prelude::*;

use super::recorder::Recorder;
use super::{Shared, plugin_side};
use crate::exercise::protocol;

/// The shared memory and its recorder, of which a process can have only one.
static MEMORY: Mutex<Option<(Shared, &'static Recorder)>> = Mutex::new(None);

/// Whether the trace has records and the receiver rejected nothing.
fn exercise(bytes: &[u8]) -> bool {
    let mut memory = MEMORY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (shared, recorder) = memory.get_or_insert_with(|| {
        // `protocol` sets the flags.
        let shared = Shared::create(0).unwrap();
        let recorder = plugin_side::install(&shared);
        (shared, recorder)
    });
    let dir = tempfile::tempdir().unwrap();
    protocol(shared, dir.path(), bytes, &mut |input, at_start| {
        plugin_side::act(recorder, input, at_start)
    })
}

#[test]
fn any_input_of_the_corpus_leaves_a_readable_trace() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/protocol");
    let inputs: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(inputs.len() >= 3, "{}: a corpus needs good, bad and cut-off inputs", folder.display());
    let sound = inputs.iter().filter(|path| {
        println!("{}", path.display());
        exercise(&std::fs::read(path).unwrap())
    });
    assert!((1..inputs.len()).contains(&sound.count()), "a corpus needs good and bad inputs");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..<_>::default() })]
    #[test]
    fn arbitrary_input_leaves_a_readable_trace(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        exercise(&bytes);
    }
}
