//! Names for the files that come with a message.

use std::collections::{HashMap, HashSet};

use super::{sanitize_line, shorten_name};

/// The longest name of a file, in bytes.
const MAX_NAME: usize = 150;

/// The names that the files of one message have so far. Each is one safe component of a path, and no two are equal.
#[derive(Debug, Default)]
pub struct FileNames {
    taken: HashSet<String>,
    /// The number to try next for a name that is taken.
    next: HashMap<String, usize>,
}

impl FileNames {
    /// Returns a name for the next file. `given` is the sender's name for it, and `other` is for a file without one.
    pub fn choose(&mut self, given: Option<&str>, other: &str) -> String {
        let given = given.map(sanitize_file_name).filter(|name| !name.is_empty());
        let mut name = given.unwrap_or_else(|| other.to_owned());
        if self.taken.contains(&name) {
            let (stem, end) =
                name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).unwrap_or((&name, ""));
            let dot = if end.is_empty() { "" } else { "." };
            let next = self.next.entry(name.clone()).or_insert(2);
            let numbered = loop {
                let numbered = format!("{stem}-{next}{dot}{end}");
                *next += 1;
                if !self.taken.contains(&numbered) {
                    break numbered;
                }
            };
            name = numbered;
        }
        self.taken.insert(name.clone());
        name
    }
}

/// Returns the name of a file without folders and without unsafe characters.
fn sanitize_file_name(given: &str) -> String {
    let last = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = sanitize_line(last.trim()).chars().filter(|c| *c != '\u{fffd}').collect();
    shorten_name(name.trim().trim_start_matches('.').trim_end(), MAX_NAME)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choose_all(given: &[&str]) -> Vec<String> {
        let mut names = FileNames::default();
        given.iter().map(|name| names.choose(Some(name), "attachment")).collect()
    }

    #[test]
    fn names_are_safe_and_different() {
        assert_eq!(
            choose_all(&["a.txt", "../a.txt", "a-2.txt", "", "..", "/", "x\\y", "a.txt", "x"]),
            [
                "a.txt",
                "a-2.txt",
                "a-2-2.txt",
                "attachment",
                "attachment-2",
                "attachment-3",
                "y",
                "a-3.txt",
                "x"
            ]
        );
        assert_eq!(choose_all(&[".profile", "a\nb", "\u{202e}c"]), ["profile", "a\u{240a}b", "c"]);
    }

    #[test]
    fn many_equal_names_cost_little() {
        let mut names = FileNames::default();
        let all: HashSet<String> = (0..50_000).map(|_| names.choose(Some("a.b"), "x")).collect();
        assert_eq!(all.len(), 50_000);
    }

    proptest! {
        #[test]
        fn every_name_is_one_component(given in proptest::collection::vec("\\PC{0,20}|[./\\\\a-]{0,6}", 0..20)) {
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            let names = choose_all(&given);
            for name in &names {
                prop_assert!(!name.is_empty() && name.len() <= 255 && !name.starts_with('.'));
                prop_assert!(!name.contains(['/', '\0', '\n']));
            }
            prop_assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        }
    }
}
