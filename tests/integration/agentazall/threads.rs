//! Threads in a format that has none.

use crate::agentazall::with;
use crate::common::agz::{self, Letter, ME};
use crate::common::samp::{self, key};
use crate::common::shown::{self, message};

/// S114: equal subjects among the same people are one thread, whatever prefix they have. Other people or another
/// subject make another thread.
#[test]
fn s114_subject_and_people() {
    let l = |from: &str, subject: &str, n| Letter::new(from, subject, "x", n);
    let a = l("alice@localhost", "Release plan", 1);
    let b = l("alice@localhost", "Re: release  PLAN", 2);
    let c = l(ME, "RE: Fwd: Release plan", 3).set("To", "alice@localhost");
    let other = l("carol@localhost", "Release plan", 4);
    let off = l("alice@localhost", "Release", 5);
    let (_bed, _tree, m) = with(|_, tree| {
        for x in [&a, &b, &other, &off] {
            tree.receive(x);
        }
        tree.put(agz::DAY, "sent", c.id(), c.text());
    });
    let thread = message(&m, a.id()).must("Thread").to_owned();
    assert_eq!(
        m.ls(&format!("threads/{}", samp::thread_dir(&thread))),
        [a.name(1), b.name(2), c.name(3)]
    );
    for x in [&other, &off] {
        assert_ne!(message(&m, x.id()).must("Thread"), thread);
    }
    assert_eq!(m.ls("threads").len(), 3);
    assert_eq!(m.ls("transcripts").len(), 3);
}

/// S114: a signed link joins messages whatever their subjects are, also if the parent arrives later. An unsigned
/// link joins nothing.
#[test]
fn s114_signed_links() {
    let root = Letter::new("alice@localhost", "the question", "why", 1).sealed(&key(1), &[]);
    let answer = Letter::new("carol@localhost", "another subject", "because", 2)
        .sealed(&key(2), &[("In-Reply-To", root.id())]);
    let fake = Letter::new("eve@localhost", "third", "me too", 3).set("In-Reply-To", root.id());
    let broken = Letter::new("eve@localhost", "fourth", "me three", 4);
    let claimed = agz::block("me three", &key(4), &[format!("In-Reply-To: {}", root.id())]);
    let broken = broken.body(&claimed);
    let (bed, tree, m) = with(|_, tree| {
        for x in [&answer, &fake, &broken] {
            tree.receive(x);
        }
    });
    assert_eq!(m.ls("threads").len(), 3);
    tree.receive(&root);
    m.appears(&format!("inbox/{}", root.name(1)));
    let thread = message(&m, root.id()).must("Thread").to_owned();
    let dir = format!("threads/{}", samp::thread_dir(&thread));
    assert_eq!(m.ls(&dir), [root.name(1), answer.name(2)]);
    let got = message(&m, answer.id());
    assert_eq!(
        (got.must("Thread"), got.must("In-Reply-To")),
        (thread.as_str(), format!("<{}@agentazall>", root.id()).as_str())
    );
    assert_eq!(
        m.ls("threads").len(),
        3,
        "the folder the answer had alone is gone: {:?}",
        m.ls("threads")
    );
    assert_eq!(m.ls("transcripts").len(), 3);
    for x in [&fake, &broken] {
        assert_eq!(message(&m, x.id()).get("In-Reply-To"), None);
    }
    let listed = m.ok("ls threads/*");
    m.umount();
    assert_eq!(bed.mount("bar").ok("ls threads/*"), listed);
}

/// S114, S109: an answer that is written in a thread carries a signed link and one `Re: `, and is in that thread.
/// The same holds for the answer to the answer.
#[test]
fn s114_answers() {
    let first = Letter::new("alice@localhost", "plan", "shall we?", 1).sealed(&key(1), &[]);
    let (_bed, tree, m) = with(|_, tree| {
        tree.receive(&first);
        std::fs::create_dir_all(tree.mailbox("alice@localhost")).unwrap();
    });
    let thread = message(&m, first.id()).must("Thread").to_owned();
    let dir = format!("threads/{}", samp::thread_dir(&thread));
    m.ok(&format!("echo 'we shall' > '{dir}/answer'"));
    let sent = agz::verify(&tree.only("alice@localhost", "inbox").1);
    assert_eq!((sent.get("To"), sent.get("Subject")), ("alice@localhost", "Re: plan"));
    assert_eq!(sent.meta("In-Reply-To"), first.id());
    assert_eq!(m.ls(&dir).len(), 2);
    let again = Letter::new("alice@localhost", "Re: plan", "good", 2)
        .sealed(&key(1), &[("In-Reply-To", sent.get("Message-ID"))]);
    tree.receive(&again);
    m.appears(&format!("inbox/{}", again.name(2)));
    assert_eq!(m.ls(&dir).len(), 3);
    m.ok(&format!("echo ok > 'archive/2026-04-24/{}'", again.name(2).replace(".txt", ".reply")));
    let all = tree.list("alice@localhost", "inbox");
    assert_eq!(all.len(), 2);
    let subjects = m.ok(&format!("grep -h '^Subject:' '{dir}'/*"));
    assert_eq!(
        subjects,
        "Subject: plan\nSubject: Re: plan\nSubject: Re: plan\nSubject: Re: plan\n"
    );
    let whole = m.cat(&format!("transcripts/{}.txt", samp::thread_dir(&thread)));
    for text in ["shall we?", "we shall", "good", "ok"] {
        assert!(whole.contains(text), "{whole}");
    }
    assert_eq!(shown::rejected(&m), [""; 0]);
}
