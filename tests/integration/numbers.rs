//! A check that docs/SEMANTICS.md and the tests name the same sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("tests/") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Returns the sentence numbers at the start of a doc comment, such as `/// S1, S22: …`.
fn numbers(comment: &str) -> Vec<u32> {
    let head = comment.split(':').next().unwrap_or_default();
    head.split([',', ' '])
        .filter_map(|w| w.strip_prefix('S').and_then(|n| n.parse().ok()))
        .collect()
}

/// Returns each `#[test]` on real mounts with the first line of its doc comment. It leaves out tests with programs
/// of others that prove no sentence.
fn tests() -> BTreeMap<String, Vec<u32>> {
    let mut all = tests_in("integration");
    let others = ["interop", "links"].into_iter().flat_map(tests_in);
    all.extend(others.filter(|(_, sentences)| !sentences.is_empty()));
    all
}

fn tests_in(target: &str) -> BTreeMap<String, Vec<u32>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(target);
    let mut files = Vec::new();
    if folder.is_dir() {
        sources(&folder, &mut files);
    }
    let mut all = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("source");
        let mut comment: Option<String> = None;
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if let Some(c) = line.strip_prefix("///") {
                comment.get_or_insert_with(|| c.trim().to_owned());
            } else if line == "#[test]" {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ") {
                let name = rest.split('(').next().unwrap_or_default();
                if is_test {
                    let place = format!("{}::{name}", file.file_name().unwrap().to_string_lossy());
                    all.insert(place, numbers(&comment.clone().unwrap_or_default()));
                }
                (comment, is_test) = (None, false);
            } else if !line.starts_with("#[") {
                comment = None;
            }
        }
    }
    all
}

#[test]
fn every_sentence_has_a_test_and_every_test_a_sentence() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SEMANTICS.md");
    let text = fs::read_to_string(page).expect("docs/SEMANTICS.md");
    let stated: Vec<u32> = text
        .lines()
        .filter_map(|l| l.strip_prefix("- **S")?.split("**").next()?.parse().ok())
        .collect();
    let all = stated.len();

    // Two tests are about the tests themselves.
    let about_tests = ["the_harness_computes", "every_sentence_has"];
    let tests = tests();
    let proved: BTreeSet<u32> = tests.values().flatten().copied().collect();
    let stated: BTreeSet<u32> = stated.into_iter().collect();
    assert_eq!(stated.len(), all, "each number stands for one sentence");
    let missing: Vec<_> = stated.difference(&proved).collect();
    assert!(missing.is_empty(), "sentences without a test: {missing:?}");
    let unknown: Vec<_> = proved.difference(&stated).collect();
    assert!(unknown.is_empty(), "tests name sentences that do not exist: {unknown:?}");
    let bare: Vec<_> = tests
        .iter()
        .filter(|(name, n)| n.is_empty() && !about_tests.iter().any(|a| name.contains(a)))
        .map(|(name, _)| name)
        .collect();
    assert!(bare.is_empty(), "tests that name no sentence: {bare:#?}");
}
