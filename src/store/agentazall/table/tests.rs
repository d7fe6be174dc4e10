use super::*;
use crate::store::agentazall::group::tests::head;
use proptest::prelude::*;

fn letter(path: &str, id: &str, text: u8) -> Change {
    Change {
        path: path.to_owned(),
        stamp: Stamp { ino: 1, ..Stamp::default() },
        parts: 0,
        state: State::Letter(Box::new(head("a", id, text))),
        grown: false,
    }
}

fn gone(path: &str) -> Change {
    Change { state: State::Gone, stamp: Stamp::default(), ..letter(path, "", 0) }
}

const A: &str = "2026-03-11/inbox/a.txt";
const B: &str = "2026-03-11/inbox/b.txt";
const OUT: &str = "2026-03-11/outbox/a.txt";

#[test]
fn a_new_file_alone_reports_itself_only() {
    let mut table = Table::default();
    table.apply(vec![letter(A, "x", 1)], "me");
    let delta = table.apply(vec![letter(B, "y", 1)], "me");
    assert_eq!(delta.again, [0u32; 0]);
    assert_eq!(delta.messages.iter().map(|m| m.best).collect::<Vec<_>>(), [1]);
    assert_eq!(table.find(B), Some(1));
    assert_eq!(table.message_of(1).map(|m| m.id.as_str()), Some("y"));
}

#[test]
fn copies_and_moves_report_all_files_of_the_message() {
    let mut table = Table::default();
    table.apply(vec![letter(OUT, "x", 1)], "a");
    assert_eq!(table.outbox().collect::<Vec<_>>(), [0]);
    let sent = "2026-03-11/sent/a.txt";
    let delta = table.apply(vec![gone(OUT), letter(sent, "x", 1)], "a");
    assert_eq!(delta.again, [0]);
    assert_eq!(delta.messages.len(), 1);
    assert_eq!((delta.messages[0].best, delta.messages[0].members.len()), (1, 1));
    assert!(table.outbox().next().is_none());
    let delta = table.apply(vec![letter(A, "x", 1)], "a");
    assert_eq!((delta.again, delta.messages[0].members.clone()), (vec![1], vec![1, 2]));
    let delta = table.apply(vec![gone(A)], "a");
    assert_eq!((delta.again, delta.messages[0].members.clone()), (vec![1, 2], vec![1]));
}

#[test]
fn a_twin_does_not_disturb_the_message_that_was_there() {
    let mut table = Table::default();
    table.apply(vec![letter(B, "x", 2)], "me");
    let delta = table.apply(vec![letter(A, "x", 1)], "me");
    assert_eq!(delta.again, [0u32; 0]);
    assert_eq!(delta.messages.len(), 1);
    assert!(delta.messages[0].id.contains(crate::model::TWIN));
    let before = (table.message_of(0).cloned(), table.message_of(1).cloned());
    let rows = table.rows().to_vec();
    table.restore(rows, "me");
    assert_eq!((table.message_of(0).cloned(), table.message_of(1).cloned()), before);
    let delta = table.apply(vec![gone(B)], "me");
    assert_eq!((delta.again, delta.messages.len()), (vec![0], 0), "the twin keeps its name");
}

#[test]
fn what_becomes_a_problem_is_reported_as_one_and_back() {
    let mut table = Table::default();
    table.apply(vec![letter(A, "x", 1)], "me");
    let state = State::Problem { reason: "is a FIFO".into(), incomplete: false };
    let delta = table.apply(vec![Change { state, ..gone(A) }], "me");
    assert_eq!((delta.again, delta.messages.len(), delta.rejected), (vec![0], 0, vec![0]));
    let delta = table.apply(vec![letter(A, "x", 1)], "me");
    assert_eq!((delta.again, delta.messages.len(), delta.rejected.len()), (vec![0], 1, 0));
}

proptest! {
    /// Whoever follows the reports knows at every moment what a look at all files would give.
    #[test]
    fn reports_add_up(steps in proptest::collection::vec((0u8..6, 0u8..3, 0u8..3, any::<bool>()), 1..40)) {
        let mut table = Table::default();
        // By source of the location: the id, as an index keeps it.
        let mut index: HashMap<String, u32> = HashMap::new();
        for (file, id, text, there) in steps {
            let folder = ["inbox", "sent", "outbox"][usize::from(file % 3)];
            let path = format!("2026-03-11/{folder}/{file}.txt");
            let change = if there { letter(&path, &id.to_string(), text) } else { gone(&path) };
            let delta = table.apply(vec![change], "me");
            let mut stale: HashSet<String> = index
                .iter()
                .filter(|(_, source)| delta.again.contains(source))
                .map(|(id, _)| id.clone())
                .collect();
            for message in &delta.messages {
                stale.remove(&message.id);
                index.insert(message.id.clone(), message.best);
            }
            for id in stale {
                index.remove(&id);
            }
            let truth: HashMap<String, u32> =
                table.messages.values().map(|m| (m.id.clone(), m.best)).collect();
            prop_assert_eq!(&index, &truth);
            prop_assert_eq!(table.messages.len(), truth.len(), "no id twice");
        }
    }
}
