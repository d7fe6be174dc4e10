use super::super::letter;
use super::*;
use proptest::prelude::*;

pub(in super::super) fn kept(from: &str, id: &str, text: u8) -> Kept {
    let mut print = [text; 16];
    for (to, byte) in print.iter_mut().skip(1).zip(from.bytes().chain(id.bytes())) {
        *to = byte;
    }
    let mut kept = Kept {
        text: print,
        name: letter::print(b'n', &[from.as_bytes(), id.as_bytes()]),
        file: [text; 32],
        time: 1_000_000,
        ..Kept::default()
    };
    kept.set(Kept::WHOLE, true);
    kept.set(Kept::MINE, from == "me");
    kept
}

/// A file at a path.
struct File(&'static str, Kept, Held);

fn item<'a>(source: u32, path: &'a str, kept: &'a Kept, held: Held) -> Item<'a> {
    let place = super::super::place::Place::parse(path).unwrap();
    let path = path.rsplit_once('/').unwrap();
    Item { source, path, folder: place.folder, kept, held, taken: false }
}

fn sort(files: &[File]) -> Vec<Message> {
    let items: Vec<Item<'_>> = (0u32..).zip(files).map(|(n, f)| item(n, f.0, &f.1, f.2)).collect();
    let mut out = messages(&items);
    out.sort_by_key(|m| m.members.clone());
    out
}

fn members(files: &[File]) -> Vec<Vec<u32>> {
    sort(files).into_iter().map(|m| m.members).collect()
}

fn signed(id: &str, form: Form, hours: i64) -> Kept {
    let time = hours * 3_600_000;
    Kept { key: [1; 16], tie: [9; 16], time, ..kept("a", id, 1) }.with_form(form)
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
    read.set(Kept::READ, true);
    let made = sort(&[File(SENT, kept("me", "x", 1), Held::No), File(IN1, read, Held::No)]);
    assert_eq!(made.len(), 1);
    assert!(made[0].to_me && made[0].from_me);
    assert_eq!((made[0].read, made[0].best), (Some(true), 1));
    let sent = sort(&[File(SENT, kept("me", "x", 1), Held::No)]);
    assert_eq!((sent[0].read, sent[0].to_me, sent[0].from_me), (None, false, true));
    // What I sent under another name I sent; what waits in my outbox may be somebody else's.
    let renamed = sort(&[File(SENT, kept("eve", "x", 1), Held::No)]);
    assert!(renamed[0].from_me);
    let foreign = sort(&[File(OUT, kept("eve", "x", 1), Held::No)]);
    assert!(!foreign[0].from_me);
}

#[test]
fn one_id_and_two_texts_are_two_messages() {
    let files = [File(IN1, kept("a", "x", 1), Held::No), File(IN2, kept("a", "x", 2), Held::No)];
    let made = sort(&files);
    assert_eq!((made[0].held, made[1].held), (Held::Plain, Held::Twin([2; 32])));
    // Who came first keeps the plain id, and a twin keeps its hash though nobody else has the id.
    let later =
        sort(&[File(IN1, kept("a", "x", 1), Held::No), File(IN2, kept("a", "x", 2), Held::Plain)]);
    assert_eq!((later[0].held, later[1].held), (Held::Twin([1; 32]), Held::Plain));
    let alone = sort(&[File(IN2, kept("a", "x", 2), Held::Twin([7; 32]))]);
    assert_eq!(alone[0].held, Held::Twin([7; 32]));
}

#[test]
fn a_signature_of_another_key_makes_another_message() {
    let by = |key: u8| Kept { key: [key; 16], ..kept("a", "x", 1) };
    let files = [File(IN1, by(1), Held::No), File(IN2, by(2), Held::No)];
    assert_eq!(members(&files), [[0], [1]]);
    let files = [File(IN1, kept("a", "x", 1), Held::No), File(IN2, by(2), Held::No)];
    let made = sort(&files);
    assert_eq!((made.len(), made[0].best), (1, 1), "the copy that verifies shows the message");
}

#[test]
fn a_signed_message_id_joins_whatever_the_envelope_says() {
    let link = |id: &str, text| {
        let mut kept = Kept { key: [1; 16], tie: [5; 16], ..kept("a", id, text) };
        kept.set(Kept::LINK, true);
        kept
    };
    let mut part = link("x", 2);
    part.set(Kept::WHOLE, false);
    let made = sort(&[File(IN1, part, Held::No), File(IN2, link("x", 1), Held::No)]);
    assert_eq!((made.len(), made[0].best), (1, 1), "the file that is signed whole is shown");
}

#[test]
fn copies_by_other_transports_pair_in_time_order() {
    let file = |path, id, form, hours| File(path, signed(id, form, hours), Held::No);
    let made = members(&[
        file(IN1, "l1", Form::Local, 10),
        file(IN2, "l2", Form::Local, 11),
        file(IN3, "r1", Form::Relay, 5),
        file(IN4, "r2", Form::Relay, 6),
    ]);
    assert_eq!(made, [[0, 2], [1, 3]]);
    let same_form = [file(IN1, "l1", Form::Local, 10), file(IN2, "l2", Form::Local, 10)];
    assert_eq!(members(&same_form), [[0], [1]]);
    let far = [file(IN1, "l1", Form::Local, 10), file(IN2, "r1", Form::Relay, 59)];
    assert_eq!(members(&far), [[0], [1]]);
    let three = [
        file(IN1, "m", Form::Mail, 10),
        file(IN2, "l", Form::Local, 12),
        file(IN3, "r", Form::Relay, 50),
    ];
    let made = sort(&three);
    assert_eq!((made.len(), made[0].leader), (1, 1), "the writer's own id");
    let undated = [file(IN1, "l", Form::Local, 10), file(IN2, "n", Form::Mail, 10)];
    assert_eq!(members(&undated), [[0, 1]]);
}

#[test]
fn a_known_message_keeps_its_id_when_another_copy_arrives() {
    let relay = File(IN1, signed("r", Form::Relay, 10), Held::Plain);
    let local = File(IN2, signed("l", Form::Local, 10), Held::No);
    assert_eq!(sort(&[relay, local])[0].leader, 0);
}

proptest! {
    #[test]
    fn every_file_is_in_one_message_and_no_key_twice(
        files in proptest::collection::vec(
            (0u8..3, 0u8..3, 0u8..3, 0u8..4, 0u8..2, 0i64..100), 0..12),
        turn in 0usize..12,
    ) {
        let kept: Vec<Kept> = files.iter().map(|(id, text, key, form, copy, hours)| {
            let form = [Form::Local, Form::Relay, Form::Mail, Form::None][usize::from(*form)];
            let tied = *key > 0 && *copy > 0 && form != Form::None;
            let tie = if tied { [*text + 1; 16] } else { [0; 16] };
            let (time, key) = (hours * 3_600_000, [*key; 16]);
            Kept { tie, key, time, ..kept("a", &id.to_string(), *text) }.with_form(form)
        }).collect();
        let paths: Vec<String> =
            (0..kept.len()).map(|n| format!("2026-03-11/inbox/{n:02}.txt")).collect();
        let mut items: Vec<Item<'_>> = (0u32..)
            .zip(kept.iter().zip(&paths))
            .map(|(n, (kept, path))| item(n, path, kept, Held::No))
            .collect();
        let mut made = messages(&items);
        let mut seen: Vec<u32> = made.iter().flat_map(|m| m.members.clone()).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..items.len() as u32).collect::<Vec<_>>());
        let plain = made.iter().filter(|m| m.held == Held::Plain).count();
        let names: std::collections::HashSet<Print> =
            made.iter().map(|m| kept[m.leader as usize].name).collect();
        prop_assert_eq!(plain, names.len(), "each id is had by one message without a hash");
        // The order in which files are found makes no difference.
        let by = turn.min(items.len());
        items.rotate_left(by);
        let mut again = messages(&items);
        made.sort_by(|a, b| a.members.cmp(&b.members));
        again.sort_by(|a, b| a.members.cmp(&b.members));
        prop_assert_eq!(made, again);
    }
}
