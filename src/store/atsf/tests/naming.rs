//! The names of messages whose id stands in several threads, or twice in one.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::model::{encode_hex, id_qualifier};
use crate::store::MessageReader as _;

/// The threads of a project, each with the minute in which it was made and its lines: an id and a text.
type Threads = Vec<(u8, Vec<(char, char)>)>;

fn put(project: &Project, n: usize, threads: &Threads) -> PathBuf {
    let (minute, lines) = &threads[n];
    let id = format!("t{n}");
    let line = |(id, text): &(char, char)| message(&id.to_string(), "agent", &text.to_string());
    project.thread(&id, &lines.iter().map(line).collect::<Vec<_>>());
    let meta = read(&project.meta(&id)).replace(":30:", &format!(":{minute:02}:"));
    std::fs::write(project.meta(&id), meta).unwrap();
    project.meta(&id)
}

/// Returns the last part of the long name of each message, by its place. Messages of one id have different ones.
fn long_names(store: &AtsfStore, books: &Book) -> BTreeMap<(String, u64), String> {
    let mut names = BTreeMap::new();
    for kept in books.messages.values() {
        let own = || encode_hex(&store.content_digest(&kept.at).unwrap());
        let name = id_qualifier(&kept.id).map_or_else(own, str::to_owned);
        names.insert((store.source_path(kept.at.source).unwrap(), kept.at.offset), name);
    }
    assert_eq!(names.values().collect::<BTreeSet<_>>().len(), books.messages.len());
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Names depend on no order of arrival, no restart and no index.
    #[test]
    fn names_need_no_memory(
        threads in proptest::collection::vec(
            (0u8..3, proptest::collection::vec(
                (prop::sample::select(vec!['a', 'b']), prop::sample::select(vec!['x', 'y', 'z'])),
                0..4,
            )),
            3,
        ),
        order in Just(vec![0, 1, 2]).prop_shuffle(),
        restart in 0usize..3,
    ) {
        let project = Project::new();
        let (mut store, mut books) = project.opened();
        for (step, n) in order.into_iter().enumerate() {
            let meta = put(&project, n, &threads);
            follow(&store, &mut books, &meta);
            if step == restart {
                let saved = store.save_cursors();
                store = project.open();
                assert!(store.restore_cursors(&saved));
            }
        }
        let (anew, all) = project.opened();
        prop_assert_eq!(long_names(&store, &books), long_names(&anew, &all));
    }
}
