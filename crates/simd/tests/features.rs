//! The rule of this crate, checked in the source of the whole workspace: features are detected here
//! alone, and a function that enables some takes the token that they were detected with.

use std::path::{Path, PathBuf};

use nearfar_simd::{Avx2, Avx512};

const DETECTION: &str = concat!("is_x86_feature", "_detected!");
const ENABLING: &str = concat!("target_feature(enable", " = \"");

/// Rust files below `folder`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What is wrong with the functions of `text` that enable features.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for piece in text.split(ENABLING).skip(1) {
        let (enabled, rest) = piece.split_once('"').unwrap();
        let signature = rest.split('{').next().unwrap();
        let (_, signature) = signature.split_once("fn ").unwrap();
        let parameters = signature.split("->").next().unwrap();
        let detected = if parameters.contains(": Avx512") {
            Avx512::FEATURES
        } else if parameters.contains(": Avx2") {
            Avx2::FEATURES
        } else {
            &[]
        };
        for feature in enabled.split(',') {
            if !detected.contains(&feature) {
                faults.push(format!("fn {parameters}enables {feature} without its token"));
            }
        }
    }
    faults
}

#[test]
fn features_are_enabled_with_their_token() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    ["crates", "bench", "capture"].iter().for_each(|part| sources(&root.join(part), &mut files));
    let (mut enabling, mut detecting) = (0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(faults(&text), [""; 0], "{}", file.display());
        enabling += text.matches(ENABLING).count();
        if text.contains(DETECTION) {
            detecting.push(file.strip_prefix(&root).unwrap().to_owned());
        }
    }
    assert_eq!(detecting, [Path::new("crates/simd/src/lib.rs")]);
    assert!(enabling > 0, "no file was read");
}

#[test]
fn a_feature_without_its_token_is_found() {
    let function = |features: &str, parameters: &str| {
        format!("#[{ENABLING}{features}\")]\nfn f({parameters}) -> u8 {{ 0 }}")
    };
    assert_eq!(faults(&function("avx512bw,lzcnt", "_: Avx512, x: u8")), [""; 0]);
    assert_eq!(faults(&function("avx2,popcnt", "_: Avx2")), [""; 0]);
    assert_eq!(faults(&function("avx2,popcnt", "x: u8")).len(), 2);
    assert_eq!(faults(&function("avx512bw", "_: Avx2")).len(), 1);
    assert_eq!(faults(&function("avx512fp16", "_: Avx512")).len(), 1);
}
