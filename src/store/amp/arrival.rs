//! In which order messages came, as well as their files can tell.
//!
//! The order decides which of two messages with one id keeps it and which of two with the same signed
//! bytes is the replay. While mounted it is the order in which files are found; of files that are
//! found together, and of all of them after the cache was deleted, it is the one told here: so a
//! message keeps its id, and it is the copy that is called one.

use std::os::fd::OwnedFd;

use super::envelope;
use super::facts;
use super::limits::FILE_BYTES;
use super::table::Mailbox;
use super::time::parse_time;
use crate::store::below;
use crate::store::fs::Stamp;

/// When a message came: what the store noted, else what its writer says, else the time of its file;
/// in one moment what I sent before what I got. Equal ones go by folder and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    /// In milliseconds since 1970.
    when: i64,
    is_got: bool,
    /// In nanoseconds since 1970.
    mtime: i128,
}

impl Arrival {
    /// Of a message, given `local.received_at` and `envelope.timestamp` as they are spelled.
    pub fn new(
        received: Option<&str>,
        written: Option<&str>,
        stamp: &Stamp,
        mailbox: Mailbox,
    ) -> Self {
        let noted = received.and_then(parse_time).or_else(|| written.and_then(parse_time));
        Self {
            when: noted.unwrap_or_else(|| facts::file_time(stamp)).millis(),
            is_got: mailbox == Mailbox::Inbox,
            mtime: stamp.mtime,
        }
    }

    /// Of a file in an open folder. What cannot be read is no message and comes last.
    pub fn of_file(dir: Option<&OwnedFd>, name: &str, mailbox: Mailbox) -> Self {
        let read = dir.and_then(|dir| {
            below::read_whole(&below::open_file(dir, name).ok()?, FILE_BYTES + 1).ok()
        });
        let Some((stamp, bytes)) = read else {
            return Self { when: i64::MAX, is_got: mailbox == Mailbox::Inbox, mtime: i128::MAX };
        };
        let (received, written) = envelope::times(&bytes);
        Self::new(received.as_deref(), written.as_deref(), &stamp, mailbox)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_then_written_then_the_file_and_sent_first() {
        let stamp = |mtime| Stamp { mtime, ..Stamp::default() };
        let of = |received, written, mtime, mailbox| {
            Arrival::new(received, written, &stamp(mtime), mailbox)
        };
        let (early, late) = (Some("2026-04-24T17:42:03Z"), Some("2026-04-24T17:42:03.500Z"));
        let order = [
            of(None, None, 5, Mailbox::Sent),
            of(early, late, 8, Mailbox::Sent),
            of(early, late, 9, Mailbox::Sent),
            of(Some("never"), early, 7, Mailbox::Inbox),
            of(early, late, 8, Mailbox::Inbox),
            of(late, early, 1, Mailbox::Inbox),
        ];
        assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
        let missing = Arrival::of_file(None, "x.json", Mailbox::Sent);
        assert!(order.iter().all(|a| *a < missing));
    }
}
