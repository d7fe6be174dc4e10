//! The choices of a configuration, as plain data.

use std::fmt;

/// A value that is one of a few words.
pub trait Choice: Copy + 'static {
    /// Every word and its value.
    const ALL: &'static [(&'static str, Self)];
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
    /// The way in which changes of the stores are noticed (key `watch`).
    Watch {
        /// inotify, or polling where the file system has no inotify.
        #[default]
        Auto = "auto",
        /// Polling.
        Poll = "poll",
    }
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
        assert_eq!(words::<Watch>(), "auto auto=auto poll=poll");
    }
}
