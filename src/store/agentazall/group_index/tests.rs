use super::super::format::compose_id;
use super::super::group::tests::kept;
use super::*;
use crate::store::engine::files::FileFlags;
use proptest::prelude::*;

/// A mailbox without a disk.
#[derive(Default)]
struct Bed {
    table: LetterTable,
    known: GroupIndex,
    touched: BTreeSet<u32>,
    step: LetterChanges,
}

impl Bed {
    /// Puts a file, or another text in its place.
    fn put(&mut self, path: &str, id: &str, text: u8) {
        self.put_letter(path, kept("a", id, text));
    }

    fn put_letter(&mut self, path: &str, letter: LetterFacts) {
        self.remove(path);
        let (folder, name) = path.rsplit_once('/').unwrap();
        let folder = self.table.folder_number(folder);
        let n = self.table.add_file(folder, name).unwrap();
        self.touched.insert(n);
        self.table.update_row(n, |row, facts| {
            row.set_flag(FileFlags::MESSAGE, true);
            *facts = LetterFacts { leader: LetterFacts::UNSORTED, ..letter };
        });
    }

    fn remove(&mut self, path: &str) {
        let Some(n) = self.table.find_path(path) else { return };
        let old = *self.table.facts(n).unwrap();
        self.step.note_change(&old);
        if old.leader == n {
            self.step.lost.push((old, read_assignment(&self.table, n)));
        }
        self.table.retire_number(n);
        self.table.qualifiers.remove(&n);
        self.touched.insert(n);
    }

    fn apply(&mut self) -> GroupDelta {
        let (touched, step) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.step));
        self.known.apply_changes(&mut self.table, &touched, step)
    }

    /// Returns every message by the file that shows it.
    fn all(&self) -> HashMap<u32, LetterGroup> {
        let of = |n| self.known.find_group(&self.table, n).unwrap();
        self.table.messages().map(|(n, ..)| of(n)).map(|m| (m.display_file, m)).collect()
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
    assert_eq!(delta.withdrawn_files, [0u32; 0]);
    assert_eq!(delta.groups.iter().map(|m| m.display_file).collect::<Vec<_>>(), [1]);
}

#[test]
fn copies_and_moves_report_all_files_of_the_message() {
    let mut bed = Bed::default();
    bed.put(OUT, "x", 1);
    bed.apply();
    bed.remove(OUT);
    bed.put(SENT, "x", 1);
    let delta = bed.apply();
    assert_eq!((delta.groups.len(), delta.groups[0].members.clone()), (1, vec![1]));
    bed.put(A, "x", 1);
    let delta = bed.apply();
    assert_eq!((delta.withdrawn_files, delta.groups[0].members.clone()), (vec![1], vec![1, 2]));
    bed.remove(A);
    let delta = bed.apply();
    assert_eq!((delta.withdrawn_files, delta.groups[0].members.clone()), (vec![1, 2], vec![1]));
}

#[test]
fn a_namesake_does_not_disturb_the_message_that_was_there() {
    let mut bed = Bed::default();
    bed.put(B, "x", 2);
    bed.apply();
    bed.put(A, "x", 1);
    let delta = bed.apply();
    assert_eq!(delta.withdrawn_files, [0u32; 0]);
    assert_eq!(delta.groups.len(), 1);
    assert!(matches!(delta.groups[0].assignment, IdAssignment::Hashed(_)));
    let before = bed.all();
    let saved = bed.table.to_bytes(*b"test0001", 0);
    bed.table = LetterTable::from_bytes(&saved, *b"test0001").unwrap().0;
    bed.known.restore_groups(&bed.table);
    assert_eq!(bed.all(), before);
    bed.remove(B);
    assert_eq!(bed.apply().groups, [], "the namesake keeps its name");
    assert!(matches!(bed.all()[&1].assignment, IdAssignment::Hashed(_)));
}

/// Returns letter number `n` of many with one From and id, signed by one key in one way.
fn namesake(n: u32) -> LetterFacts {
    let mut letter = LetterFacts { key_hash: [1; 16], tie_hash: [9; 16], ..kept("a", "x", 1) };
    letter.text_hash[..4].copy_from_slice(&n.to_le_bytes());
    letter.file_hash[..4].copy_from_slice(&n.to_le_bytes());
    LetterFacts { time: letter.time + i64::from(n), ..letter }
}

/// Checks that the work does not grow with the square of the number of letters: otherwise this takes minutes.
#[test]
fn very_many_letters_with_one_id_are_grouped() {
    const LETTERS: u32 = 8_000;
    let inbox = |n: u32| format!("2026-03-11/inbox/{n}.txt");
    let mut bed = Bed::default();
    (0..LETTERS).for_each(|n| bed.put_letter(&inbox(n), namesake(n)));
    let groups = bed.apply().groups;
    assert_eq!(groups.len(), LETTERS as usize);
    for message in &groups {
        let expected = match message.leader {
            0 => IdAssignment::Plain,
            n => IdAssignment::Hashed(namesake(n).file_hash),
        };
        assert_eq!(message.assignment, expected);
    }
    // One more disturbs no other.
    bed.put_letter(&inbox(LETTERS), namesake(LETTERS));
    let delta = bed.apply();
    assert_eq!((delta.groups.len(), delta.withdrawn_files.len()), (1, 0));
    // All move to another folder, and keep their ids.
    for n in 0..=LETTERS {
        bed.remove(&inbox(n));
        bed.put_letter(&format!("2026-03-11/sent/{n}.txt"), namesake(n));
    }
    let moved = bed.apply().groups;
    assert_eq!(moved.len(), LETTERS as usize + 1);
    let plain = |m: &&LetterGroup| m.assignment == IdAssignment::Plain;
    let plain: Vec<u32> = moved.iter().filter(plain).map(|m| m.leader).collect();
    assert_eq!(plain, [LETTERS + 1], "the file that took the place of the first");
}

#[test]
fn very_many_copies_of_one_letter_are_one_message() {
    const COPIES: u32 = 10_000;
    let mut bed = Bed::default();
    for round in 1..=2 {
        let copies = (0..COPIES).map(|n| format!("2026-03-11/inbox/{round}_{n}.txt"));
        copies.for_each(|path| bed.put_letter(&path, namesake(0)));
        let groups = bed.apply().groups;
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].members.len(), (round * COPIES) as usize);
    }
}

proptest! {
    /// Checks that a follower of the reports knows at every moment the result of a scan of all files.
    #[test]
    fn reports_add_up(steps in proptest::collection::vec((0u8..6, 0u8..3, 0u8..3, any::<bool>()), 1..40)) {
        let mut bed = Bed::default();
        // The key is the id, the value the file that shows the message, as an index keeps it.
        let mut index: HashMap<String, u32> = HashMap::new();
        let mut ids: HashMap<u32, u8> = HashMap::new();
        for (file, id, text, there) in steps {
            let folder = ["inbox", "sent", "outbox"][usize::from(file % 3)];
            let path = format!("2026-03-11/{folder}/{file}.txt");
            if there { bed.put(&path, &id.to_string(), text) } else { bed.remove(&path) }
            let touched = bed.touched.clone();
            ids.extend(bed.table.find_path(&path).map(|n| (n, id)));
            let delta = bed.apply();
            let again = |n: &u32| delta.withdrawn_files.contains(n) || touched.contains(n);
            let name = |m: &LetterGroup| compose_id(&ids[&m.leader].to_string(), m.assignment);
            let mut stale: HashSet<String> =
                index.iter().filter(|(_, n)| again(n)).map(|(id, _)| id.clone()).collect();
            for message in &delta.groups {
                stale.remove(&name(message));
                index.insert(name(message), message.display_file);
            }
            for id in stale {
                index.remove(&id);
            }
            let all = bed.all();
            let truth: HashMap<String, u32> = all.values().map(|m| (name(m), m.display_file)).collect();
            prop_assert_eq!(&index, &truth);
            prop_assert_eq!(all.len(), truth.len(), "no id twice");
        }
    }
}
