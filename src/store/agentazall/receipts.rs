//! The proofs that a letter of mine has arrived: the copy in the mailbox of the recipient, and what a link says.

use super::layout::{LetterPath, MailboxFolder};
use super::letter::MAX_FILE;
use super::{AgentAzall, text};
use crate::model::{DeliveryState, Timestamp};
use crate::store::{Receipt, SentMessage, confined};

impl AgentAzall {
    /// Returns the states that can be proven for a letter to this recipient.
    pub(super) fn list_provable_states(&self, to: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Read, Refused, Stored, Told, Waiting};
        let is_carried =
            !self.has_mailbox(to) && matches!(self.format.router.find_link(to), Ok(Some(_)));
        if is_carried {
            return vec![Waiting, Stored, Delivered, Answered, Refused];
        }
        vec![Waiting, Stored, Delivered, Told, Read, Answered]
    }

    /// Returns what is proven of a letter for one recipient. Only a copy of the same text counts, under the name that
    /// the letter has in my mailbox.
    pub(super) fn find_letter_receipt(&self, one: &SentMessage<'_>) -> Receipt {
        let Ok(file) = self.find_file(one.at.source) else { return Receipt::default() };
        let path = file.path();
        let Some(place) = LetterPath::parse(&path) else { return Receipt::default() };
        if let Some((bytes, written)) = self.read_recipient_copy(one.to, &place)
            && let Ok((_, mine)) = self.read_file_bytes(&file, MAX_FILE)
            && text::without_mark(&bytes) == text::without_mark(&mine)
        {
            // A mark may keep the time of the file, so the time of reading is not known.
            return if text::parse(&bytes).is_read() {
                Receipt::of_state(DeliveryState::Read, None)
            } else {
                Receipt::of_state(DeliveryState::Delivered, Some(written))
            };
        }
        let fate = self.format.router.delivery_fate(one.id, one.to);
        match fate {
            Some(fate) => Receipt::of_fate(fate),
            None if place.folder.is_waiting() => {
                self.explain_wait(&path, one.to).map_or_else(Receipt::default, |why| {
                    Receipt::of_fault(DeliveryState::Waiting, why)
                })
            }
            None => Receipt::default(),
        }
    }

    /// Returns the copy in the mailbox of a recipient, and the time at which it was last written.
    fn read_recipient_copy(
        &self,
        to: &str,
        place: &LetterPath<'_>,
    ) -> Option<(Vec<u8>, Timestamp)> {
        let name = format!("{}.txt", place.stem);
        let parts = [to, place.day, MailboxFolder::Inbox.as_str(), &name];
        let file =
            self.has_mailbox(to).then(|| confined::open_path(&self.format.mailboxes, &parts));
        let (stamp, bytes) = confined::read_whole(&file?.ok()?, MAX_FILE + 1).ok()?;
        Some((bytes, stamp.modified())).filter(|(bytes, _)| bytes.len() <= MAX_FILE)
    }
}
