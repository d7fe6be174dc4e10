//! Tests of trust: the signatures that count, and the effects of changed trust.

mod reviews;

use crate::index::testing::{Bed, at, entry, listen, message, public, reply, signed, thread};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::{SignatureState, Timestamp};
use crate::store::FoundMessage;

fn with(from: &str, id: &str, claim: SignatureClaim) -> FoundMessage<'static> {
    FoundMessage { claim: Some(Box::new(claim)), ..message(from, id, 5) }
}

fn without_key(seed: u8) -> SignatureClaim {
    let SignatureClaim::Signed { signature, covered, scope, .. } =
        signed(seed, SignatureScope::Whole)
    else {
        panic!("it is signed")
    };
    SignatureClaim::Signed { key: None, signature, covered, scope }
}

fn state(index: &Index, id: &str) -> Option<SignatureState> {
    let entry = entry(index, id);
    let tables = index.read();
    entry.is_live().then(|| tables.trust.signature(&tables.messages, &entry))
}

fn valid(seed: u8) -> SignatureState {
    SignatureState::Valid(public(seed).fingerprint())
}

#[test]
fn a_part_counts_only_by_a_pinned_key_and_makes_no_pin() {
    let bed = Bed::new();
    bed.put(1, with("foo", "early", signed(1, SignatureScope::Part)));
    bed.put(2, with("foo", "whole", signed(1, SignatureScope::Whole)));
    bed.put(3, with("foo", "late", signed(1, SignatureScope::Part)));
    bed.put(4, with("foo", "other", signed(2, SignatureScope::Part)));
    let index = bed.open();
    let missing = Some(SignatureState::Missing(public(1).fingerprint()));
    // The key counts for earlier messages, too.
    for id in ["early", "whole", "late"] {
        assert_eq!(state(&index, id), Some(valid(1)), "{id}");
    }
    assert_eq!(state(&index, "other"), missing);
    assert_eq!(index.keyring().pinned_keys("foo"), [public(1)]);
    index.rejudge_changed();
    assert_eq!(state(&index, "other"), missing);
    index.keyring().trust_key("foo", Some(public(2))).unwrap();
    index.rejudge_changed();
    assert_eq!(state(&index, "other"), Some(valid(2)));
}

#[test]
fn a_part_is_not_signed_as_far_as_the_policy_asks() {
    let bed = Bed { unsigned: Unsigned::Refuse, ..Bed::new() };
    bed.put(1, with("foo", "a", signed(1, SignatureScope::Part)));
    let index = bed.open();
    assert_eq!(state(&index, "a"), None);
    index.keyring().trust_key("foo", Some(public(1))).unwrap();
    index.rejudge_changed();
    assert_eq!((state(&index, "a"), index.read().trust.rejects().count()), (Some(valid(1)), 0));
}

#[test]
fn a_key_does_not_become_somebody_elses_by_renaming() {
    let bed = Bed::new();
    bed.put(1, with("foo", "a", signed(1, SignatureScope::Whole)));
    bed.put(2, with("bar", "b", signed(1, SignatureScope::Renamed)));
    bed.put(3, with("new", "c", signed(2, SignatureScope::Renamed)));
    bed.put(4, with("", "d", signed(3, SignatureScope::Whole)));
    let index = bed.open();
    assert_eq!((state(&index, "a"), state(&index, "b")), (Some(valid(1)), None));
    assert_eq!(
        (state(&index, "c"), state(&index, "d")),
        (Some(valid(2)), Some(SignatureState::Unknown))
    );
    let reason = index.read().trust.rejects().next().map(|(_, r)| r.reason.clone()).unwrap();
    assert!(
        reason.contains("belongs to foo") && reason.contains("msgfs key trust bar"),
        "{reason}"
    );
    assert!(!index.keyring().is_pinned("bar") && !index.keyring().is_pinned(""));
    // This is the remedy in the reason.
    index.keyring().trust_key("bar", None).unwrap();
    index.rejudge_changed();
    assert_eq!((state(&index, "b"), index.read().trust.rejects().count()), (Some(valid(1)), 0));
}

#[test]
fn my_own_key_needs_no_pin() {
    let bed = Bed { my_key: Some(public(9)), unsigned: Unsigned::Refuse, ..Bed::new() };
    let mine =
        |id: &str, claim| FoundMessage { from_me: true, to_me: false, ..with("alias", id, claim) };
    bed.keyring().trust_key("alias", Some(public(1))).unwrap();
    bed.put(1, mine("a", signed(9, SignatureScope::Whole)));
    bed.put(2, mine("b", without_key(9)));
    bed.put(3, FoundMessage { claim: None, ..mine("c", without_key(9)) });
    bed.put(4, with("alias", "d", signed(9, SignatureScope::Whole)));
    bed.put(5, message("me", "e", 5));
    let index = bed.open();
    assert_eq!((state(&index, "a"), state(&index, "b")), (Some(valid(9)), Some(valid(9))));
    assert!(state(&index, "c").is_some(), "what I wrote is not refused for want of a signature");
    assert_eq!(state(&index, "d"), None, "it is signed with a key that is not pinned for alias");
    assert_eq!(state(&index, "e"), None, "anybody can write my name");
}

#[test]
fn each_of_my_addresses_is_mine() {
    let bed = Bed { my_key: Some(public(9)), ..Bed::new() };
    bed.folder.lock().further_addresses = vec!["me@home".to_owned()];
    bed.keyring().trust_key("me@home", Some(public(1))).unwrap();
    bed.put(1, with("me@home", "a", signed(9, SignatureScope::Whole)));
    bed.put(2, with("me@home", "b", signed(2, SignatureScope::Whole)));
    let index = bed.open();
    assert_eq!((state(&index, "a"), state(&index, "b")), (Some(valid(9)), None));
    let told = index.describe_others_as_me();
    assert!(told.len() == 1 && told[0].contains("(me@home)"), "{told:?}");
    assert!(told[0].contains(&public(2).fingerprint().to_string()), "{told:?}");
}

#[test]
fn a_message_that_only_says_it_is_mine_is_judged_like_others() {
    for unsigned in [Unsigned::Known, Unsigned::Refuse] {
        let bed = Bed { unsigned, ..Bed::new() };
        bed.keyring().trust_key("me", Some(public(9))).unwrap();
        let mine = |id: &str, is_my_name_unproven| FoundMessage {
            from_me: true,
            is_my_name_unproven,
            ..message("me", id, 5)
        };
        let claim = Some(Box::new(signed(9, SignatureScope::Whole)));
        bed.put(1, mine("proven", false));
        bed.put(2, mine("said", true));
        bed.put(3, FoundMessage { claim, ..mine("signed", true) });
        let index = bed.open();
        let is_shown = |id: &str| state(&index, id).is_some();
        let check = || {
            assert!(is_shown("proven") && !is_shown("said"), "{unsigned}");
            assert_eq!(state(&index, "signed"), Some(valid(9)), "{unsigned}");
        };
        check();
        index.keyring().trust_key("me", Some(public(8))).unwrap();
        index.rejudge_changed();
        check();
        // A copy in a place that proves it comes, and goes.
        for unproven in [false, true] {
            bed.folder.lock().edit(2, |found| found.is_my_name_unproven = unproven);
            index.refresh_store(0, false).unwrap();
            assert_eq!(is_shown("said"), !unproven, "{unsigned}");
        }
    }
}

#[test]
fn trust_in_a_key_joins_and_parts_threads_at_once() {
    let bed = Bed::new();
    bed.keyring().trust_key("bar", Some(public(1))).unwrap();
    bed.put(1, message("foo", "a", 5));
    bed.put(2, reply("bar", "b", 6, "a", 2));
    bed.put(3, reply("zed", "c", 7, "b", 3));
    bed.put(
        4,
        FoundMessage { claim: Some(Box::new(without_key(4))), ..reply("amp", "d", 8, "a", 4) },
    );
    let index = bed.open();
    assert_eq!((state(&index, "b"), state(&index, "d")), (None, Some(SignatureState::Unknown)));
    assert_eq!(["c", "d"].map(|id| thread(&index, id)), ["b", "d"]);
    let heard = listen(&index);
    index.keyring().trust_key("bar", Some(public(2))).unwrap();
    index.keyring().trust_key("amp", Some(public(4))).unwrap();
    let old = ["c", "d"].map(|id| (at(&index, id), entry(&index, id).thread()));
    index.rejudge_changed();
    assert_eq!(["b", "c", "d"].map(|id| thread(&index, id)), ["a", "a", "a"]);
    assert_eq!((state(&index, "b"), state(&index, "d")), (Some(valid(2)), Some(valid(4))));
    let changes = heard.lock().pop().unwrap();
    assert!(old.iter().all(|moved| changes.moved.contains(moved)), "{changes:?}");
    // The next process has the same threads.
    index.close();
    let index = bed.open();
    assert_eq!(["b", "c", "d"].map(|id| thread(&index, id)), ["a", "a", "a"]);
}

#[test]
fn a_signature_nobody_could_judge_is_refused_once_it_turns_out_wrong() {
    let bed = Bed::new();
    bed.put(1, with("amp", "a", without_key(4)));
    let index = bed.open();
    assert_eq!(state(&index, "a"), Some(SignatureState::Unknown));
    index.keyring().trust_key("amp", Some(public(5))).unwrap();
    index.rejudge_changed();
    assert_eq!((state(&index, "a"), index.read().marks.unread_count()), (None, 0));
    assert_eq!(index.read().trust.rejects().count(), 1);
    // The file is repaired.
    bed.put(1, with("amp", "a", without_key(5)));
    index.refresh_store(0, false).unwrap();
    assert_eq!((state(&index, "a"), index.read().marks.unread_count()), (Some(valid(5)), 1));
    assert_eq!(index.read().trust.rejects().count(), 0);
    // The file is damaged again.
    bed.put(1, with("amp", "a", without_key(4)));
    index.refresh_store(0, false).unwrap();
    assert_eq!((state(&index, "a"), index.read().marks.unread_count()), (None, 0));
    assert_eq!(index.read().trust.rejects().count(), 1);
}

#[test]
fn whoever_has_a_pinned_key_signs_everything_if_that_is_the_policy() {
    let bed = Bed { unsigned: Unsigned::Known, ..Bed::new() };
    bed.put(1, message("foo", "before", 1));
    bed.put(2, with("foo", "signed", signed(1, SignatureScope::Whole)));
    bed.put(3, message("foo", "after", 9));
    let index = bed.open();
    for _ in 0..2 {
        assert_eq!((state(&index, "before"), state(&index, "after")), (None, None));
        assert_eq!(index.read().trust.rejects().count(), 2);
        for source in [1, 3] {
            bed.folder.lock().edit(source, |f| f.at.len += 1);
        }
        index.refresh_store(0, false).unwrap();
    }
}

fn roles(unsigned: Unsigned) -> Bed {
    let bed = Bed { unsigned, ..Bed::new() };
    bed.folder.lock().roles = true;
    bed
}

#[test]
fn a_role_has_as_many_keys_as_it_has_holders_and_none_is_pinned() {
    let bed = roles(Unsigned::Known);
    bed.put(1, with("agent", "a", signed(1, SignatureScope::Whole)));
    bed.put(2, with("agent", "b", signed(2, SignatureScope::Whole)));
    bed.put(3, message("agent", "c", 6));
    bed.put(4, with("agent", "d", without_key(1)));
    bed.put(5, with("agent", "e", signed(1, SignatureScope::Part)));
    let SignatureClaim::Signed { key, covered, scope, .. } = signed(2, SignatureScope::Whole)
    else {
        panic!()
    };
    let wrong = SignatureClaim::Signed { key, signature: [7; 64], covered, scope };
    bed.put(6, with("agent", "f", wrong));
    bed.put(7, with("agent", "g", SignatureClaim::Malformed("it has no sig".into())));
    let index = bed.open();
    assert_eq!((state(&index, "a"), state(&index, "b")), (Some(valid(1)), Some(valid(2))));
    assert_eq!(state(&index, "c"), Some(SignatureState::None), "not missing, and not refused");
    assert_eq!(state(&index, "d"), Some(SignatureState::Unknown));
    assert_eq!(state(&index, "e"), Some(SignatureState::None));
    assert_eq!((state(&index, "f"), state(&index, "g")), (None, None));
    assert_eq!(index.read().trust.rejects().count(), 2);
    assert!(index.keyring().list_pins().is_empty());
    index.rejudge_changed();
    assert_eq!(state(&index, "b"), Some(valid(2)));
    // A pin of the same name, made for another store, has no effect here.
    index.keyring().trust_key("agent", Some(public(9))).unwrap();
    index.rejudge_changed();
    assert_eq!((state(&index, "a"), state(&index, "f")), (Some(valid(1)), None));
}

#[test]
fn a_policy_against_all_unsigned_mail_holds_for_roles_and_not_for_me() {
    let bed = roles(Unsigned::Refuse);
    bed.put(1, message("agent", "a", 5));
    bed.put(2, with("agent", "b", signed(1, SignatureScope::Whole)));
    bed.put(3, FoundMessage { from_me: true, to_me: false, ..message("user", "c", 7) });
    let index = bed.open();
    assert_eq!(state(&index, "a"), None);
    assert_eq!(state(&index, "b"), Some(valid(1)));
    assert_eq!(state(&index, "c"), Some(SignatureState::None));
}

#[test]
fn every_key_of_a_role_is_told_from_the_others() {
    let bed = roles(Unsigned::Accept);
    for seed in 1..=60u8 {
        let claim = signed(seed, SignatureScope::Whole);
        bed.put(u32::from(seed), with("agent", &format!("m{seed}"), claim));
    }
    let check = |index: &Index| {
        for seed in 1..=60u8 {
            assert_eq!(state(index, &format!("m{seed}")), Some(valid(seed)), "{seed}");
        }
    };
    let index = bed.open();
    check(&index);
    // Another holder signs the message of the 40th. Then the message loses its signature.
    let heard = listen(&index);
    for (claim, expected) in [
        (Some(signed(50, SignatureScope::Whole)), valid(50)),
        (None, SignatureState::Missing(public(50).fingerprint())),
        (Some(signed(40, SignatureScope::Whole)), valid(40)),
    ] {
        bed.folder.lock().edit(40, |f| f.claim = claim.map(Box::new));
        index.refresh_store(0, false).unwrap();
        assert_eq!(state(&index, "m40"), Some(expected));
        assert_eq!(heard.lock().pop().unwrap().redrawn, [at(&index, "m40")]);
    }
    index.close();
    check(&bed.open());
}

/// Returns the verdict on every message, rejected or not, by id.
fn judged(index: &Index) -> Vec<(String, Option<SignatureState>)> {
    let tables = index.read();
    let mut all: Vec<_> = tables
        .messages
        .all_entries()
        .map(|(_, e)| e)
        .filter(|e| !e.is_gone())
        .map(|e| {
            (
                tables.messages.id(e),
                e.is_live().then(|| tables.trust.signature(&tables.messages, e)),
            )
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[derive(Clone, Debug)]
enum Step {
    Put { file: u8, from: usize, secs: i64, claim: u8, seed: u8 },
    Remove(u8),
    Trust { who: usize, seed: u8 },
    Forget(usize),
    Open { cache: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..12u8, 0..2usize, 0..6i64, 0..6u8, 1..4u8);
    prop_oneof![
        8 => put.prop_map(|(file, from, secs, claim, seed)| Step::Put { file, from, secs, claim, seed }),
        1 => (0..12u8).prop_map(Step::Remove),
        1 => (0..2usize, 1..4u8).prop_map(|(who, seed)| Step::Trust { who, seed }),
        2 => (0..2usize).prop_map(Step::Forget),
        1 => any::<bool>().prop_map(|cache| Step::Open { cache }),
    ]
}

fn claimed(claim: u8, seed: u8) -> Option<Box<SignatureClaim>> {
    let claim = match claim {
        0 => return None,
        1 => without_key(seed),
        2 => signed(seed, SignatureScope::Part),
        3 => signed(seed, SignatureScope::Renamed),
        _ => signed(seed, SignatureScope::Whole),
    };
    Some(Box::new(claim))
}

const WHO: [&str; 2] = ["foo", "bar"];

fn take(bed: &Bed, index: Index, step: &Step) -> Index {
    match *step {
        Step::Put { file, from, secs, claim, seed } => {
            let id = format!("m{file}-{}", WHO[from]);
            let found =
                FoundMessage { claim: claimed(claim, seed), ..message(WHO[from], &id, secs) };
            bed.put(u32::from(file), found);
        }
        Step::Remove(file) => bed.folder.lock().remove(u32::from(file)),
        // Another process changes the keyring, as `msgfs key` does.
        Step::Trust { who, seed } => drop(bed.keyring().trust_key(WHO[who], Some(public(seed)))),
        Step::Forget(who) => {
            drop(bed.keyring().forget_address(WHO[who], index.keyring_digests(WHO[who])));
        }
        Step::Open { cache } => {
            index.close();
            if !cache {
                bed.drop_cache();
            }
            return bed.open();
        }
    }
    if index.keyring().reload_if_changed() {
        index.rejudge_changed();
    }
    index.refresh_store(0, false).unwrap();
    index
}

proptest! {
    /// For every order of arrivals and commands, the verdicts equal those of a new index over the store and the
    /// state folder.
    #[test]
    fn the_decision_follows_from_store_and_keyring(
        policy in prop_oneof![Just(Unsigned::Accept), Just(Unsigned::Known), Just(Unsigned::Refuse)],
        steps in proptest::collection::vec(step(), 1..30),
    ) {
        let bed = Bed { unsigned: policy, ..Bed::new() };
        let mut index = bed.open();
        for (n, step) in steps.iter().enumerate() {
            index = take(&bed, index, step);
            let other = Bed { unsigned: policy, folder: Arc::clone(&bed.folder), ..Bed::new() };
            for name in ["keyring.json", "prior"] {
                let file = bed.dir.path().join(name);
                if file.exists() {
                    std::fs::copy(file, other.dir.path().join(name)).unwrap();
                }
            }
            prop_assert_eq!(judged(&index), judged(&other.open()), "after step {}", n);
        }
    }
}

fn missing(seed: u8) -> SignatureState {
    SignatureState::Missing(public(seed).fingerprint())
}

/// Opens the index again, with the cache and without it, and asserts that the verdicts stay.
#[track_caller]
fn stays(bed: &Bed, index: Index) -> Index {
    let before = judged(&index);
    index.close();
    let index = bed.open();
    assert_eq!(judged(&index), before, "with the cache");
    index.close();
    bed.drop_cache();
    let index = bed.open();
    assert_eq!(judged(&index), before, "without the cache");
    index
}

#[test]
fn what_comes_after_the_pin_is_newer_whatever_its_date_says() {
    let bed = Bed::new();
    bed.put(1, message("foo", "old", 5));
    bed.put(2, message("foo", "ahead", 900));
    let index = bed.open();
    bed.put(3, with("foo", "signed", signed(1, SignatureScope::Whole)));
    index.refresh_store(0, false).unwrap();
    // These messages were there when the key was pinned.
    for id in ["old", "ahead"] {
        assert_eq!(state(&index, id), Some(SignatureState::None), "{id}");
    }
    let index = stays(&bed, index);
    bed.put(4, message("foo", "backdated", 1));
    index.refresh_store(0, false).unwrap();
    assert_eq!(state(&index, "backdated"), Some(missing(1)));
    let index = stays(&bed, index);
    // The same holds for messages that arrive while nothing is mounted, also after the signed message is gone.
    index.close();
    bed.put(5, message("foo", "unmounted", 2));
    bed.folder.lock().remove(3);
    let index = bed.open();
    for id in ["backdated", "unmounted"] {
        assert_eq!(state(&index, id), Some(missing(1)), "{id}");
    }
    assert_eq!(state(&index, "old"), Some(SignatureState::None));
    stays(&bed, index);
}

#[test]
fn at_the_first_look_the_dates_decide() {
    let bed = Bed::new();
    bed.put(1, message("foo", "before", 1));
    bed.put(
        2,
        FoundMessage {
            time: Timestamp::from_secs(7),
            ..with("foo", "s", signed(1, SignatureScope::Whole))
        },
    );
    bed.put(3, message("foo", "after", 9));
    let index = bed.open();
    assert_eq!(state(&index, "before"), Some(SignatureState::None));
    assert_eq!(state(&index, "after"), Some(missing(1)));
    let index = stays(&bed, index);
    bed.put(4, message("foo", "backdated", 1));
    index.refresh_store(0, false).unwrap();
    assert_eq!(state(&index, "backdated"), Some(missing(1)));
    stays(&bed, index);
}

#[test]
fn who_is_trusted_by_hand_signs_from_then_on() {
    let bed = Bed::new();
    bed.put(1, message("foo", "early", 9));
    let index = bed.open();
    for name in ["foo", "bar"] {
        index.keyring().trust_key(name, Some(public(1))).unwrap();
    }
    index.rejudge_changed();
    assert_eq!(state(&index, "early"), Some(SignatureState::None));
    bed.put(2, message("foo", "late", 1));
    bed.put(3, message("bar", "unknown before", 1));
    index.refresh_store(0, false).unwrap();
    for id in ["late", "unknown before"] {
        assert_eq!(state(&index, id), Some(missing(1)), "{id}");
    }
    let index = stays(&bed, index);
    index.keyring().forget_address("foo", index.keyring_digests("foo")).unwrap();
    index.rejudge_changed();
    assert_eq!(state(&index, "late"), Some(SignatureState::None));
    stays(&bed, index);
}
