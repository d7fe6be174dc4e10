//! The choices of a configuration, as plain data.

use std::fmt;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{find_nearest, sanitize_line};

/// A value that is one of a few words.
pub trait Choice: Copy + 'static {
    /// Every word and its value.
    const ALL: &'static [(&'static str, Self)];
}

/// Returns the value of a word. `synonyms` are other words, with a known one for the hint.
///
/// # Errors
/// Returns the known words, and the nearest of them.
pub fn find_word<T: Copy>(
    word: &str,
    known: &[(&str, T)],
    synonyms: &[(&str, &str)],
) -> Result<T, String> {
    let words = || known.iter().map(|(word, _)| *word);
    let find = |word: &str| known.iter().find(|(known, _)| *known == word);
    let error = || {
        let lower = word.to_lowercase();
        let meant = synonyms.iter().find(|(others, _)| others.split(' ').any(|o| o == lower));
        let near = meant.map(|(_, meant)| *meant).or_else(|| find_nearest(word, words()));
        let hint = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
        format!("must be one of {}{hint}", quote_words(words()))
    };
    find(word).map(|(_, value)| *value).ok_or_else(error)
}

/// A rule for a text in the configuration. Returns the rule as a sentence, if the text breaks it.
pub type TextRule = fn(&str) -> Result<(), String>;

/// The files among the settings of a kind of store or link, each with the keys that lead to it.
pub type SettingsFiles<'s> = Vec<(Vec<&'s str>, &'s mut PathBuf)>;

/// Accepts each text.
///
/// # Errors
/// None.
pub fn accept_text(_: &str) -> Result<(), String> {
    Ok(())
}

/// Returns the first reason whose condition is true.
///
/// # Errors
/// That reason.
pub fn check_rules(reasons: &[(bool, &str)]) -> Result<(), String> {
    reasons.iter().find(|(is_there, _)| *is_there).map_or(Ok(()), |(_, why)| Err((*why).to_owned()))
}

/// Checks what all addresses have in common; only its store knows the form of one.
///
/// # Errors
/// Returns the rule that the address breaks.
pub fn check_address(address: &str) -> Result<(), String> {
    check_rules(&[
        (address.trim().is_empty(), "an address cannot be empty"),
        (sanitize_line(address) != address, "an address cannot hold control characters"),
    ])
}

/// Returns the words as `"a", "b"`.
pub fn quote_words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

/// Declares an enum whose values are words of the configuration.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl Choice for $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                find_word(&String::deserialize(from)?, Self::ALL, &[]).map_err(D::Error::custom)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

choice! {
    /// The event that marks a message in `inbox/` as read (key `mark_read`).
    MarkRead {
        /// Reading it to the end, or removing it.
        #[default]
        OnRead = "on-read",
        /// Only removing it.
        OnRemove = "on-remove",
    }
}

choice! {
    /// The threads that are shown (key `scope`).
    Scope {
        /// Threads with a message from or to me.
        #[default]
        Mine = "mine",
        /// All threads, also those between others.
        All = "all",
    }
}

choice! {
    /// The policy for unsigned messages (key `unsigned`).
    Unsigned {
        /// Unsigned messages are delivered.
        #[default]
        Accept = "accept",
        /// Unsigned messages are rejected if their sender has a pinned key.
        Known = "known",
        /// Unsigned messages are rejected.
        Refuse = "refuse",
    }
}

choice! {
    /// The policy for drafts to a recipient who was never seen (key `unknown_recipient`).
    UnknownRecipient {
        /// They are sent, unless only the file name gives the recipient and it resembles a known one.
        #[default]
        Near = "near",
        /// They are sent.
        Accept = "accept",
        /// They are refused, with the nearest known names.
        Refuse = "refuse",
    }
}

choice! {
    /// The meaning of a signature by a role, which several agents may fill (key `roles` of `[trust]`).
    Roles {
        /// The holder of the key that it carries wrote the message.
        #[default]
        Verify = "verify",
        /// The same, and the first key is pinned to the role as to a person, if the kind of store allows it.
        Pin = "pin",
    }
}

choice! {
    /// The way in which an append treats the disk (key `durability`).
    Durability {
        /// An append counts as done after `fdatasync`.
        #[default]
        Fsync = "fsync",
        /// The kernel decides when to write.
        None = "none",
    }
}

choice! {
    /// The mail that rings the bell of a coding agent (key `bell`).
    BellVolume {
        /// All mail.
        #[default]
        All = "all",
        /// Mail to me alone, and answers to my mail.
        Direct = "direct",
        /// Mail of high priority.
        Urgent = "urgent",
        /// No mail.
        Off = "off",
    }
}

choice! {
    /// The way in which changes of the stores are noticed (key `watch`).
    Watch {
        /// inotify, or polling where the file system has no inotify.
        #[default]
        Auto = "auto",
        /// Polling.
        Poll = "poll",
    }
}

/// Reads one text, or a list of texts.
///
/// # Errors
/// If it is neither.
pub fn read_one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a text in quotes, or a list of them")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(from)? {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_configurations() {
        /// Returns the words as they are read, with their values as they are shown; the default first.
        fn words<T: Choice + Default + fmt::Display>() -> String {
            let all = T::ALL.iter().map(|(word, value)| format!("{word}={value}"));
            let all: Vec<String> = [T::default().to_string()].into_iter().chain(all).collect();
            all.join(" ")
        }
        assert_eq!(words::<MarkRead>(), "on-read on-read=on-read on-remove=on-remove");
        assert_eq!(words::<Scope>(), "mine mine=mine all=all");
        assert_eq!(words::<Unsigned>(), "accept accept=accept known=known refuse=refuse");
        assert_eq!(words::<UnknownRecipient>(), "near near=near accept=accept refuse=refuse");
        assert_eq!(words::<Roles>(), "verify verify=verify pin=pin");
        assert_eq!(words::<Durability>(), "fsync fsync=fsync none=none");
        assert_eq!(words::<BellVolume>(), "all all=all direct=direct urgent=urgent off=off");
        assert_eq!(words::<Watch>(), "auto auto=auto poll=poll");
    }
}
