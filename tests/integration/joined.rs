//! Order follows the time of writing, and a message to several recipients is one conversation for all of them.

use std::fs;

use serde_json::json;

use crate::amq::Queue;
use crate::common::agz::Tree;
use crate::common::amp::{Home, Msg};
use crate::common::samp::{self, Rec, T0, member, read_log};
use crate::common::{Bed, Mount, shown, soon};

/// Returns the texts in a folder of the mount, in the order of their names.
fn texts(m: &Mount, folder: &str) -> Vec<String> {
    shown::all(m, folder).iter().map(|s| s.body.trim().to_owned()).collect()
}

/// Returns the texts in all folders below one folder, in order.
fn texts_below(m: &Mount, folder: &str) -> Vec<String> {
    m.ls(folder).iter().flat_map(|name| texts(m, &format!("{folder}/{name}"))).collect()
}

/// S370: a text is sent many times in one second. A later message comes after all of these: in another thread, as
/// another text to the same reader, in another store, after a remount and from the command line. Answers of
/// others, and my answers to them, come after them, too.
#[test]
fn s370_what_is_written_later_stands_later() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    let samp = format!("[[store]]\nkind = \"samp\"\ndir = {:?}\n", bed.store.to_str().unwrap());
    bed.config(&format!("{samp}{}", home.store()));
    let m = bed.mount("bar");
    let before = samp::now();
    m.ok("for i in $(seq 12); do printf 'Via: samp\nThread: t\n\nping\n' > outbox/foo; done");
    m.ok("printf 'Via: samp\nThread: t\n\nother text\n' > outbox/foo");
    m.ok("printf 'Via: samp\nThread: u\n\nother thread\n' > outbox/foo");
    m.ok("printf 'Via: samp\n\nother reader\n' > outbox/carol");
    m.ok("printf 'Via: amp\n\nother store\n' > outbox/alice");
    let took = samp::now() - before;
    m.umount();
    let m = bed.mount("bar");
    m.ok("printf 'Via: samp\nThread: u\n\nafter a remount\n' > outbox/foo");
    m.umount();
    let out = bed.msgfs_out(&["--me", "bar", "send", "--via", "samp", "foo", "by command"]);
    assert!(out.ok(), "{out:?}");
    let m = bed.mount("bar");
    let mut said = vec!["ping"; 12];
    said.extend(["other text", "other thread", "other reader", "other store", "after a remount"]);
    said.push("by command");
    assert_eq!(texts_below(&m, "sent"), said);
    assert_eq!(texts(&m, "threads/t")[11..], ["ping", "other text"]);
    assert_eq!(texts(&m, "threads/u"), ["other thread", "after a remount"]);
    let foo = bed.mount("foo");
    said.retain(|text| !["other reader", "other store"].contains(text));
    assert_eq!(texts(&foo, "inbox"), said);
    foo.ok("f=$(ls threads/t/* | tail -1); echo answer > ${f%.txt}.reply; echo aside > outbox/bar");
    assert_eq!(texts_below(&foo, "sent"), ["answer", "aside"]);
    soon("both are there", || m.ls("inbox").len() == 2);
    m.ok("f=$(ls threads/t/* | tail -1); echo to the answer > ${f%.txt}.reply");
    assert_eq!(texts(&m, "threads/t")[12..], ["other text", "answer", "to the answer"]);
    // The dates of twelve messages in one second run eleven seconds ahead, and no more.
    let newest = read_log(&bed.store, "bar").pop().unwrap()["ts"].as_i64().unwrap();
    assert!(newest <= samp::now() + 12 && (took > 5 || newest >= before + 6), "{newest}");
}

/// S370: only answers follow a wrong clock, be it mine of yesterday or somebody else's. In the conversation they
/// are in order, also after a remount.
#[test]
fn s370_a_wrong_clock_is_not_followed() {
    // AMP warns of messages that are a minute ahead, so none of mine may go there.
    for ahead in [7200, 240] {
        is_not_followed(ahead);
    }
}

fn is_not_followed(ahead: i64) {
    let bed = Bed::new();
    let ahead = samp::now() + ahead;
    samp::append(&bed.store, "bar", "foo", "old", "by a wrong clock", ahead);
    samp::append(&bed.store, "foo", "bar", "t", "question", ahead);
    for n in 0..3 {
        let m = bed.mount("bar");
        m.ok(&format!("echo answer {n} > threads/t/x; echo other {n} > outbox/foo"));
        m.umount();
    }
    let m = bed.mount("bar");
    assert_eq!(texts(&m, "threads/t"), ["question", "answer 0", "answer 1", "answer 2"]);
    for rec in read_log(&bed.store, "bar").iter().filter(|r| member(r, "body").contains("other")) {
        assert!(rec["ts"].as_i64().unwrap() < ahead - 60, "{rec:?}");
    }
}

/// S371: an answer to a SAMP message to several recipients names the one id that all have. The id of any of the
/// records stands for the message, in names and in headers.
#[test]
fn s371_an_answer_to_any_record_answers_the_message() {
    let bed = Bed::new();
    let [foo, bar, carol] = ["foo", "bar", "carol"].map(|me| bed.mount(me));
    foo.ok("printf 'To: carol, bar, dave\nThread: t\n\nwho comes?\n' > outbox/x");
    soon("it is there", || bar.ls("inbox").len() == 1 && carol.ls("inbox").len() == 1);
    bar.ok("echo I do > inbox/$(ls inbox | sed s/.txt//).reply-all");
    let asked = read_log(&bed.store, "foo");
    let [to_carol, to_bar, to_dave] = [0, 1, 2].map(|n| member(&asked[n], "id"));
    let said = read_log(&bed.store, "bar");
    let named: Vec<[&str; 2]> =
        said.iter().map(|r| ["to", "re"].map(|name| member(r, name))).collect();
    assert_eq!(named, [["foo", to_carol], ["carol", to_carol], ["dave", to_carol]]);
    for m in [&foo, &bar, &carol] {
        soon("the answer is there", || m.ls("threads/t").len() == 2);
        let all = shown::all(m, "threads/t");
        assert_eq!(all[1].must("In-Reply-To"), format!("<{to_carol}@samp>"));
        assert_eq!(all[0].must("Message-ID"), all[1].must("In-Reply-To"));
        // Each of the ids leads to the message that is shown.
        let shown = m.cat(&format!("threads/t/{}", m.ls("threads/t")[0]));
        for id in [to_carol, to_bar, to_dave] {
            assert_eq!(m.cat(&format!("threads/t/{id}.txt")), shown);
            assert_eq!(m.cat(&format!("threads/t/{}.txt", &id[..8])), shown);
        }
    }
    // If carol was handed the id of somebody else's record, her answer names the message.
    carol.ok(&format!("echo me too > inbox/{}.reply", &to_bar[..8]));
    carol.ok(&format!("printf 'In-Reply-To: {to_dave}\nTo: bar\n\nand I\n' > outbox/x"));
    let said = read_log(&bed.store, "carol");
    let named: Vec<[&str; 3]> =
        said.iter().map(|r| ["to", "re", "thread"].map(|name| member(r, name))).collect();
    assert_eq!(named, [["foo", to_carol, "t"], ["bar", to_carol, "t"]]);
    // `sent/` has it once, under each id, and an unknown id leads to nothing.
    let day = format!("sent/{}", foo.ls("sent")[0]);
    assert!(foo.cat(&format!("{day}/{to_dave}.txt")).contains(&format!("<{to_carol}@samp>")));
    assert_eq!(foo.ls(&day).len(), 1);
    assert!(!carol.sh("cat threads/t/00000000.txt").ok());
}

/// S371: a list of recipients that somebody only claims leads nowhere else. An answer to such a message names that
/// message.
#[test]
fn s371_on_nobodys_word() {
    let bed = Bed::new();
    let rec = Rec::new("foo", "bar", "t", "for all of you", T0);
    let line = rec.line_with(&[("ms", json!(1)), ("rcpt", json!(["bar", "carol"]))]);
    let other = line.replace(&rec.id, "00112233445566ff");
    samp::append_raw(&samp::log(&bed.store, "foo"), other);
    let m = bed.mount("bar");
    m.ok("echo yes > inbox/00112233.reply-all");
    let re: Vec<String> =
        read_log(&bed.store, "bar").iter().map(|r| member(r, "re").to_owned()).collect();
    assert_eq!(re, ["00112233445566ff"; 2]);
}

/// The members of a conversation.
const ALL: [&str; 3] = ["alice", "bar", "carol"];

/// Lets each of [`ALL`] write to all others; the second to fourth message answers the one before it. `at` ends
/// their addresses. Each agent sees each message once and in order, in one thread of one name. Each answer names a
/// message that is shown there. The same holds after a remount without the cache.
#[track_caller]
fn all_of_them(bed: &Bed, at: &str, mount: impl Fn(&str) -> Mount) {
    let said = ["who comes?", "I do", "me too", "well then"];
    let mounts = ALL.map(&mount);
    mounts[0].ok(&format!(
        "printf 'To: bar{at}, carol{at}\nSubject: tonight\n\n{}\n' > outbox/x",
        said[0]
    ));
    for n in 1..said.len() {
        let m = &mounts[n % 3];
        let find = format!("grep -lx '{}' inbox/*", said[n - 1]);
        soon("what is answered is there", || m.sh(&find).stdout.lines().count() == 1);
        let file = m.ok(&find);
        let stem = file.trim().trim_end_matches(".txt");
        m.ok(&format!("echo '{}' > {stem}.reply-all", said[n]));
    }
    let thread = &mounts[0].ls("threads")[0];
    let see = |n: usize, m: &Mount| {
        soon("all of it is there", || texts_below(m, "threads").len() >= said.len());
        assert_eq!(m.ls("threads"), [thread.as_str()], "{}", ALL[n]);
        let all = shown::all(m, &format!("threads/{thread}"));
        assert_eq!(texts(m, &format!("threads/{thread}")), said, "{}", ALL[n]);
        let files = m.ls(&format!("threads/{thread}"));
        for (answer, answered) in all[1..].iter().zip(files) {
            let id =
                answer.must("In-Reply-To").trim_matches(['<', '>']).rsplit_once('@').unwrap().0;
            let [by_id, by_name] = [format!("{id}.txt"), answered]
                .map(|name| m.cat(&format!("threads/{thread}/{name}")));
            assert_eq!(by_id, by_name, "{}: {id}", ALL[n]);
            let own = shown::Shown::parse(&by_name);
            // To a message of mine to several recipients, each of them answers its own record, and I have all of
            // these.
            let mine = own.must("From").trim_end_matches(at).starts_with(ALL[n]);
            assert!(mine || own.must("Message-ID") == answer.must("In-Reply-To"), "{}", ALL[n]);
        }
        assert!(all.iter().all(|s| s.must("Signature").starts_with("valid ")), "{all:?}");
        let text = m.cat(&format!("transcripts/{thread}.txt"));
        assert!(said.iter().all(|one| text.matches(&format!("\n{one}\n")).count() == 1), "{text}");
        let read: Vec<&str> = (0..4).filter(|i| i % 3 != n).map(|i| said[i]).collect();
        assert_eq!(texts(m, "inbox"), read, "{}", ALL[n]);
        assert!(m.ls("rejected").is_empty());
        m.ok("find threads inbox transcripts archive sent -type f | xargs sha256sum")
    };
    let before: Vec<String> = mounts.iter().enumerate().map(|(n, m)| see(n, m)).collect();
    mounts.into_iter().for_each(Mount::umount);
    fs::remove_dir_all(bed.path("cache/msgfs")).unwrap();
    let after: Vec<String> = ALL.iter().enumerate().map(|(n, me)| see(n, &mount(me))).collect();
    assert_eq!(after, before);
}

/// S372: a message to several recipients is one conversation with the answers to all of them, for each of them.
#[test]
fn s372_samp() {
    let bed = Bed::new();
    all_of_them(&bed, "", |me| bed.mount(me));
}

/// S372: the same in AMP mailboxes, where each of them has a message of its own.
#[test]
fn s372_amp() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    home.agent("carol", "acme", 3);
    bed.config(&home.store());
    all_of_them(&bed, "", |me| bed.mount(me));
}

/// S372: nobody gets into the conversation by taking an id of it, with or without its list of recipients. An
/// answer of another program, which goes only to the sender, is in it.
#[test]
fn s372_amp_on_nobodys_word() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    home.agent("carol", "acme", 3);
    home.agent("eve", "acme", 4);
    bed.config(&home.store());
    let [bar, carol] = ["bar", "carol"].map(|me| bed.mount(me));
    bar.ok("printf 'To: alice, carol\n\nwho comes?\n' > outbox/x");
    let [to_alice, to_carol] = ["alice", "carol"].map(|name| home.only(name, "inbox").1);
    let address = |name: &str| format!("{name}@acme.aimaestro.local");
    for (n, seed, who, context) in [
        (1, 4, "eve", json!({})),
        (2, 4, "eve", to_alice["payload"]["context"].clone()),
        (3, 1, "bar", json!({})),
    ] {
        let payload = json!({"type": "status", "message": format!("odd {n}"), "context": context});
        let mut odd = Msg::new("s", "", n).between(&address(who), &address("carol"));
        odd.id = to_alice["envelope"]["id"].as_str().unwrap().to_owned();
        let file = home.place("carol", "inbox", &format!("{n}"), &odd.id);
        crate::common::agz::put(&file, odd.payload(&payload).signed(seed).text());
    }
    soon("all of it is there", || carol.ls("inbox").len() == 4);
    let threads = carol.ls("threads");
    let of_all: Vec<&String> =
        threads.iter().filter(|name| shown::has_ending(name, "all")).collect();
    assert_eq!(of_all.len(), 1, "{threads:?}");
    assert_eq!(texts(&carol, &format!("threads/{}", of_all[0])), ["who comes?"]);
    let answer = Msg::new("Re: s", "not me", 9).between(&address("carol"), &address("bar"));
    home.receive(&answer.answering(to_carol["envelope"]["id"].as_str().unwrap()).signed(3));
    soon("it is there", || bar.ls("inbox").len() == 1);
    assert_eq!(bar.ls("threads"), [of_all[0].as_str()]);
    let mut all = texts_below(&bar, "threads");
    all.sort();
    assert_eq!(all, ["not me", "who comes?"]);
}

/// S372: the same in AgentAZAll mailboxes, where all of them have one letter.
#[test]
fn s372_letters() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    for me in ALL {
        let address = format!("{me}@localhost");
        let store =
            if me == "bar" { tree.store() } else { tree.beside(&address, &json!({})).store() };
        fs::write(bed.path(format!("config/{me}.toml")), store).unwrap();
    }
    all_of_them(&bed, "@localhost", |me| {
        let config = bed.path(format!("config/{me}.toml"));
        bed.mount_at(&bed.path(format!("mnt-{me}")), me, &["--config", config.to_str().unwrap()])
    });
}

/// S372: the same in AMQ mailboxes, where all of them have one file.
#[test]
fn s372_amq() {
    let bed = Bed::new();
    bed.config(&Queue::new(&bed, &ALL).store());
    all_of_them(&bed, "", |me| bed.mount(me));
}
