//! Replies: to one message, to a thread, and with several possible recipients.

use crate::common::agz::{self, Letter, Tree};
use crate::common::amp::{Home, Msg};
use crate::common::fixtures::mounted_three;
use crate::common::samp::{self, T0, member, only, read_log};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, soon};

/// S51: `<name>.reply` answers that message, wherever the message is. The answer inherits the thread.
#[test]
fn s51_reply_beside() {
    let (bed, m, recs, names) = mounted_three();
    let stem = |n: &str| n.trim_end_matches(".txt").to_owned();
    for (i, place) in
        [format!("inbox/{}", names[1]), recs[1].archived(0), format!("threads/lunch/{}", names[1])]
            .iter()
            .enumerate()
    {
        m.ok(&format!("echo 'answer {i}' > '{}.reply'", stem(place)));
        let all = read_log(&bed.store, "bar");
        assert_eq!(all.len(), i + 1);
        let r = &all[i];
        assert_eq!((member(r, "to"), member(r, "thread")), ("carol", "lunch"), "{place}");
        assert_eq!(member(r, "body"), format!("answer {i}"));
        assert_eq!(member(r, "re"), recs[1].id, "{place}");
    }
    let sent = m.ls(&format!("sent/{}", samp::today()));
    let text = m.cat(&format!("sent/{}/{}", samp::today(), sent[0]));
    assert!(text.contains(&format!("\nIn-Reply-To: <{}@samp>\n", recs[1].id)), "{text}");
}

/// S51: an answer keeps `[thread:x]` as text, because its thread is given.
#[test]
fn s51_no_override_in_replies() {
    let (bed, m, recs, _) = mounted_three();
    let beside = recs[0].archived(0).replace(".txt", ".reply");
    m.ok(&format!("echo '[thread:other] text' > '{beside}'"));
    let r = only(&bed.store, "bar");
    assert_eq!((member(&r, "thread"), member(&r, "body")), ("plan", "[thread:other] text"));
}

/// S1173: an answer goes to the sender, also if a group has that name. In a header the name is the group.
#[test]
fn s1173_a_sender_called_like_a_group() {
    let bed = Bed::new();
    bed.config("[groups]\nfoo = [\"bob\", \"carol\"]\n");
    let answered = samp::append(&bed.store, "foo", "bar", "t", "hello", T0);
    let m = bed.mount("bar");
    let reply = answered.archived(0).replace(".txt", ".reply");
    m.ok(&format!("echo yes > '{reply}'"));
    assert_eq!(member(&only(&bed.store, "bar"), "to"), "foo");
    m.ok(&format!("printf 'To: foo\\n\\nto all\\n' > '{reply}'"));
    let all = read_log(&bed.store, "bar");
    let to: Vec<&str> = all.iter().map(|rec| member(rec, "to")).collect();
    assert_eq!(to, ["foo", "bob", "carol"]);
}

/// S51, S224: a reply file is empty. Beside a message that does not exist there is no reply file.
#[test]
fn s51_empty() {
    let (bed, m, _, names) = mounted_three();
    let reply = format!("inbox/{}", names[0].replace(".txt", ".reply"));
    assert!(m.sh(&format!("cat '{reply}'")).stdout.is_empty());
    let out = m.sh("echo x > inbox/20200101T000000.000Z-foo-00000000.reply");
    assert!(!out.ok(), "{out:?}");
    assert!(read_log(&bed.store, "bar").is_empty());
}

/// S52: any new name in a thread answers the newest message to me, not the newest of all.
#[test]
fn s52_thread_reply() {
    let bed = Bed::new();
    samp::append(&bed.store, "foo", "bar", "plan", "old", T0);
    let newest = samp::append(&bed.store, "carol", "bar", "plan", "newest to bar", T0 + 10);
    samp::append(&bed.store, "bar", "dave", "plan", "mine, newer still", T0 + 20);
    let m = bed.mount("bar");
    m.ok("echo 'to carol' > threads/plan/answer.txt");
    let r = read_log(&bed.store, "bar").remove(1);
    assert_eq!((member(&r, "to"), member(&r, "thread")), ("carol", "plan"));
    assert_eq!(member(&r, "re"), newest.id);
    assert_eq!(m.ls("threads/plan").len(), 4, "the draft's name is not in the listing");
}

/// S1216: a save or `mv` onto a message in a thread's folder is EPERM and sends nothing, by each of its names.
#[test]
fn s1216_saving_a_message() {
    let (bed, m, recs, names) = mounted_three();
    let message = format!("threads/lunch/{}", names[1]);
    let (text, id) = (m.cat(&message), &recs[1].id);
    let saves =
        [message.clone(), format!("threads/lunch/{id}"), format!("threads/lunch/{}", &id[..8])];
    let mut scripts = vec![format!("sed -i s/e/x/ {message}")];
    for to in saves {
        scripts.push(format!("echo x > threads/lunch/a.tmp; mv -f threads/lunch/a.tmp {to}"));
        scripts.push(format!("echo x > ../a; mv -f ../a {to}"));
    }
    for script in scripts {
        let out = m.sh(&script);
        assert!(!out.ok() && out.stderr.contains("not permitted"), "{script}: {out:?}");
    }
    assert_eq!(m.cat(&message), text);
    m.ok("mv threads/lunch/a.tmp threads/lunch/new");
    assert_eq!(member(&only(&bed.store, "bar"), "body"), "x", "only the new name is an answer");
}

/// S52: in a thread that only I wrote to, the answer goes to the recipient of my last message.
#[test]
fn s52_only_mine() {
    let bed = Bed::new();
    samp::append(&bed.store, "bar", "foo", "plan", "first", T0);
    samp::append(&bed.store, "bar", "carol", "plan", "then", T0 + 5);
    let m = bed.mount("bar");
    m.ok("echo 'one more thing' > threads/plan/more");
    assert_eq!(member(&read_log(&bed.store, "bar")[2], "to"), "carol");
}

/// S53, S63: a tie between senders is refused, and both are named. A tie of one sender is no tie.
#[test]
fn s53_ties() {
    let bed = Bed::new();
    samp::append(&bed.store, "carol", "bar", "plan", "one", T0);
    samp::append(&bed.store, "foo", "bar", "plan", "two", T0);
    let m = bed.mount("bar");
    let out = m.sh("echo x | tee threads/plan/answer");
    assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{out:?}");
    let status = m.cat("status.txt");
    assert!(status.contains("carol") && status.contains("foo"), "{status}");
    assert!(read_log(&bed.store, "bar").is_empty());
    let last = samp::append(&bed.store, "foo", "bar", "plan", "three", T0 + 1);
    samp::append(&bed.store, "foo", "bar", "plan", "four", T0 + 1);
    m.appears(&format!("inbox/{}", last.name(0)));
    m.appears(&format!("inbox/{}", samp::Rec::new("foo", "bar", "plan", "four", T0 + 1).name(1)));
    m.ok("echo y > threads/plan/answer");
    assert_eq!(member(&only(&bed.store, "bar"), "to"), "foo");
}

/// S1259: a recipient in `To`, or a message of the thread in `In-Reply-To`, settles a tie.
#[test]
fn s1259_a_header_settles_a_tie() {
    let bed = Bed::new();
    let recs = ["carol", "foo"].map(|from| samp::append(&bed.store, from, "bar", "plan", from, T0));
    let m = bed.mount("bar");
    let refused = m.sh("echo x | tee threads/plan/new");
    assert!(!refused.ok() && refused.stderr.contains("Invalid argument"), "{refused:?}");
    assert!(m.cat("threads/plan/new.error").contains("a line `To: NAME`"));
    let heads = recs.iter().flat_map(|rec| {
        let by_name =
            [rec.from.clone(), format!("{}@samp", rec.from)].map(|to| format!("To: {to}"));
        by_name
            .into_iter()
            .chain([format!("In-Reply-To: <{}@samp>", rec.id)])
            .map(move |h| (h, rec))
    });
    for (n, (head, rec)) in heads.enumerate() {
        m.ok(&format!("printf '{head}\n\nhi\n' > threads/plan/new{n}"));
        let sent = read_log(&bed.store, "bar");
        assert_eq!(sent.len(), n + 1, "{head}");
        let [to, thread, re] = ["to", "thread", "re"].map(|name| member(&sent[n], name));
        assert_eq!((to, thread, re), (rec.from.as_str(), "plan", rec.id.as_str()), "{head}");
    }
    let other = m.sh("printf 'In-Reply-To: <0123456789abcdef@samp>\n\nhi\n' | tee threads/plan/x");
    assert!(!other.ok() && other.stderr.contains("Invalid argument"), "{other:?}");
}

/// S67: no SAMP message asks for an acknowledgement, so `.ack` has nothing to acknowledge.
#[test]
fn s67_ack() {
    let (bed, m, recs, names) = mounted_three();
    for beside in [format!("inbox/{}", names[0]), recs[0].archived(0)] {
        let ack = beside.replace(".txt", ".ack");
        assert!(!m.sh(&format!("stat '{ack}'")).ok(), "{ack}");
        let out = m.sh(&format!("echo seen > '{ack}'"));
        assert!(!out.ok(), "{ack}: {out:?}");
    }
    assert!(read_log(&bed.store, "bar").is_empty());
    assert_eq!(m.ls("inbox").len(), 3);
}

/// Returns the `In-Reply-To` of the only sent message with this text, wherever it was sent.
#[track_caller]
fn answer_to(m: &Mount, text: &str) -> String {
    soon("it is sent", || shown::all(m, "sent").iter().any(|s| s.body == format!("{text}\n")));
    let all = shown::all(m, "sent");
    let sent: Vec<&Shown> = all.iter().filter(|s| s.body == format!("{text}\n")).collect();
    assert_eq!(sent.len(), 1, "{all:#?}");
    sent[0].must("In-Reply-To").to_owned()
}

/// S223: an agent that was handed only the text of a message answers it by its id, also after it was read and
/// after a remount. `.txt` is the message, and no such name is listed.
#[test]
fn s223_short_names() {
    let (bed, m, recs, names) = mounted_three();
    let text = m.cat(".next");
    let id = Shown::parse(&text).must("Message-ID").to_owned();
    let whole = id.trim_start_matches('<').split('@').next().unwrap().to_owned();
    assert_eq!(whole, recs[0].id);
    m.ok(&format!("echo short > inbox/{}.reply; echo whole > inbox/{whole}.reply", &whole[..8]));
    let day = recs[0].day();
    m.ok(&format!("echo archived > archive/{day}/{}.reply", &whole[..8]));
    m.ok(&format!("echo thread > threads/plan/{whole}.reply"));
    for answer in ["short", "whole", "archived", "thread"] {
        assert_eq!(answer_to(&m, answer), id, "{answer}");
    }
    assert!(read_log(&bed.store, "bar").iter().all(|r| member(r, "to") == "foo"));
    for short in [whole.as_str(), &whole[..8]] {
        for folder in ["inbox".to_owned(), format!("archive/{day}"), "threads/plan".to_owned()] {
            assert_eq!(m.cat(&format!("{folder}/{short}.txt")), text, "{folder}/{short}");
        }
    }
    assert!(!m.ok("find . -name '*.txt'").contains(&format!("/{}", &whole[..8])));
    // Reading by this name marks, removing it removes, and moving it back makes it unread.
    let [short1, short2] = [1, 2].map(|n: usize| recs[n].id[..8].to_owned());
    m.cat(&format!("inbox/{short1}.txt"));
    m.inbox_becomes(&[&names[2]]);
    m.ok(&format!("rm inbox/{short2}.txt"));
    m.inbox_becomes(&[]);
    m.ok(&format!("mv archive/{}/{short1}.txt inbox/", recs[1].day()));
    m.inbox_becomes(&[&names[1]]);
    // This name finds nothing else.
    for none in [&whole[..7], &whole[1..9], &recs[1].id[..8], "00000000", ""] {
        assert!(!m.sh(&format!("stat 'threads/plan/{none}.txt'")).ok(), "{none}");
    }
    m.umount();
    let m = bed.mount("bar");
    m.ok(&format!("echo 'much later' > inbox/{}.reply", &whole[..8]));
    assert_eq!(answer_to(&m, "much later"), id);
}

/// S223: ids may have any form, escaped as a thread folder is. An `<id8>` that two messages have names neither of
/// them.
#[test]
fn s223_short_names_of_any_id() {
    let bed = Bed::new();
    let (tree, home) = (Tree::new(&bed), Home::new(&bed));
    bed.config(&format!("{}{}", tree.store(), home.store()));
    let letter = |id: &str, n| Letter::new("foo@x", "t", id, n).set("Message-ID", id);
    let odd = letter("Q/b c.d", 1);
    tree.put(agz::DAY, "inbox", "odd", odd.text());
    let alike = ["00000001bbbb", "00000001aaaa"].map(|id| letter(id, 2));
    for letter in &alike {
        tree.receive(letter);
    }
    let msg = Msg::new("s", "text", 1).signed(2);
    home.receive(&msg);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox").len(), 4);
    let id8 = |id: &str| samp::sha_hex(id.as_bytes(), 8);
    for (name, body) in [
        ("Q%2Fb%20c.d".to_owned(), "Q/b c.d"),
        (id8("Q/b c.d"), "Q/b c.d"),
        (msg.id.clone(), "text"),
        (id8(&msg.id), "text"),
        ("00000001aaaa".to_owned(), "00000001aaaa"),
        ("00000001bbbb".to_owned(), "00000001bbbb"),
    ] {
        let shown = Shown::parse(&m.cat(&format!("inbox/{name}.txt")));
        assert_eq!(shown.body.trim(), body, "{name}");
    }
    for ending in ["txt", "reply"] {
        let out = m.sh(&format!("cat inbox/00000001.{ending}"));
        assert!(out.stderr.contains("No such file"), "{out:?}");
    }
    let out = m.sh("echo x > inbox/00000001.reply");
    assert!(!out.ok() && out.stderr.contains("No such file"), "{out:?}");
    // A short name that was one message's leads nowhere when a second message with it comes.
    let found = format!("inbox/{}.txt", id8("first"));
    let _ = tree.receive(&letter("first", 3));
    m.appears(&found);
    let second = letter(&format!("{}cccc", id8("first")), 4);
    let _ = tree.receive(&second);
    soon("it is neither's", || !m.sh(&format!("test -e {found}")).ok());
}

/// S1143: an answer that passed over newer unread messages to me in its thread has a warning that names them. It is
/// there after a remount, too. An answer to the newest message has none.
#[test]
fn s1143_unwise_answer() {
    let bed = Bed::new();
    let old = samp::append(&bed.store, "foo", "bar", "plan", "shall we?", T0);
    let newer = samp::append(&bed.store, "carol", "bar", "plan", "no, wait", T0 + 10);
    samp::append(&bed.store, "carol", "bar", "lunch", "another thread", T0 + 20);
    samp::append(&bed.store, "carol", "foo", "plan", "not to me", T0 + 20);
    let m = bed.mount("bar");
    m.ok(&format!("echo 'yes, begin' > archive/{}/{}.reply", old.day(), &old.id[..8]));
    let day = format!("sent/{}", samp::today());
    let listed = m.ls(&day);
    let [answer, warning] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(*warning, answer.replace(".txt", ".warning"));
    let told = format!(
        "it answered {}@samp from foo while a newer message to you in the thread was unread: {}@samp from carol\n",
        old.id, newer.id
    );
    assert_eq!(m.cat(&format!("{day}/{warning}")), told);
    m.umount();
    let m = bed.mount("bar");
    assert_eq!((m.ls(&day), m.cat(&format!("{day}/{warning}"))), (listed.clone(), told));

    m.ok(&format!("echo 'I see' > archive/{}/{}.reply", newer.day(), &newer.id[..8]));
    m.ok("rm inbox/*carol*; echo 'once more' > threads/plan/more");
    m.ok(&format!("echo 'after all' > archive/{}/{}.reply", old.day(), &old.id[..8]));
    let all = m.ls(&day);
    assert_eq!(all.iter().filter(|name| name.ends_with(".warning")).count(), 1, "{all:?}");
    assert_eq!(all.len(), 5, "{all:?}");
}

/// S1254: a read-only mount shows the warning about an answer, also about one that is sent while it is there.
#[test]
fn s1254_warnings_in_a_read_only_mount() {
    let bed = Bed::new();
    let texts = ["shall we?", "no, wait", "why?"];
    let asked: Vec<_> = (0..)
        .zip(texts)
        .map(|(n, text)| samp::append(&bed.store, "carol", "bar", "plan", text, T0 + n))
        .collect();
    let reader = bed.mount_at(&bed.path("ro"), "bar", &["--read-only"]);
    let m = bed.mount("bar");
    for one in &asked[..2] {
        m.ok(&format!("echo yes > archive/{}/{}.reply", one.day(), &one.id[..8]));
        let told = format!("it answered {}@samp from carol", one.id);
        let look = |m: &Mount| m.sh("cat sent/*/*.warning").stdout;
        soon("it is shown", || look(&reader).contains(&told));
        assert_eq!(look(&reader), look(&m));
    }
    assert_eq!(reader.ok("ls sent/*"), m.ok("ls sent/*"));
}

/// S1252: a message that my message answers is no answer to it, though the clock of its writer is ahead. It is the
/// answer to my question before.
#[test]
fn s1252_a_question_is_no_answer() {
    let bed = Bed::new();
    bed.config("wait_timeout = \"1s\"\nunknown_recipient = \"accept\"\n");
    let m = bed.mount("bar");
    m.ok("echo 'which port?' > outbox/foo");
    let thread = member(&read_log(&bed.store, "bar")[0], "thread").to_owned();
    let ahead = samp::now() + 60;
    let asked = samp::append(&bed.store, "foo", "bar", &thread, "is it green?", ahead);
    m.appears(&format!("inbox/{}", asked.name(0)));
    m.ok(&format!("echo yes > inbox/{}.reply", asked.name(0).trim_end_matches(".txt")));
    let is_answered = |text: &str| {
        let all = m.cat("sent.txt");
        let line = all.lines().find(|line| line.ends_with(&format!("\t{text}")));
        line.unwrap_or_else(|| panic!("{all}")).contains("\tanswered\t")
    };
    assert_eq!([is_answered("which port?"), is_answered("yes")], [true, false]);
    let found = m.ok("grep -rlFx --include='*.txt' yes sent");
    let path = found.trim().trim_end_matches(".txt");
    assert_eq!(m.ok(&format!("cat {path}.answer")), "");
    assert_eq!(m.ls("inbox"), [asked.name(0)], "nothing is marked");
    samp::append(&bed.store, "foo", "bar", &thread, "good", ahead);
    soon("it is answered", || is_answered("yes"));
    assert!(m.ok(&format!("cat {path}.answer")).ends_with("\n\ngood\n"));
}
