use super::*;
use proptest::prelude::*;

/// An id, and a content that also finds files that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Sample {
    id: u64,
    content: u64,
}

impl FileFacts for Sample {
    const SLOTS: u8 = 2;

    fn slot_key(&self, slot: u8, is_message: bool) -> u64 {
        match slot {
            0 if is_message => self.id,
            0 => 0,
            _ => self.content,
        }
    }

    fn time(&self) -> i64 {
        0
    }

    fn hashes(&self) -> (u64, u64) {
        (self.id, self.content)
    }
}

fn sample() -> FileTable<Sample> {
    let mut t = FileTable::default();
    let inbox = t.folder_number("messages/inbox/alice_x");
    let sent = t.folder_number("messages/sent");
    for (n, folder) in [(0u64, inbox), (1, sent), (2, inbox)] {
        let number = t.add_file(folder, &format!("msg_{n}_a.json")).unwrap();
        t.update_row(number, |row, facts| {
            row.set_flag(FileFlags::MESSAGE, true);
            *facts = Sample { id: 9 + n / 2, content: 3 };
        });
    }
    t.qualifiers.insert(2, [7; 32]);
    t.last_texts.insert(1, "{\"text\"}".into());
    t
}

#[test]
fn a_file_is_small() {
    assert_eq!(size_of::<FileRow>(), 32);
}

#[test]
fn files_are_found_by_path_and_keys() {
    let mut t = sample();
    assert_eq!((t.files_with_key(0, 9), t.files_with_key(1, 3)), (vec![0, 1], vec![0, 1, 2]));
    assert_eq!(t.path(0).unwrap(), "messages/inbox/alice_x/msg_0_a.json");
    assert_eq!(t.find_path("messages/sent/msg_1_a.json"), Some(1));
    assert_eq!(t.find_file(1, "msg_2_a.json"), None);
    t.retire_number(0);
    assert_eq!((t.files_with_key(0, 9), t.files_with_key(1, 3)), (vec![1], vec![0, 1, 2]));
    assert_eq!(t.find_file(0, "msg_0_a.json"), None);
    assert_eq!(t.files_in(0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_number_is_never_used_again() {
    let mut t = sample();
    assert_eq!(t.renew_number(2), Some(3));
    assert_eq!(t.find_path("messages/inbox/alice_x/msg_2_a.json"), Some(3));
    assert!(t.row(2).unwrap().has_flag(FileFlags::GONE) && !t.row(3).unwrap().is_message());
    t.retire_number(3);
    assert_eq!(t.add_file(0, "msg_2_a.json"), Some(4));
}

#[test]
fn a_table_comes_back_as_it_was() {
    let mut t = sample();
    t.renew_number(0);
    let (back, basis) =
        FileTable::<Sample>::from_bytes(&t.to_bytes(*b"sample01", 42), *b"sample01").unwrap();
    assert_eq!((basis, &back.rows, &back.facts), (42, &t.rows, &t.facts));
    assert_eq!((&back.qualifiers, back.files_with_key(0, 9)), (&t.qualifiers, vec![1]));
    assert_eq!(back.last_texts, t.last_texts);
    assert_eq!(back.find_path("messages/inbox/alice_x/msg_0_a.json"), Some(3));
    assert_eq!(back.files_in(0).collect::<Vec<_>>(), [2, 3]);
    assert!(FileTable::<Sample>::from_bytes(&t.to_bytes(*b"sample01", 42), *b"sample02").is_none());
}

proptest! {
    #[test]
    fn damaged_tables_are_refused_or_sound(cut in 0usize..9, at in 0usize..600, byte: u8) {
        let mut saved = sample().to_bytes(*b"sample01", 1);
        if let Some(b) = saved.get_mut(at) {
            *b = byte;
        }
        saved.truncate(saved.len().saturating_sub(cut));
        if let Some((t, _)) = FileTable::<Sample>::from_bytes(&saved, *b"sample01") {
            prop_assert_eq!(cut, 0);
            for n in 0..t.len() as u32 {
                let path = t.path(n).unwrap();
                prop_assert!(path.ends_with(t.name(n)));
            }
        }
    }
}
