//! Which messages are one conversation, in which order they stand, and whom they name.

use std::collections::BTreeSet;

use crate::common::Bed;
use crate::common::samp::{self, T0, member, read_log};

/// The threads of the records in a log, in order.
fn threads(bed: &Bed, alias: &str) -> Vec<String> {
    read_log(&bed.store, alias).iter().map(|r| member(r, "thread").to_owned()).collect()
}

/// S250: texts that begin alike, to different people on one day, are different conversations, also when
/// they are written at once and after a remount; to the same people they are one. A thread that is
/// named, and an answer, join what they name.
#[test]
fn s250_a_new_conversation_joins_none_with_other_people() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let day = samp::today();
    m.ok("echo done > outbox/bob; printf 'done\nnot for bob\n' > outbox/carol; echo done > outbox/bob");
    m.ok("printf 'To: carol, bob\n\nDone!\n' > outbox/x");
    m.ok("printf 'To: bob, carol\n\ndone.\n' > outbox/x");
    let all = threads(&bed, "bar");
    let id = format!("{day}-bar-done");
    if samp::today() == day {
        let ids: Vec<String> =
            ["", "-2", "", "-3", "-3", "-3", "-3"].iter().map(|end| format!("{id}{end}")).collect();
        assert_eq!(all, ids);
    }
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 3, "{all:?}");
    let bob = bed.mount("bob");
    let text = bob.ok("cat transcripts/*");
    assert!(!text.contains("not for bob") && text.contains("Done!"), "{text}");
    assert_eq!(bob.ls("threads").len(), 2);
    // An answer makes nobody of it a stranger.
    bob.ok(&format!("echo fine > threads/{}/x", all[0]));
    assert_eq!(threads(&bed, "bob"), [all[0].as_str()]);
    m.umount();
    let m = bed.mount("bar");
    m.ok("echo done > outbox/bob; echo 'done for dave' > outbox/dave");
    m.ok(&format!("printf 'Thread: {}\n\ndone\n' > outbox/dave", all[0]));
    m.ok(&format!("echo '[thread:{}] done' > outbox/dave", all[1]));
    let more = &threads(&bed, "bar")[7..];
    assert_eq!(more[0], all[0]);
    assert_eq!(more[2..], [all[0].clone(), all[1].clone()]);
    // Now dave reads what bob does, so it is no conversation with bob alone any more.
    m.ok("echo done > outbox/bob");
    let last = threads(&bed, "bar").pop().unwrap();
    assert!(!all.contains(&last), "{last}");
}

/// S250: what somebody else wrote under the id that follows from my text keeps it.
#[test]
fn s250_of_another_writer() {
    let bed = Bed::new();
    let id = format!("{}-bar-plan", samp::today());
    samp::append(&bed.store, "eve", "mallory", &id, "between the two of us", T0);
    let m = bed.mount("bar");
    m.ok("echo plan > outbox/bob");
    assert_eq!(threads(&bed, "bar"), [format!("{id}-2")]);
    let bob = bed.mount("bob");
    assert!(!bob.ok("cat transcripts/*").contains("between"), "he sees what eve wrote");
}
