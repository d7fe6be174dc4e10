//! The answers to messages of mine.

use super::*;
use crate::store::{AnswerScheme, NextAnswerRule};
use crate::view::answered::list_answers;

/// Makes a message with this sender and recipients, which answers another.
fn message(id: &str, secs: i64, from: &str, to: &[&str], answers: Option<&str>) -> Letter {
    let message = Message {
        from: Some(from.into()),
        to: to.iter().map(|to| (*to).to_owned()).collect(),
        time: Timestamp::from_secs(secs),
        thread: Some("t".into()),
        in_reply_to: answers.map(str::to_owned),
        id: id.into(),
        body: id.into(),
        ..Message::default()
    };
    Letter { message, from_me: from == "me", ..Letter::default() }
}

impl Bed {
    fn ix(&self, from: &str, id: &str) -> MsgIx {
        self.tree.index.read().messages.find_message(0, from, id).unwrap()
    }

    /// Returns the ids of the answers to a message of mine.
    fn answers(&self, id: &str) -> Vec<String> {
        let found = list_answers(&self.tree, self.ix("me", id)).unwrap();
        let tables = self.tree.index.read();
        found.iter().map(|a| tables.messages.id(tables.messages.entry(a.ix))).collect()
    }
}

#[test]
fn only_a_recipient_answers_and_only_to_me() {
    let bed = bed(vec![store(vec![
        message("q", T0, "me", &["bob@x", "Dan@x"], None),
        message("a2", T0 + 2, "dan@x", &["me"], Some("q")),
        message("a1", T0 + 1, "bob@x", &["me"], Some("q")),
        message("x1", T0 + 3, "eve@x", &["me"], Some("q")),
        message("x2", T0 + 4, "bob@x", &["dan@x"], Some("q")),
        message("x3", T0 + 5, "bob@x", &["me"], None),
    ])]);
    assert_eq!(bed.answers("q"), ["a1", "a2"]);
    let question = Question::find(&bed.tree, bed.ix("me", "q")).unwrap();
    let answers = question.list_answers(&bed.tree).unwrap();
    assert_eq!(question.list_missing(&bed.tree, &answers[..1]), ["Dan@x"]);
    assert_eq!(question.list_missing(&bed.tree, &answers), [""; 0]);
    let theirs = list_answers(&bed.tree, bed.ix("bob@x", "a1"));
    assert!(matches!(theirs, Err(Error::NotFound)));
}

#[test]
fn what_names_nothing_answers_the_newest_question_before_it() {
    let thread = vec![
        message("early", T0 - 1, "bob@x", &["me"], None),
        message("q1", T0, "me", &["bob@x", "dan@x"], None),
        message("a1", T0 + 1, "bob@x", &["me"], None),
        message("q2", T0 + 2, "me", &["bob@x"], None),
        message("a2", T0 + 3, "bob@x", &["me"], None),
        message("a3", T0 + 4, "dan@x", &["me"], None),
        message("a4", T0 + 5, "dan@x", &["me"], None),
        message("q3", T0 + 6, "me", &["dan@x"], None),
        message("a5", T0 + 7, "dan@x", &["me"], None),
    ];
    // Much mail in other threads makes the thread a short one, and what others wrote there is no answer.
    let elsewhere = (0..200).map(|n| {
        let mut other = message(&format!("o{n}"), T0 + n, "dan@x", &["me"], None);
        other.message.thread = Some("other".into());
        other
    });
    for all in [thread.clone(), elsewhere.chain(thread).collect()] {
        let mut memory = store(all);
        memory.folder.lock().lines = Some(false);
        memory.about.threads = crate::store::ThreadScheme::Ids;
        memory.about.answers = AnswerScheme::NamedOrNext(NextAnswerRule {
            unsigned_only: true,
            fits: Some(|_, answer| answer != "a3"),
        });
        let bed = bed(vec![memory]);
        assert_eq!(bed.answers("q1"), ["a1", "a4"]);
        assert_eq!([bed.answers("q2"), bed.answers("q3")], [["a2"], ["a5"]]);
    }
}

#[test]
fn what_my_message_answers_is_no_answer_to_it() {
    let mut reply = message("q2", T0 + 9, "me", &["bob@x"], Some("p"));
    reply.message.time = reply.message.time.plus_millis(1);
    let mut memory = store(vec![
        message("q1", T0, "me", &["bob@x"], None),
        message("p", T0 + 9, "bob@x", &["me"], None),
        reply,
        message("a", T0 + 10, "bob@x", &["me"], None),
    ]);
    memory.folder.lock().lines = Some(false);
    memory.about.threads = crate::store::ThreadScheme::Ids;
    memory.about.whole_seconds = true;
    let rule = NextAnswerRule { unsigned_only: true, fits: None };
    memory.about.answers = AnswerScheme::NamedOrNext(rule);
    let bed = bed(vec![memory]);
    assert_eq!([bed.answers("q1"), bed.answers("q2")], [["p"], ["a"]]);
}

#[test]
fn mail_to_several_addresses_of_mine_is_to_me_alone() {
    let memory = || {
        let further_addresses = vec!["me@home".to_owned()];
        let folder = Folder { closed: true, further_addresses, ..Folder::default() };
        Memory::new("amp", "me", &Arc::new(Mutex::new(folder)))
    };
    for (to, is_mine_alone) in [(&["me", "Me@Home"], true), (&["me", "dan@x"], false)] {
        let memory = memory();
        memory.folder.lock().push(message("m", T0, "bob@x", to, None));
        let bed = bed(vec![memory]);
        let mail = list_unread_mail(&bed.tree).remove(0);
        let urgency = read_mail_urgency(&bed.tree, &mail).unwrap();
        assert_eq!(urgency.is_to_me_alone, is_mine_alone, "{to:?}");
    }
}
