//! A message to several recipients is one message for each of them. Each id follows from the common parts and from the
//! recipient, so one message tells the ids of all, and nobody can make a message look like part of another's
//! (docs/formats/amp.md, section 4).

use sha2::{Digest as _, Sha256};

use super::envelope::AmpMessage;
use super::facts::AmpFacts;
use super::id;
use super::roster::Roster;
use crate::model::{Message, Timestamp};
use crate::store::MulticastKey;
use crate::store::digest::secure_hash64;

/// The purpose, which separates these ids from those of other purposes.
const PURPOSE: &str = "amp-several-v1";

/// The common parts of the messages of one multicast.
#[derive(Debug)]
pub(super) struct AmpMulticast<'a> {
    /// The common beginning of their ids.
    id_prefix: String,
    from: &'a str,
    /// All recipients, in their order.
    to: Vec<String>,
    subject: &'a str,
    body: &'a str,
}

impl<'a> AmpMulticast<'a> {
    /// Makes the multicast of a message that is sent now.
    pub fn new(
        now: Timestamp,
        from: &'a str,
        to: &[&str],
        (subject, body): (&'a str, &'a str),
    ) -> Self {
        let to = to.iter().map(|to| to.to_ascii_lowercase()).collect();
        Self { id_prefix: id::new_id_prefix("msg", now), from, to, subject, body }
    }

    /// Returns the multicast to which a stored message belongs, if its id fits.
    pub fn from_stored(stored: &'a AmpMessage<'_>, facts: &'a AmpFacts) -> Option<Self> {
        let subject = stored.subject.as_deref().unwrap_or_default();
        let body = stored.message.as_deref().unwrap_or_default();
        // A carried message has its original id in the signed part.
        let id = facts.own_id.as_deref().unwrap_or(&stored.id);
        let several = Self::from_parts(id, &facts.from, &facts.recipients, (subject, body))?;
        Some(several).filter(|several| several.message_id_for(&facts.to) == id)
    }

    /// Returns the multicast to which a message belongs, if its id fits.
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

    /// Returns true if the address is among the recipients.
    pub fn has_recipient(&self, address: &str) -> bool {
        self.to.iter().any(|to| to.eq_ignore_ascii_case(address))
    }

    /// Returns true if this is the id of one of the messages.
    pub fn has_id(&self, id: &str) -> bool {
        self.to.iter().any(|to| self.message_id_for(to) == id)
    }

    /// Returns the id of the message to one recipient.
    pub fn message_id_for(&self, to: &str) -> String {
        let (from, to) = (self.from.to_ascii_lowercase(), to.to_ascii_lowercase());
        // Some programs remove newlines at the end of a text.
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

    /// Returns the thread that they begin. It is no message id, so nobody enters it by using that id.
    pub fn thread_id(&self) -> String {
        let first = self.to.first().map_or_else(String::new, |to| self.message_id_for(to));
        format!("{first}.all")
    }

    /// Returns the values that all messages have in common, for the one to `to`. The id of the first says all of it.
    pub fn key_for(&self, to: &str) -> Option<MulticastKey> {
        let first = self.to.first()?;
        let key = secure_hash64(self.message_id_for(first).as_bytes());
        Some(MulticastKey { key, digest: 0, answers: None, is_first: first == to, is_id: false })
    }

    /// Returns the id of the message that represents the one to `to`: of mine, else of the one to the first recipient.
    pub fn find_representative(&self, to: &str, roster: &Roster) -> Option<String> {
        if roster.is_mine(to) {
            return None;
        }
        let mine = self.to.iter().find(|to| roster.is_mine(to));
        let first = mine.or(self.to.first()).filter(|first| *first != to)?;
        Some(self.message_id_for(first))
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
            // If anything else changes, the id is only an id.
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
