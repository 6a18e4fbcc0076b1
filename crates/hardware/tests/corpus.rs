//! Replays the corpus of the fuzz target `machine` (`fuzz/corpus/machine/`).

use std::path::Path;

use nearfar_hardware::Machine;

#[test]
fn machines_of_the_corpus_parse_or_give_one_line_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/machine");
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut good = 0;
    for path in &paths {
        println!("{}", path.display());
        // The parser takes only UTF-8.
        let Ok(text) = String::from_utf8(std::fs::read(path).unwrap()) else { continue };
        match Machine::parse("corpus", &text) {
            Ok(_) => good += 1,
            Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
        }
    }
    assert!(good >= 1 && good < paths.len(), "a corpus needs good and bad machines");
}
