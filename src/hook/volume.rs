//! The choice of the mail that rings, by the keys `bell` and `muted` of the configuration.

use std::fmt::Write as _;

use crate::config::Config;
use crate::model::{BellVolume, sanitize_line};
use crate::view::{Tree, UnreadMail, is_named_by, read_mail_urgency};

/// The priorities that are high, of all kinds of stores.
const HIGH: [&str; 2] = ["urgent", "high"];
/// The most messages that are read at one event. Of more, only the newest can ring.
const MOST_READ: usize = 1000;

/// Returns those of some messages that ring, in their order. A message that cannot be read rings: a bell too many is
/// better than a message that nobody notices.
pub(super) fn select_ringing<'a>(
    config: &Config,
    tree: &Tree,
    mail: &[&'a UnreadMail],
) -> Vec<&'a UnreadMail> {
    let read = match config.bell {
        BellVolume::Off => return Vec::new(),
        BellVolume::All => mail,
        BellVolume::Direct | BellVolume::Urgent => {
            mail.get(mail.len().saturating_sub(MOST_READ)..).unwrap_or_default()
        }
    };
    let rings = |mail: &&&UnreadMail| {
        !is_named_by(tree, mail, &config.muted) && is_loud_enough(config.bell, tree, mail)
    };
    read.iter().filter(rings).copied().collect()
}

fn is_loud_enough(volume: BellVolume, tree: &Tree, mail: &UnreadMail) -> bool {
    let urgency = || read_mail_urgency(tree, mail);
    match volume {
        BellVolume::Off => false,
        BellVolume::All => true,
        BellVolume::Direct => urgency().map_or(true, |mail| mail.is_to_me_alone || mail.answers_me),
        BellVolume::Urgent => urgency().map_or(true, |mail| {
            mail.priority.is_some_and(|priority| HIGH.contains(&priority.as_str()))
        }),
    }
}

/// Returns the sentence of `msgfs hook status` about the bell.
pub fn describe_volume(config: &Config) -> String {
    let rings = match config.bell {
        BellVolume::All => "all mail rings",
        BellVolume::Direct => "mail to me alone and answers to my mail ring",
        BellVolume::Urgent => "mail of high priority rings",
        BellVolume::Off => "no mail rings",
    };
    let mut text = format!("bell = \"{}\": {rings}", config.bell);
    if config.bell != BellVolume::Off && !config.muted.is_empty() {
        let muted = config.muted.join(", ");
        // Writing to a String cannot fail.
        let _ = write!(text, ", except that of {}", sanitize_line(&muted));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_how_loud_the_bell_is() {
        let said = |bell, muted: &[&str]| {
            let muted = muted.iter().map(|word| (*word).to_owned()).collect();
            describe_volume(&Config { bell, muted, ..Config::default() })
        };
        assert_eq!(said(BellVolume::All, &[]), "bell = \"all\": all mail rings");
        assert_eq!(
            said(BellVolume::Urgent, &["bob", "builds"]),
            "bell = \"urgent\": mail of high priority rings, except that of bob, builds"
        );
        assert_eq!(said(BellVolume::Off, &["bob"]), "bell = \"off\": no mail rings");
    }
}
