//! Replays the fuzzers' corpus (`fuzz/corpus/TARGET/`), so that a bug that a fuzzer found cannot
//! return, without a nightly compiler. The machine reader's corpus is replayed in its own crate.

use std::path::{Path, PathBuf};

use nearfar_trace::exercise;
use nearfar_trace::import::{IMPORTERS, by_name, exercise as import, exercise_detection};

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "{}: a corpus needs good, bad and cut-off inputs", folder.display());
    inputs
}

#[test]
fn every_importer_has_a_corpus_and_survives_all_corpora() {
    for of in IMPORTERS {
        for (path, bytes) in corpus(&format!("import/{}", of.name())) {
            println!("{}", path.display());
            for importer in IMPORTERS {
                import(*importer, &bytes);
            }
            exercise_detection(&bytes);
        }
    }
}

#[test]
fn every_corpus_belongs_to_an_importer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/import");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(by_name(&name).is_ok(), "{name}: a corpus of no importer");
    }
}

#[test]
fn format_detection_survives_its_corpus() {
    for (path, bytes) in corpus("guess") {
        println!("{}", path.display());
        exercise_detection(&bytes);
    }
}

#[test]
fn the_readers_of_a_trace_survive_their_corpora() {
    let folder = tempfile::tempdir().unwrap();
    let good = |path: &Path, bytes: &[u8]| {
        println!("{}", path.display());
        exercise::trace_json(folder.path(), bytes)
    };
    let read = corpus("trace_json");
    assert!(read.iter().any(|(path, bytes)| good(path, bytes)), "no good trace.json");
    for (path, bytes) in corpus("part") {
        println!("{}", path.display());
        exercise::part(folder.path(), &bytes);
    }
    for (path, bytes) in corpus("regions") {
        println!("{}", path.display());
        exercise::regions(folder.path(), &bytes);
    }
}
