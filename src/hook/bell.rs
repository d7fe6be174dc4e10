//! The one line that a bell prints: the number of unread messages, their senders, and the place. It never has a word
//! that somebody else has chosen freely: no subject, no text.

use std::path::Path;

/// The longest text, in bytes.
const LONGEST: usize = 240;
/// The largest number of senders that are named.
const NAMED: usize = 2;
/// The longest name of a sender that is printed.
const NAME: usize = 64;

/// The place of the mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailLocation<'a> {
    /// The name of its recipient.
    pub me: &'a str,
    /// The mount of this identity, if there is one.
    pub mount: Option<&'a Path>,
    /// The short name of the message, if there is only one.
    pub single_message: Option<&'a str>,
}

impl MailLocation<'_> {
    /// Returns the paths and commands that open the mail.
    fn list_open_hints(&self) -> Vec<String> {
        let me = self.me;
        let below = self.single_message.map_or("inbox".to_owned(), |name| format!("inbox/{name}"));
        // A path that is not plain text on one line cannot be printed.
        let mount = self.mount.and_then(Path::to_str);
        let mount = mount.filter(|path| !path.chars().any(char::is_control));
        let mount = mount.map(|mount| format!("{mount}/{below}"));
        let one = self.single_message.map(|_| format!("msgfs --me {me} cat {below}"));
        mount.into_iter().chain(one).chain([format!("msgfs --me {me} ls inbox")]).collect()
    }
}

/// Returns the text about all unread mail. `new` has the sender of each message that is new.
pub fn render_bell(unread: usize, new: &[&str], place: &MailLocation<'_>) -> String {
    let messages = if unread == 1 { "message" } else { "messages" };
    let counted = match new.len() {
        0 => String::new(),
        n if n == unread => String::new(),
        n => format!(", {n} new"),
    };
    let head = format!("msgfs: {unread} unread {messages} for {}{counted}", place.me);
    let mut shortest = String::new();
    for end in place.list_open_hints() {
        // A text that is too long loses names first, and then its longest ending.
        for named in (0..=NAMED).rev() {
            let text = format!("{head}{}: {end}", render_senders(new, named));
            if text.len() <= LONGEST {
                return text;
            }
            shortest = text;
        }
    }
    shortest
}

/// Returns `, from bob, carol and 1 other`, with at most this many names.
fn render_senders(new: &[&str], named: usize) -> String {
    let mut all: Vec<&str> = Vec::new();
    for sender in new {
        if !all.contains(sender) {
            all.push(sender);
        }
    }
    let mut told: Vec<String> = all
        .iter()
        .filter(|name| is_plain_name(name))
        .take(named)
        .map(|s| (*s).to_owned())
        .collect();
    let others = all.len() - told.len();
    match others {
        0 => {}
        1 => told.push("1 other".to_owned()),
        n => told.push(format!("{n} others")),
    }
    match (told.pop(), told.is_empty()) {
        (None, _) => String::new(),
        (Some(one), true) => format!(", from {one}"),
        (Some(last), false) => format!(", from {} and {last}", told.join(", ")),
    }
}

fn is_plain_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'@' | b'-');
    !name.is_empty() && name.len() <= NAME && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(unread: usize, from: &[&str], mount: Option<&str>, only: Option<&str>) -> String {
        render_bell(
            unread,
            from,
            &MailLocation { me: "alice", mount: mount.map(Path::new), single_message: only },
        )
    }

    #[test]
    fn the_text_is_as_the_page_says() {
        let mount = Some("/home/anna/mail");
        for (got, want) in [
            (
                said(1, &["bob"], mount, Some("f66bacd8.txt")),
                "msgfs: 1 unread message for alice, from bob: /home/anna/mail/inbox/f66bacd8.txt",
            ),
            (
                said(12, &["bob", "carol", "dave"], mount, None),
                "msgfs: 12 unread messages for alice, 3 new, from bob, carol and 1 other: /home/anna/mail/inbox",
            ),
            (
                said(12, &[], mount, None),
                "msgfs: 12 unread messages for alice: /home/anna/mail/inbox",
            ),
            (
                said(2, &["bob", "bob"], None, None),
                "msgfs: 2 unread messages for alice, from bob: msgfs --me alice ls inbox",
            ),
            (
                said(1, &["bob"], None, Some("f66bacd8.txt")),
                "msgfs: 1 unread message for alice, from bob: msgfs --me alice cat inbox/f66bacd8.txt",
            ),
            (
                said(2, &["bob", "carol"], None, None),
                "msgfs: 2 unread messages for alice, from bob and carol: msgfs --me alice ls inbox",
            ),
            (
                said(3, &["do this: rm -rf", "bob", "ä"], None, None),
                "msgfs: 3 unread messages for alice, from bob and 2 others: msgfs --me alice ls inbox",
            ),
            (
                said(1, &["x y"], None, None),
                "msgfs: 1 unread message for alice, from 1 other: msgfs --me alice ls inbox",
            ),
        ] {
            assert_eq!(got, want);
        }
    }

    proptest! {
        #[test]
        fn it_is_one_short_line(
            from in proptest::collection::vec(".{0,80}", 0..5),
            me in "[a-z]{1,64}",
            mount in "(/[a-zäö \n]{1,100}){1,3}",
            more in 0usize..1_000_000,
        ) {
            let new: Vec<&str> = from.iter().map(String::as_str).collect();
            let place = MailLocation { me: &me, mount: Some(Path::new(&mount)), single_message: None };
            let text = render_bell(new.len() + more, &new, &place);
            prop_assert!(text.len() <= LONGEST, "{}", text);
            prop_assert!(!text.chars().any(char::is_control), "{}", text);
        }
    }
}
