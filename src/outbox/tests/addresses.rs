//! My addresses, groups, and messages that only say they are mine.

use super::*;

const DAN: &str = "dan@acme.crabmail.ai";
const HOME: &str = "me@home.example";

/// Returns a bed in which I have two addresses.
fn at_home() -> Bed {
    let folder = Folder { further_addresses: vec![HOME.to_owned()], ..Folder::default() };
    Bed { memory: memory(folder), ..Bed::new() }
}

fn group(name: &str, members: &[&str]) -> RecipientGroups {
    [(name.to_owned(), members.iter().map(|one| (*one).to_owned()).collect())].into()
}

#[test]
fn my_key_is_pinned_to_each_of_my_addresses() {
    let bed = at_home();
    send(&bed.open(), BOB, "hi\n").unwrap();
    let keyring = Keyring::open(&bed.path("state/keyring.json")).unwrap();
    let mine = KeyPair::new(&Seed::new(SEED)).public_key();
    for address in [ME, HOME] {
        assert_eq!(keyring.pinned_keys(address), [mine], "{address}");
    }
}

#[test]
fn none_of_my_addresses_gets_an_answer_to_all_or_mail_to_a_group() {
    let mut bed = at_home();
    bed.groups = group("team", &[BOB, HOME, ME]);
    bed.memory.receive(BOB, &[ME, "Me@Home.example", DAN], "m1", 10, None);
    let outbox = bed.open();
    let target = DraftTarget::ReplyAll { store: "amp".into(), from: BOB.into(), id: "m1".into() };
    send_as(&outbox, "m.reply-all", target, "yes\n").unwrap();
    assert_eq!(last(&bed).message.to, [BOB, DAN]);
    send(&outbox, "team", "hi\n").unwrap();
    assert_eq!(last(&bed).message.to, [BOB]);
}

#[test]
fn the_sender_of_an_answered_message_is_no_group() {
    let mut bed = Bed::new();
    bed.groups = group(BOB, &[DAN]);
    bed.memory.receive(BOB, &[ME], "m1", 10, None);
    let outbox = bed.open();
    let reply = || DraftTarget::Reply { store: "amp".into(), from: BOB.into(), id: "m1".into() };
    send_as(&outbox, "m.reply", reply(), "yes\n").unwrap();
    assert_eq!(last(&bed).message.to, [BOB]);
    send_as(&outbox, "m.reply", reply(), &format!("To: {BOB}\n\nyes\n")).unwrap();
    assert_eq!(last(&bed).message.to, [DAN]);
}

#[test]
fn a_message_that_only_says_it_is_mine_uses_up_no_key() {
    let bed = Bed::new();
    bed.memory.receive(ME, &[BOB], "forged", 10, None);
    bed.memory.folder.lock().change(0, |letter| {
        letter.message.time = Timestamp::now();
        letter.message.body = "hi".into();
        (letter.key, letter.is_my_name_unproven) = (Some("k".into()), true);
    });
    let outbox = bed.open();
    for _ in 0..2 {
        send(&outbox, BOB, "Idempotency-Key: k\n\nhi\n").unwrap();
        assert_eq!(bed.memory.sent().len(), 2, "mine is sent once");
    }
}
