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
