//! Replays the fuzzers' corpus (`fuzz/corpus/TARGET/`), so that what a fuzzer once found stays
//! found without a nightly compiler. The machine reader's corpus is replayed in its own crate.

use std::path::{Path, PathBuf};

use nearfar_trace::import::{IMPORTERS, exercise, exercise_guess};
use nearfar_trace::{Info, KindSet};

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
fn every_importer_has_a_target_and_takes_its_corpus() {
    for importer in IMPORTERS {
        let target = importer.name().replace('-', "_");
        for (path, bytes) in corpus(&target) {
            println!("{}", path.display());
            exercise(*importer, &bytes);
        }
        let source = format!("../../fuzz/fuzz_targets/{target}.rs");
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(source).is_file(), "no target {target}");
    }
}

/// Any format's parser must take any other's files.
#[test]
fn every_importer_takes_every_corpus() {
    for other in IMPORTERS {
        for (_, bytes) in corpus(&other.name().replace('-', "_")) {
            for importer in IMPORTERS {
                exercise(*importer, &bytes);
            }
            exercise_guess(&bytes);
        }
    }
}

#[test]
fn guessing_takes_its_corpus() {
    for (path, bytes) in corpus("guess") {
        println!("{}", path.display());
        exercise_guess(&bytes);
    }
}

#[test]
fn trace_json_takes_its_corpus() {
    let folder = tempfile::tempdir().unwrap();
    let mut good = 0;
    for (path, bytes) in corpus("trace_json") {
        println!("{}", path.display());
        std::fs::write(folder.path().join("trace.json"), bytes).unwrap();
        match Info::load(folder.path()) {
            Ok(info) => {
                good += 1;
                let _ = info.footprint_pages(KindSet::ALL);
                let _ = info.records_of(KindSet::ALL);
            }
            Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
        }
    }
    assert!(good > 0, "no good trace.json in the corpus");
}
