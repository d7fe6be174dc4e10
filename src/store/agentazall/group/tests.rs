use super::super::letter;
use super::*;
use proptest::prelude::*;

pub(in super::super) fn kept(from: &str, id: &str, text: u8) -> LetterFacts {
    let mut print = [text; 16];
    for (to, byte) in print.iter_mut().skip(1).zip(from.bytes().chain(id.bytes())) {
        *to = byte;
    }
    let mut kept = LetterFacts {
        text_hash: print,
        name_hash: letter::hash_fields(b'n', &[from.as_bytes(), id.as_bytes()]),
        file_hash: [text; 32],
        time: 1_000_000,
        ..LetterFacts::default()
    };
    kept.set_bit(LetterFacts::WHOLE, true);
    kept.set_bit(LetterFacts::MINE, from == "me");
    kept
}

/// A file at a path.
struct File(&'static str, LetterFacts, IdAssignment);

fn item<'a>(
    source: u32,
    path: &'a str,
    kept: &'a LetterFacts,
    held: IdAssignment,
) -> LetterCopy<'a> {
    let place = super::super::layout::LetterPath::parse(path).unwrap();
    let path = path.rsplit_once('/').unwrap();
    LetterCopy {
        source,
        path,
        folder: place.folder,
        facts: kept,
        assignment: held,
        is_id_taken: false,
    }
}

fn sort(files: &[File]) -> Vec<LetterGroup> {
    let items: Vec<LetterCopy<'_>> =
        (0u32..).zip(files).map(|(n, f)| item(n, f.0, &f.1, f.2)).collect();
    let mut out = group_copies(&items);
    out.sort_by_key(|m| m.members.clone());
    out
}

fn members(files: &[File]) -> Vec<Vec<u32>> {
    sort(files).into_iter().map(|m| m.members).collect()
}

fn signed(id: &str, form: DateOrigin, hours: i64) -> LetterFacts {
    let time = hours * 3_600_000;
    LetterFacts { key_hash: [1; 16], tie_hash: [9; 16], time, ..kept("a", id, 1) }
        .with_date_origin(form)
}

const IN1: &str = "2026-03-11/inbox/a1.txt";
const IN2: &str = "2026-03-11/inbox/a2.txt";
const IN3: &str = "2026-03-11/inbox/a3.txt";
const IN4: &str = "2026-03-11/inbox/a4.txt";
const OUT: &str = "2026-03-11/outbox/a1.txt";
const SENT: &str = "2026-03-11/sent/a1.txt";

#[test]
fn equal_files_in_two_folders_are_one_message() {
    let mut read = kept("me", "x", 1);
    read.set_bit(LetterFacts::READ, true);
    let made = sort(&[
        File(SENT, kept("me", "x", 1), IdAssignment::Unassigned),
        File(IN1, read, IdAssignment::Unassigned),
    ]);
    assert_eq!(made.len(), 1);
    assert!(made[0].to_me && made[0].from_me);
    assert_eq!((made[0].read, made[0].display_file), (Some(true), 1));
    let sent = sort(&[File(SENT, kept("me", "x", 1), IdAssignment::Unassigned)]);
    assert_eq!((sent[0].read, sent[0].to_me, sent[0].from_me), (None, false, true));
    // A message in my sent/ is mine under any name. A message that waits in my outbox may be another's.
    let renamed = sort(&[File(SENT, kept("eve", "x", 1), IdAssignment::Unassigned)]);
    assert!(renamed[0].from_me);
    let foreign = sort(&[File(OUT, kept("eve", "x", 1), IdAssignment::Unassigned)]);
    assert!(!foreign[0].from_me);
}

#[test]
fn one_id_and_two_texts_are_two_messages() {
    let files = [
        File(IN1, kept("a", "x", 1), IdAssignment::Unassigned),
        File(IN2, kept("a", "x", 2), IdAssignment::Unassigned),
    ];
    let made = sort(&files);
    assert_eq!(
        (made[0].assignment, made[1].assignment),
        (IdAssignment::Plain, IdAssignment::Hashed([2; 32]))
    );
    // The first message keeps the plain id. The other keeps its hash even if nobody else has the id.
    let later = sort(&[
        File(IN1, kept("a", "x", 1), IdAssignment::Unassigned),
        File(IN2, kept("a", "x", 2), IdAssignment::Plain),
    ]);
    assert_eq!(
        (later[0].assignment, later[1].assignment),
        (IdAssignment::Hashed([1; 32]), IdAssignment::Plain)
    );
    let alone = sort(&[File(IN2, kept("a", "x", 2), IdAssignment::Hashed([7; 32]))]);
    assert_eq!(alone[0].assignment, IdAssignment::Hashed([7; 32]));
}

#[test]
fn a_signature_of_another_key_makes_another_message() {
    let by = |key: u8| LetterFacts { key_hash: [key; 16], ..kept("a", "x", 1) };
    let files =
        [File(IN1, by(1), IdAssignment::Unassigned), File(IN2, by(2), IdAssignment::Unassigned)];
    assert_eq!(members(&files), [[0], [1]]);
    let files = [
        File(IN1, kept("a", "x", 1), IdAssignment::Unassigned),
        File(IN2, by(2), IdAssignment::Unassigned),
    ];
    let made = sort(&files);
    assert_eq!(
        (made.len(), made[0].display_file),
        (1, 1),
        "the copy that verifies shows the message"
    );
}

#[test]
fn a_signed_message_id_joins_whatever_the_envelope_says() {
    let link = |id: &str, text| {
        let mut kept = LetterFacts { key_hash: [1; 16], tie_hash: [5; 16], ..kept("a", id, text) };
        kept.set_bit(LetterFacts::LINK, true);
        kept
    };
    let mut part = link("x", 2);
    part.set_bit(LetterFacts::WHOLE, false);
    let made = sort(&[
        File(IN1, part, IdAssignment::Unassigned),
        File(IN2, link("x", 1), IdAssignment::Unassigned),
    ]);
    assert_eq!(
        (made.len(), made[0].display_file),
        (1, 1),
        "the file that is signed whole is shown"
    );
}

#[test]
fn copies_by_other_transports_pair_in_time_order() {
    let file =
        |path, id, form, hours| File(path, signed(id, form, hours), IdAssignment::Unassigned);
    let made = members(&[
        file(IN1, "l1", DateOrigin::Local, 10),
        file(IN2, "l2", DateOrigin::Local, 11),
        file(IN3, "r1", DateOrigin::Relay, 5),
        file(IN4, "r2", DateOrigin::Relay, 6),
    ]);
    assert_eq!(made, [[0, 2], [1, 3]]);
    let same_form =
        [file(IN1, "l1", DateOrigin::Local, 10), file(IN2, "l2", DateOrigin::Local, 10)];
    assert_eq!(members(&same_form), [[0], [1]]);
    let far = [file(IN1, "l1", DateOrigin::Local, 10), file(IN2, "r1", DateOrigin::Relay, 59)];
    assert_eq!(members(&far), [[0], [1]]);
    let three = [
        file(IN1, "m", DateOrigin::Mail, 10),
        file(IN2, "l", DateOrigin::Local, 12),
        file(IN3, "r", DateOrigin::Relay, 50),
    ];
    let made = sort(&three);
    assert_eq!((made.len(), made[0].leader), (1, 1), "the writer's own id");
    let undated = [file(IN1, "l", DateOrigin::Local, 10), file(IN2, "n", DateOrigin::Mail, 10)];
    assert_eq!(members(&undated), [[0, 1]]);
}

#[test]
fn a_known_message_keeps_its_id_when_another_copy_arrives() {
    let relay = File(IN1, signed("r", DateOrigin::Relay, 10), IdAssignment::Plain);
    let local = File(IN2, signed("l", DateOrigin::Local, 10), IdAssignment::Unassigned);
    assert_eq!(sort(&[relay, local])[0].leader, 0);
}

proptest! {
    #[test]
    fn every_file_is_in_one_message_and_no_key_twice(
        files in proptest::collection::vec(
            (0u8..3, 0u8..3, 0u8..3, 0u8..4, 0u8..2, 0i64..100), 0..12),
        turn in 0usize..12,
    ) {
        let kept: Vec<LetterFacts> = files.iter().map(|(id, text, key, form, copy, hours)| {
            let form = [DateOrigin::Local, DateOrigin::Relay, DateOrigin::Mail, DateOrigin::None][usize::from(*form)];
            let tied = *key > 0 && *copy > 0 && form != DateOrigin::None;
            let tie = if tied { [*text + 1; 16] } else { [0; 16] };
            let (time, key) = (hours * 3_600_000, [*key; 16]);
            LetterFacts { tie_hash: tie, key_hash: key, time, ..kept("a", &id.to_string(), *text) }.with_date_origin(form)
        }).collect();
        let paths: Vec<String> =
            (0..kept.len()).map(|n| format!("2026-03-11/inbox/{n:02}.txt")).collect();
        let mut items: Vec<LetterCopy<'_>> = (0u32..)
            .zip(kept.iter().zip(&paths))
            .map(|(n, (kept, path))| item(n, path, kept, IdAssignment::Unassigned))
            .collect();
        let mut made = group_copies(&items);
        let mut seen: Vec<u32> = made.iter().flat_map(|m| m.members.clone()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..items.len() as u32).collect::<Vec<_>>());
        let plain = made.iter().filter(|m| m.assignment == IdAssignment::Plain).count();
        let names: std::collections::HashSet<LetterHash> =
            made.iter().map(|m| kept[m.leader as usize].name_hash).collect();
        prop_assert_eq!(plain, names.len(), "each id is had by one message without a hash");
        // The order in which files are found makes no difference.
        let by = turn.min(items.len());
        items.rotate_left(by);
        let mut again = group_copies(&items);
        made.sort_by(|a, b| a.members.cmp(&b.members));
        again.sort_by(|a, b| a.members.cmp(&b.members));
        prop_assert_eq!(made, again);
    }
}
