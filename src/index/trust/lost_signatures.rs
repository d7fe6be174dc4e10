//! Verified messages that lost their signatures. The state folder keeps them, because nothing else proves it when the
//! index is lost.

use std::collections::HashMap;

use super::TrustTable;
use crate::index::column::at;
use crate::index::messages::{MessageTable, SignatureKind};
use crate::index::position::MsgIx;
use crate::model::{PublicKey, push_json_line};

/// The signature that a message lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LostSignature {
    /// The key that signed it.
    key: PublicKey,
    /// The hash of the signed text, in logs that may be rewritten.
    text: Option<u64>,
}

/// The text with which a message was verified.
#[derive(Clone, Copy, Debug)]
pub(in crate::index) struct VerifiedText {
    /// The hash of the text, in logs that may be rewritten.
    pub hash: Option<u64>,
}

/// The lost signatures, by the numbers of the digests of the messages.
#[derive(Debug, Default)]
pub(in crate::index) struct LostSignatures {
    noted: HashMap<u64, LostSignature>,
    /// Lines that are not in the file yet.
    lines: Vec<u8>,
}

impl LostSignatures {
    /// Parses the lines that [`LostSignatures::take_lines`] returned. It skips other lines.
    pub fn load(text: &[u8]) -> Self {
        let lines = text.split(|b| *b == b'\n').filter_map(|line| {
            let line: (&str, u64, Option<u64>, String) = serde_json::from_slice(line).ok()?;
            let ("s", number, text, key) = line else { return None };
            Some((number, LostSignature { key: PublicKey::from_base64(&key)?, text }))
        });
        Self { noted: lines.collect(), lines: Vec::new() }
    }

    /// Takes the lines that must be appended to the file.
    pub fn take_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    fn note(&mut self, number: u64, lost: LostSignature) {
        if self.noted.insert(number, lost) != Some(lost) {
            push_json_line(&mut self.lines, &("s", number, lost.text, lost.key.to_base64()));
        }
    }
}

impl TrustTable {
    /// Records that a verified message has no signature any more.
    pub(in crate::index) fn note_lost_signature(&mut self, messages: &MessageTable, ix: MsgIx) {
        let entry = messages.entry(ix);
        let store = messages.names().store(entry.store());
        let key = match self.signature_kind(messages, entry) {
            (SignatureKind::Valid, key) => Some(key),
            _ => self.stripped.get(&ix).map(|key| *key as usize),
        };
        // In other stores of files it is another content.
        if let Some(key) = key.filter(|_| store.log || store.roles) {
            let key = PublicKey(*at(&self.signer(entry.writer()).keys, key));
            let lost = LostSignature { key, text: self.verified_text(ix) };
            self.lost_signatures.note(messages.digest_number(ix), lost);
        }
    }

    fn find_lost_signature(&self, messages: &MessageTable, ix: MsgIx) -> Option<LostSignature> {
        let lost = &self.lost_signatures.noted;
        if lost.is_empty() { None } else { lost.get(&messages.digest_number(ix)).copied() }
    }

    /// Returns true if a message is verified, or was before it lost its signature.
    pub(in crate::index) fn was_verified(&self, messages: &MessageTable, ix: MsgIx) -> bool {
        self.find_verified_text(messages, ix).is_some()
    }

    /// Returns the text with which a message was verified, if it is verified now or was earlier.
    pub(in crate::index) fn find_verified_text(
        &self,
        messages: &MessageTable,
        ix: MsgIx,
    ) -> Option<VerifiedText> {
        if messages.entry(ix).is_verified() || self.stripped.contains_key(&ix) {
            return Some(VerifiedText { hash: self.verified_text(ix) });
        }
        self.find_lost_signature(messages, ix).map(|lost| VerifiedText { hash: lost.text })
    }

    /// Records whether a message was verified and has lost its signature, although its text is the same.
    pub(in crate::index) fn note_stripped(
        &mut self,
        messages: &MessageTable,
        ix: MsgIx,
        stripped: bool,
    ) {
        if !stripped {
            if !self.stripped.is_empty() {
                self.stripped.remove(&ix);
            }
            return;
        }
        let entry = messages.entry(ix);
        if let (SignatureKind::Valid, key) = self.signature_kind(messages, entry) {
            self.stripped.insert(ix, key as u32);
        } else if let Some(lost) = self.find_lost_signature(messages, ix) {
            let key = self.key_number(entry.writer(), lost.key);
            self.stripped.insert(ix, key as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_signatures_come_back_and_are_written_once() {
        let mut lost = LostSignatures::default();
        let signature = LostSignature { key: PublicKey([7; 32]), text: Some(u64::MAX) };
        lost.note(9, signature);
        lost.note(9, signature);
        lost.note(10, LostSignature { text: None, ..signature });
        let lines = lost.take_lines();
        assert_eq!(lines.split(|b| *b == b'\n').count(), 3);
        let odd = b"[\"n\",\"samp\",\"foo\",[]]\n[\"s\",1]\n\xff\n";
        let mut read = LostSignatures::load(&[&odd[..], &lines].concat());
        assert_eq!(read.noted, lost.noted);
        read.note(9, signature);
        assert!(read.take_lines().is_empty());
    }
}
