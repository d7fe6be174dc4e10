//! The choices a configuration makes, as plain data.

use std::fmt;

/// A value that is one of a few words.
pub trait Choice: Copy + 'static {
    /// Every word and what it means.
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
    /// What marks a message in `inbox/` as read (key `mark_read`).
    MarkRead {
        /// Reading it to the end, or removing it.
        #[default]
        OnRead = "on-read",
        /// Only removing it.
        OnRemove = "on-remove",
    }
}

choice! {
    /// Whose conversations are shown (key `scope`).
    Scope {
        /// Those I take part in.
        #[default]
        Mine = "mine",
        /// Those between others too.
        All = "all",
    }
}

choice! {
    /// What happens to unsigned messages (key `unsigned`).
    Unsigned {
        /// They are delivered.
        #[default]
        Accept = "accept",
        /// They are refused from senders who have a pinned key.
        Known = "known",
        /// They are refused.
        Refuse = "refuse",
    }
}

choice! {
    /// What happens to drafts for somebody who has never been seen (key `unknown_recipient`).
    UnknownRecipient {
        /// They are sent, unless the name is only that of the file and resembles a known one.
        #[default]
        Near = "near",
        /// They are sent.
        Accept = "accept",
        /// They are refused with the nearest known names.
        Refuse = "refuse",
    }
}

choice! {
    /// What a signature says of a role that several may fill (key `roles` of `[trust]`).
    Roles {
        /// That whoever holds the key it carries wrote the message.
        #[default]
        Verify = "verify",
        /// That, and the first key is pinned to the role as to a person, where the kind of store allows it.
        Pin = "pin",
    }
}

choice! {
    /// How changes of the stores are noticed (key `watch`).
    Watch {
        /// inotify; polling where the file system has none.
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
        /// Words as they are read, beside the values as they are shown; the default first.
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
