//! A message to several is one message for each of them. Their ids follow from what all of them have in
//! common and from whom each is for, so whoever has one of them knows the ids of all, and nobody can make
//! his message look like another's (docs/formats/amp.md, section 4).

use sha2::{Digest as _, Sha256};

use super::envelope::AmpMessage;
use super::facts::AmpFacts;
use super::id;
use super::roster::Roster;
use crate::model::{Message, Timestamp};
use crate::store::PrimaryRecord;

/// What tells these ids from those of other purposes.
const PURPOSE: &str = "amp-several-v1";

/// What the messages of one message to several have in common.
#[derive(Debug)]
pub(super) struct AmpMulticast<'a> {
    /// What their ids begin with.
    id_prefix: String,
    from: &'a str,
    /// All recipients, in their order.
    to: Vec<String>,
    subject: &'a str,
    body: &'a str,
}

impl<'a> AmpMulticast<'a> {
    /// One that is sent now.
    pub fn new(
        now: Timestamp,
        from: &'a str,
        to: &[&str],
        (subject, body): (&'a str, &'a str),
    ) -> Self {
        let to = to.iter().map(|to| to.to_ascii_lowercase()).collect();
        Self { id_prefix: id::new_id_prefix("msg", now), from, to, subject, body }
    }

    /// That of which a stored message is, if its id says so.
    pub fn from_stored(stored: &'a AmpMessage<'_>, facts: &'a AmpFacts) -> Option<Self> {
        let subject = stored.subject.as_deref().unwrap_or_default();
        let body = stored.message.as_deref().unwrap_or_default();
        // What a link carried has its id where it was written in the signed part.
        let id = facts.own_id.as_deref().unwrap_or(&stored.id);
        let several = Self::from_parts(id, &facts.from, &facts.recipients, (subject, body))?;
        Some(several).filter(|several| several.message_id_for(&facts.to) == id)
    }

    /// The same of one that was read.
    pub fn from_message(message: &'a Message) -> Option<Self> {
        let subject = message.subject.as_deref().unwrap_or_default();
        let from = message.from.as_deref()?;
        let several = Self::from_parts(&message.id, from, &message.to, (subject, &message.body))?;
        Some(several).filter(|several| several.has_id(&message.id))
    }

    fn from_parts(
        id: &str,
        from: &'a str,
        to: &[String],
        (subject, body): (&'a str, &'a str),
    ) -> Option<Self> {
        let beginning = id::split_id_prefix(id).filter(|_| to.len() > 1)?.to_owned();
        Some(Self { id_prefix: beginning, from, to: to.to_owned(), subject, body })
    }

    /// Whether somebody is among the recipients.
    pub fn has_recipient(&self, address: &str) -> bool {
        self.to.iter().any(|to| to.eq_ignore_ascii_case(address))
    }

    /// Whether this is the id of one of the messages.
    pub fn has_id(&self, id: &str) -> bool {
        self.to.iter().any(|to| self.message_id_for(to) == id)
    }

    /// The id of the message to one of them.
    pub fn message_id_for(&self, to: &str) -> String {
        let (from, to) = (self.from.to_ascii_lowercase(), to.to_ascii_lowercase());
        // Some programs take newlines off the end of a text.
        let body = self.body.trim_end_matches(['\r', '\n']);
        let mut hash = Sha256::new();
        let texts = [PURPOSE, &self.id_prefix, &from, &to, self.subject, body];
        for text in texts.into_iter().chain(self.to.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let digest: [u8; 32] = hash.finalize().into();
        id::build_id(&self.id_prefix, *digest.first_chunk().unwrap_or(&[0; 8]))
    }

    /// The thread they begin: no id of a message, so that nobody gets into it by taking that id.
    pub fn thread_id(&self) -> String {
        let first = self.to.first().map_or_else(String::new, |to| self.message_id_for(to));
        format!("{first}.all")
    }

    /// Which of them stands for the one to `to`: mine, or that to the first recipient.
    pub fn find_representative(&self, to: &str, roster: &Roster) -> Option<PrimaryRecord> {
        if roster.is_mine(to) {
            return None;
        }
        let mine = self.to.iter().find(|to| roster.is_mine(to));
        let first = mine.or(self.to.first()).filter(|first| *first != to)?;
        Some(PrimaryRecord { id: self.message_id_for(first), to_me: mine.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: [&str; 2] = ["bob@x.local", "Carol@x.local"];

    fn message(id: String, from: &str, body: &str) -> Message {
        let to = TO.map(str::to_ascii_lowercase).to_vec();
        let (from, subject) = (Some(from.to_owned()), Some("s".to_owned()));
        Message { from, to, subject, id, body: body.into(), ..Message::default() }
    }

    #[test]
    fn the_ids_follow_from_the_message_and_from_nothing_else() {
        let now = Timestamp::from_millis(1_795_291_603_999);
        let several = AmpMulticast::new(now, "Alice@x.local", &TO, ("s", "hello\n"));
        let [bob, carol] = TO.map(|to| several.message_id_for(to));
        assert!(bob.starts_with("msg_1795291603_3e7") && id::is_message_id(&bob), "{bob}");
        assert!(bob != carol && bob.len() == 31);
        assert_eq!(several.thread_id(), format!("{bob}.all"));
        assert!(!id::is_message_id(&several.thread_id()));
        for id in [&bob, &carol] {
            let read = message(id.clone(), "alice@x.local", "hello");
            let again = AmpMulticast::from_message(&read).unwrap();
            assert_eq!(TO.map(|to| again.message_id_for(to)), [bob.clone(), carol.clone()]);
            // With anything else in it the id is just an id.
            let foreign = [
                message(id.clone(), "eve@x.local", "hello"),
                message(id.clone(), "alice@x.local", "hello!"),
                message(id.replace("_3e7", "_3e6"), "alice@x.local", "hello"),
                message(id.replace("msg_", "msg-"), "alice@x.local", "hello"),
                Message { to: vec![TO[0].into()], ..read.clone() },
                Message { subject: None, ..read.clone() },
                message("abcd".into(), "alice@x.local", "hello"),
                message("\u{e9}".repeat(31), "alice@x.local", "hello"),
            ];
            assert!(foreign.iter().all(|one| AmpMulticast::from_message(one).is_none()));
        }
    }
}
