//! Replays the corpus of the fuzz targets `knobs` and `words` (`fuzz/corpus/`).

use std::path::Path;

use nearfar_kernel::exercise;

fn replay(target: &str, read: fn(&str) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let good = paths.iter().filter(|path| {
        println!("{}", path.display());
        // The parsers take only UTF-8.
        String::from_utf8(std::fs::read(path).unwrap()).is_ok_and(|text| read(&text))
    });
    let good = good.count();
    assert!(good >= 1 && good < paths.len(), "{target}: a corpus needs good and bad inputs");
}

#[test]
fn knobs_of_the_corpus_are_checked_without_panic() {
    replay("knobs", exercise::knobs);
}

#[test]
fn words_of_the_corpus_are_parsed_without_panic() {
    replay("words", exercise::words);
}
