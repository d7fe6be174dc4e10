use super::super::group::tests::kept;
use super::super::mail::id_of;
use super::*;
use crate::store::engine::files::Flags;
use proptest::prelude::*;

/// A mailbox without a disk.
#[derive(Default)]
struct Bed {
    table: Table,
    known: Known,
    touched: BTreeSet<u32>,
    step: Step,
}

impl Bed {
    /// A file comes, or another text in its place.
    fn put(&mut self, path: &str, id: &str, text: u8) {
        self.remove(path);
        let (folder, name) = path.rsplit_once('/').unwrap();
        let folder = self.table.folder_number(folder);
        let n = self.table.enrol(folder, name).unwrap();
        self.touched.insert(n);
        self.table.change(n, |row, facts| {
            row.set(Flags::MESSAGE, true);
            *facts = Kept { leader: Kept::UNSORTED, ..kept("a", id, text) };
        });
    }

    fn remove(&mut self, path: &str) {
        let Some(n) = self.table.find_path(path) else { return };
        let old = *self.table.facts(n).unwrap();
        self.step.leave(&old);
        if old.leader == n {
            self.step.lost.push((old, held(&self.table, n)));
        }
        self.table.retire(n);
        self.table.twins.remove(&n);
        self.touched.insert(n);
    }

    fn apply(&mut self) -> Delta {
        let (touched, step) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.step));
        self.known.apply(&mut self.table, &touched, step)
    }

    /// Every message by the file that shows it.
    fn all(&self) -> HashMap<u32, Message> {
        let of = |n| self.known.message_of(&self.table, n).unwrap();
        self.table.messages().map(|(n, ..)| of(n)).map(|m| (m.best, m)).collect()
    }
}

const A: &str = "2026-03-11/inbox/a.txt";
const B: &str = "2026-03-11/inbox/b.txt";
const OUT: &str = "2026-03-11/outbox/a.txt";
const SENT: &str = "2026-03-11/sent/a.txt";

#[test]
fn a_new_file_alone_reports_itself_only() {
    let mut bed = Bed::default();
    bed.put(A, "x", 1);
    bed.apply();
    bed.put(B, "y", 1);
    let delta = bed.apply();
    assert_eq!(delta.again, [0u32; 0]);
    assert_eq!(delta.messages.iter().map(|m| m.best).collect::<Vec<_>>(), [1]);
}

#[test]
fn copies_and_moves_report_all_files_of_the_message() {
    let mut bed = Bed::default();
    bed.put(OUT, "x", 1);
    bed.apply();
    bed.remove(OUT);
    bed.put(SENT, "x", 1);
    let delta = bed.apply();
    assert_eq!((delta.messages.len(), delta.messages[0].members.clone()), (1, vec![1]));
    bed.put(A, "x", 1);
    let delta = bed.apply();
    assert_eq!((delta.again, delta.messages[0].members.clone()), (vec![1], vec![1, 2]));
    bed.remove(A);
    let delta = bed.apply();
    assert_eq!((delta.again, delta.messages[0].members.clone()), (vec![1, 2], vec![1]));
}

#[test]
fn a_twin_does_not_disturb_the_message_that_was_there() {
    let mut bed = Bed::default();
    bed.put(B, "x", 2);
    bed.apply();
    bed.put(A, "x", 1);
    let delta = bed.apply();
    assert_eq!(delta.again, [0u32; 0]);
    assert_eq!(delta.messages.len(), 1);
    assert!(matches!(delta.messages[0].held, Held::Twin(_)));
    let before = bed.all();
    let saved = bed.table.save(*b"test0001", 0);
    bed.table = Table::restore(&saved, *b"test0001").unwrap().0;
    bed.known.restore(&bed.table);
    assert_eq!(bed.all(), before);
    bed.remove(B);
    assert_eq!(bed.apply().messages, [], "the twin keeps its name");
    assert!(matches!(bed.all()[&1].held, Held::Twin(_)));
}

proptest! {
    /// Whoever follows the reports knows at every moment what a look at all files would give.
    #[test]
    fn reports_add_up(steps in proptest::collection::vec((0u8..6, 0u8..3, 0u8..3, any::<bool>()), 1..40)) {
        let mut bed = Bed::default();
        // By id: the file that shows the message, as an index keeps it.
        let mut index: HashMap<String, u32> = HashMap::new();
        let mut ids: HashMap<u32, u8> = HashMap::new();
        for (file, id, text, there) in steps {
            let folder = ["inbox", "sent", "outbox"][usize::from(file % 3)];
            let path = format!("2026-03-11/{folder}/{file}.txt");
            if there { bed.put(&path, &id.to_string(), text) } else { bed.remove(&path) }
            let touched = bed.touched.clone();
            ids.extend(bed.table.find_path(&path).map(|n| (n, id)));
            let delta = bed.apply();
            let again = |n: &u32| delta.again.contains(n) || touched.contains(n);
            let name = |m: &Message| id_of(&ids[&m.leader].to_string(), m.held);
            let mut stale: HashSet<String> =
                index.iter().filter(|(_, n)| again(n)).map(|(id, _)| id.clone()).collect();
            for message in &delta.messages {
                stale.remove(&name(message));
                index.insert(name(message), message.best);
            }
            for id in stale {
                index.remove(&id);
            }
            let all = bed.all();
            let truth: HashMap<String, u32> = all.values().map(|m| (name(m), m.best)).collect();
            prop_assert_eq!(&index, &truth);
            prop_assert_eq!(all.len(), truth.len(), "no id twice");
        }
    }
}
